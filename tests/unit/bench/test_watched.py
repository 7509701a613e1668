"""The figures of being watched, and what stands still for them."""

import subprocess
import sys
import time

import psutil

from bench.watched import Page, Watched, figures_of, stopped


def test_what_is_measured_is_set_beside_what_it_may_cost() -> None:
    page = Page(idle_percent=1.5, busy_percent=2.5, memory_mb=61.0)
    watched = Watched(
        page, over_lag_ms=[*([1.0] * 98), 40.0, 60.0], over_row_ms=[70.0] * 100, told_s={"capture": 7.0, "Kafka": 11.0}
    )
    passed = {figure.name: figure.passed for figure in figures_of(watched)}
    assert passed == {
        "the page with 10 readers, idle": True,
        "... under traffic": False,
        "... its memory": False,
        "50 waits at once, over the sink's own lag, p50": None,
        "... p99": True,
        "... over the row alone, p50": None,
        "... over the row alone, p99": None,
        "capture hangs: told after": True,
        "Kafka hangs: told after": False,
    }


def test_a_process_stands_still_and_goes_on() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process = psutil.Process(child.pid)
        with stopped(child.pid):
            while process.status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
        while process.status() == psutil.STATUS_STOPPED:
            time.sleep(0.01)
    finally:
        child.communicate(b"\n")
