"""Processes are known by number and start time, and strangers are left alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stack import process
from stack.process import Launch, ProcessId

Start = Callable[[str], ProcessId]

# Ends on SIGTERM after a moment; ignores it; starts a child of its own.
SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('up', flush=True); time.sleep(60)"
)


def launch(directory: Path, code: str) -> Launch:
    return Launch(
        command=[sys.executable, "-c", code], environment={}, directory=directory, log=directory / "logs" / "it.log"
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def run(code: str) -> ProcessId:
        process_id, tail = process.spawn(launch(tmp_path, code))
        assert process_id is not None
        started.append(process_id)
        deadline = time.monotonic() + 300
        while "up" not in tail.text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process_id

    yield run
    process.kill(*started)


def test_a_started_process_is_alive_until_it_is_ended(start: Start) -> None:
    process_id = start(SLEEPER)
    assert process.is_alive(process_id)
    assert process.end(process_id, stop_signal=signal.SIGTERM, grace_seconds=10)
    assert not process.is_alive(process_id)
    assert not psutil.pid_exists(process_id.pid)


def test_a_process_that_ignores_the_request_is_killed(start: Start) -> None:
    process_id = start(STUBBORN)
    assert not process.end(process_id, stop_signal=signal.SIGTERM, grace_seconds=0.2)
    assert not psutil.pid_exists(process_id.pid)


def test_a_child_that_ends_while_it_is_looked_at_leaves_no_remains(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_id = start(SLEEPER)

    def ended_just_now(*_: object, **__: object) -> bool:
        os.waitid(os.P_PID, process_id.pid, os.WEXITED | os.WNOWAIT)
        return True

    monkeypatch.setattr(process, "wait_gone", ended_just_now)
    monkeypatch.setattr(process, "family", lambda _: [process_id])
    process.kill(process_id)
    assert not psutil.pid_exists(process_id.pid)


def test_a_reused_number_is_never_signalled(start: Start) -> None:
    stranger = start(SLEEPER)
    remembered = replace(stranger, started=stranger.started - 1)
    assert not process.is_alive(remembered)
    process.send(remembered, signal.SIGKILL)
    process.kill(remembered)
    process.end(remembered, stop_signal=signal.SIGTERM, grace_seconds=1)
    assert process.family(remembered) == []
    assert process.is_alive(stranger)


def test_killing_takes_the_children_too(start: Start) -> None:
    parent = start(PARENT)
    family = process.family(parent)
    assert len(family) == 2
    process.kill(parent)
    assert not any(process.is_alive(member) for member in family)


def test_a_frozen_process_is_seen_and_can_be_ended(start: Start) -> None:
    process_id = start(SLEEPER)
    process.send(process_id, signal.SIGSTOP)
    deadline = time.monotonic() + 300
    while not process.is_frozen(process_id):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.is_alive(process_id)
    assert process.end(process_id, stop_signal=signal.SIGTERM, grace_seconds=10)


def test_the_tail_shows_this_start_only(tmp_path: Path) -> None:
    tails = []
    for word in ("first", "second"):
        process_id, tail = process.spawn(launch(tmp_path, f"print('{word}')"))
        if process_id is not None:
            assert process.wait_gone([process_id], seconds=30)
        tails.append(tail)
    assert tails[1].text() == "second\n"
    assert tails[1].log.read_text() == "first\nsecond\n"


def test_a_server_has_a_session_of_its_own(start: Start) -> None:
    # Ctrl-C goes to the terminal's process group; servers must not be in it.
    process_id = start(SLEEPER)
    session = subprocess.run(
        ["ps", "-o", "sid=", "-p", str(process_id.pid)], check=True, capture_output=True, text=True
    ).stdout
    assert int(session) == process_id.pid
