"""Rejections are closed without being applied, once somebody has agreed."""

import io
from pathlib import Path

import pytest

from lockstep.cli.main import exit_code


def test_without_a_terminal_nothing_is_discarded_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert exit_code(["rejections", "discard", "search", "--all", "--config", str(tmp_path / "none")]) == 2
    assert "--yes" in capsys.readouterr().err
