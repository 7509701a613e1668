"""The demo as people run it: one command, from nothing to a comparison of every row, with nothing left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.services import temporary_directory

pytestmark = [pytest.mark.live, pytest.mark.alone]

ROOT = Path(__file__).parents[2]

# Five servers, Spark and the traffic share the machine with other tests.
PATIENCE_S = 900


@pytest.fixture
def directory() -> Iterator[Path]:
    with temporary_directory() as path:
        yield path
        for process in processes_of(path):  # of a test that failed
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def processes_of(directory: Path) -> list[psutil.Process]:
    """Processes with this directory in their command line: servers, writer, capture, Spark, its workers' parents."""
    processes = []
    for process in psutil.process_iter():
        try:
            known = str(directory) in " ".join([*process.cmdline(), process.cwd()])
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if known and process.pid != os.getpid() and not is_zombie:
            processes.append(process)
    return processes


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    """The command in its own session, as a terminal would start it, with its messages in a file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (directory / "messages.txt").open("w") as messages:
        return subprocess.Popen(
            [sys.executable, "-m", "lockstep", "demo", "--directory", str(directory / "demo"), *options],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            start_new_session=True,
        )


def wait_for_message(directory: Path, demo: subprocess.Popen[str], pattern: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, messages(directory)):
        assert demo.poll() is None, messages(directory)
        assert time.monotonic() < deadline, messages(directory)
        time.sleep(0.1)


def messages(directory: Path) -> str:
    return (directory / "messages.txt").read_text()


def test_after_a_killed_run_every_row_of_every_sink_is_equal(directory):
    killed = start(directory, "--rate", "15")
    wait_for_message(directory, killed, r"in Kafka \d")
    killed.kill()
    killed.communicate()
    assert len(processes_of(directory)) > 5

    demo = start(directory, "--seconds", "6", "--rate", "15", "--json")
    output, _ = demo.communicate(timeout=PATIENCE_S)

    assert demo.returncode == 0, messages(directory)
    result = json.loads(output)
    assert result["ok"] is True
    assert set(result["sinks"]) == {"search", "cache", "warehouse", "timeline"}
    assert result["traffic"]["transactions"] > 100
    assert result["traffic"]["keys_changed"] > 0
    assert {*result["snapshot"]["rows"], "views.timeline"} == set(result["source"])
    assert {name: sink["generation"] for name, sink in result["sinks"].items()} == {
        "search": 2,  # rebuilt with another mapping in the middle of the traffic
        "cache": 1,
        "warehouse": 1,
        "timeline": 1,
    }
    for name, sink in result["sinks"].items():
        held = {"views.timeline"} if name == "timeline" else result["snapshot"]["rows"].keys()
        assert sink["rejected"] == 0
        assert {table: comparison["rows"] for table, comparison in sink["tables"].items()} == {
            table: result["source"][table] for table in held
        }
        assert all(comparison["equal"] for comparison in sink["tables"].values())
    assert result["source"]["views.timeline"] > 1000
    assert processes_of(directory) == []


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(r"kafka: starting", id="servers", marks=pytest.mark.soak),
        pytest.param(r"starting Spark", id="shop"),
        pytest.param(r"in Kafka \d", id="stream", marks=pytest.mark.soak),
    ],
)
def test_two_signals_leave_no_process_running(directory, message):
    demo = start(directory)
    wait_for_message(directory, demo, message)

    demo.send_signal(signal.SIGINT)
    wait_for_message(directory, demo, "stopping")
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=PATIENCE_S)

    # The second one may come when all is stopped and nobody listens any more.
    was_late = demo.returncode == -signal.SIGTERM and messages(directory).rstrip().endswith("stopped")
    assert demo.returncode == 0 or was_late, messages(directory)
    assert processes_of(directory) == []


@pytest.mark.soak
def test_a_second_demo_in_the_same_directory_is_refused(directory):
    first = start(directory)
    wait_for_message(directory, first, "starting")
    log = messages(directory)

    second = start(directory, "--seconds", "1")
    second.communicate(timeout=PATIENCE_S)
    refusal = messages(directory)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_S)

    assert "starting" in log
    assert second.returncode == 1
    assert "a demo runs in" in refusal
    assert processes_of(directory) == []
