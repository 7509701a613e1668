"""Which process of a machine looks after a pipeline."""

import contextlib
import logging
from pathlib import Path

import pytest

from monitor.reporter_lock import ReporterLock


def test_whoever_does_not_look_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    directory = tmp_path / "alerts" / "shop"
    first, second = ReporterLock(directory), ReporterLock(directory)
    with contextlib.closing(first), contextlib.closing(second):
        assert first.take()
        assert caplog.messages == []
        assert not second.take()
        assert not second.take()
        assert len(caplog.messages) == 1
        assert f"it holds {directory}/lock" in caplog.messages[0]
        first.close()
        assert second.take()
