"""What everyday traffic cost: its figures, its table, and whose processor time is whose."""

import json
import os
import subprocess
import sys

import psutil
from rich.console import Console

from bench.everyday import our_processes
from bench.everyday_figures import GLUE, OURS, SERVERS, Cost, Side, figures_of, report_of, table
from bench.glue import newest
from bench.usage import use_of


def side(name: str, own: str, percent: float, *, rates: tuple[int, ...] = (0, 50)) -> Side:
    """A side in which each server and the one own process take so much of a core."""
    groups = [*SERVERS, own]
    return Side(
        name=name,
        own=[own],
        first_row_s=12.5,
        costs=[
            Cost(
                rate=rate,
                seconds=10.0,
                transactions=10 * rate,
                cpu_s=dict.fromkeys(groups, percent / 10),
                memory_mb=dict.fromkeys(groups, 250.0),
                seen_s={"valkey": [0.1] * 98 + [0.5, 0.9]} if rate else {},
            )
            for rate in rates
        ],
    )


def test_each_figure_is_beside_the_glues_and_the_goals_are_of_50_a_second_and_of_idle() -> None:
    figures = {figure.name: figure for figure in figures_of(side(OURS, "capture", 3.0), side(GLUE, "glue", 2.5))}
    assert {name: figure.passed for name, figure in figures.items()} == {
        "50/s: processor time a transaction": None,
        "50/s: all processes": False,
        "50/s: our own processes": False,
        "50/s: kafka": True,
        "50/s: opensearch": True,
        "50/s: memory": True,
        "idle: all processes": False,
        "idle: our own processes": True,
        "start to first row in OpenSearch": None,
    }
    assert round(figures["50/s: processor time a transaction"].value, 3) == 3.6
    assert round(figures["50/s: all processes"].ratio or 0.0, 3) == 1.2


def test_the_table_fits_into_80_columns_and_its_figures_into_json() -> None:
    rates = (0, 5, 50, 200)
    report = report_of(side(OURS, "supervisor", 19.9, rates=rates), side(GLUE, "Connect", 19.9, rates=rates))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table(json.loads(json.dumps(report))))
    text = captured.get()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert next(line for line in lines if line.startswith("all")).split() == ["all", *["119"] * 8]
    assert next(line for line in lines if line.startswith("valkey p99")).split()[3:] == ["-", "-", *["500"] * 6]
    first = next(line for line in lines if line.startswith("first row"))
    assert first.split() == ["first", "row", "s", *["12.5"] * 2, *["-"] * 6]


def test_processor_time_of_a_group_has_that_of_its_ended_children() -> None:
    me = psutil.Process(os.getpid())
    before = use_of([me]).cpu_s
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert use_of([me]).cpu_s > before
    assert use_of([me]).memory_mb > 1


def test_a_process_that_has_no_known_command_is_the_supervisors() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()", "else"], stdin=subprocess.PIPE)
    capture = subprocess.Popen([sys.executable, "-c", "input()", "capture"], stdin=subprocess.PIPE)
    try:
        groups = our_processes(os.getpid())
        assert child.pid in [process.pid for process in groups["supervisor"]]
        assert [process.pid for process in groups["capture"]] == [capture.pid]
    finally:
        child.communicate(b"\n")
        capture.communicate(b"\n")


def test_the_newest_of_a_batch_wins_in_the_glue_and_a_tombstone_deletes() -> None:
    key, other = b'{"id": 1}', b'{"id": 2}'
    messages = [
        (key, b'{"after": {"id": 1}}'),
        (other, b'{"after": {"id": 2}}'),
        (other, b'{"after": null}'),
        (other, None),
    ]
    assert newest(messages) == {1: {"id": 1}, 2: None}
