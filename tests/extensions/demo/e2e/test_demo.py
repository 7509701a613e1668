"""The demo as people run it: one command, from nothing to a comparison of every row, with nothing left behind."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from rich.cells import cell_len

from tests.services import temporary_directory

pytestmark = [pytest.mark.live, pytest.mark.alone]

ROOT = Path(__file__).parents[4]

# Five servers, Spark and the traffic share the machine with other tests.
PATIENCE_S = 900

ROWS, COLUMNS = 24, 80
CTRL_C = b"\x03"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\].*?(?:\x1b\\|\x07)")
"""What moves the cursor, colours and links, and isn't shown."""


@dataclass(frozen=True)
class Terminal:
    """A screen and a keyboard; ``name`` is the device. What comes on its screen is among the messages."""

    name: str
    keyboard: int

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)


@pytest.fixture
def terminal(directory: Path) -> Iterator[Terminal]:
    """A small one, for one command."""
    keyboard, screen = pty.openpty()
    termios.tcsetwinsize(screen, (ROWS, COLUMNS))

    def keep() -> None:
        with (directory / "messages.txt").open("ab") as file, contextlib.suppress(OSError):  # at its end
            while shown := os.read(keyboard, 1 << 16):
                file.write(shown)
                file.flush()

    keeping = threading.Thread(target=keep, daemon=True)
    keeping.start()
    yield Terminal(os.ttyname(screen), keyboard)
    os.close(screen)
    keeping.join(60)
    os.close(keyboard)


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


def start(directory: Path, *options: str, terminal: Terminal | None = None) -> subprocess.Popen[str]:
    """The command in its own session, as a terminal would start it, with its messages on one or in a file."""
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "lockstep", "demo", "--directory", str(directory / "demo"), *options]
    if terminal is not None:  # who begins a session and opens a terminal gets the keys that are pressed there
        command = ["sh", "-c", 'exec "$@" <"$0" 2>"$0"', terminal.name, *command]
    with (directory / "messages.txt").open("w" if terminal is None else "a") as messages:
        return subprocess.Popen(
            command,
            cwd=directory,
            env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
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
    return _CONTROL.sub("", (directory / "messages.txt").read_text(errors="replace"))


def test_after_a_killed_run_every_row_of_every_sink_is_equal(directory, terminal):
    killed = start(directory, "--rate", "15")
    wait_for_message(directory, killed, "starting Spark")
    killed.kill()
    killed.communicate()
    assert len(processes_of(directory)) > 5

    demo = start(directory, "--seconds", "6", "--rate", "15", "--json", terminal=terminal)
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
    expect_shown(messages(directory))


def expect_shown(screen: str) -> None:
    """What people see: addresses, stages, examples, keys, and the comparison; nothing of a table is cut off."""
    for shown in (
        "live timeline",
        "search: lamps below 1500, in OpenSearch",
        "cache: an order, in Valkey",
        "warehouse: revenue by country, in SQL",
        "Ctrl-C stops everything",
        "s the writer stops, and every row",
        "every sink and view is equal to the source",
    ):
        assert shown in screen, shown
    lines = screen.splitlines()
    rows = [line.split("│") for line in lines if line.startswith("│")]
    assert {cell_len(line) for line in lines if line.startswith(("┏", "│"))} <= set(range(COLUMNS + 1))
    drawn = set(re.findall(r"[┬├└]─ (.*?) +current ", screen))
    assert {"search", "cache", "warehouse", "timeline"} <= drawn, drawn
    compared = {(row[1].strip(), row[-2].strip()) for row in rows if "equal" in row[-2].lower()}
    assert compared == {(sink, "equal") for sink in ("search", "cache", "warehouse", "timeline")}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(r"kafka: starting", id="servers", marks=pytest.mark.soak),
        pytest.param(r"starting Spark", id="shop"),
        pytest.param(r"next: in \d+ s search", id="stream", marks=pytest.mark.soak),
    ],
)
@pytest.mark.soak
def test_two_signals_leave_no_process_running(directory, terminal, message):
    demo = start(directory, terminal=terminal)
    wait_for_message(directory, demo, message)

    terminal.press(CTRL_C)
    wait_for_message(directory, demo, "stopping")
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=PATIENCE_S)

    # The second one may come when all is stopped and nobody listens any more.
    was_late = demo.returncode == -signal.SIGTERM and messages(directory).rstrip().endswith("stopped")
    assert demo.returncode == 0 or was_late, messages(directory)
    assert processes_of(directory) == []


@pytest.mark.soak
def test_beside_others_that_take_half_of_the_machine_every_row_is_equal(directory):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        demo = start(directory, "--seconds", "60", "--json")
        output, _ = demo.communicate(timeout=4 * PATIENCE_S)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert demo.returncode == 0, messages(directory)
    result = json.loads(output)
    assert result["ok"] is True
    assert result["sinks"]["search"]["generation"] == 2
    print(f"{result['seconds']:.0f} s, {result['traffic']['transactions']} transactions")


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
