"""lockstep.supervisor"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.console import EXIT_TAKEN_OVER
from lockstep.supervisor import run_group


class _Until:
    """Stands where signals are waited for: tells to stop when something holds."""

    def __init__(self, condition: Callable[[], bool] = lambda: False) -> None:
        self._condition = condition

    def __call__(self) -> bool:
        return self._condition()

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds / 10)
        return self()


def _members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """Has the group start a script in place of Python; returns where the script writes what it was started for."""
    script, starts = tmp_path / "python", tmp_path / "starts"
    script.write_text("\n".join(["#!/bin/sh", f'echo "$3" >> {starts}', *lines]))
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    return starts


def test_a_group_of_which_others_have_taken_over_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = _members(tmp_path, monkeypatch, f"exit {EXIT_TAKEN_OVER}")
    assert run_group(tmp_path / "lockstep.toml", _Until()) == EXIT_TAKEN_OVER
    assert sorted(starts.read_text().split()) == ["apply", "capture"], "each was started once"


def test_what_was_taken_over_is_not_started_again_and_the_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.supervisor._WAIT_MAX_S", 0.0)
    starts = _members(tmp_path, monkeypatch, f"test $3 = capture && exit {EXIT_TAKEN_OVER}", "exit 1")
    stopping = _Until(lambda: starts.exists() and starts.read_text().split().count("apply") == 3)
    assert run_group(tmp_path / "lockstep.toml", stopping) == 0
    assert starts.read_text().split().count("capture") == 1
