"""The directory of a pipeline's alerts: who may use it, and who tells."""

import contextlib
import logging
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from monitor.alerts.store import AlertStore, State

_SERVICE = 65534
"""A user as whom a service may run."""


def test_whoever_does_not_tell_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    directory = tmp_path / "alerts" / "shop"
    first, second = AlertStore(directory), AlertStore(directory)
    with contextlib.closing(first), contextlib.closing(second):
        assert first.take_lock()
        assert caplog.messages == []
        assert not second.take_lock()
        assert not second.take_lock()
        assert len(caplog.messages) == 1
        assert f"it holds {directory}/lock" in caplog.messages[0]
        first.close()
        assert second.take_lock()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("is_there", [False, True])
def test_what_root_makes_can_be_used_by_the_owner_of_the_directory(*, is_there: bool) -> None:
    """Root looks by hand before the service was ever started."""
    with tempfile.TemporaryDirectory() as made:  # pytest's own is closed to others
        os.chown(made, _SERVICE, _SERVICE)
        directory = Path(made) / "alerts" / "shop"
        if is_there:
            directory.mkdir(parents=True)
            for path in (directory.parent, directory):
                os.chown(path, _SERVICE, _SERVICE)
        with contextlib.closing(AlertStore(directory)) as store:
            assert store.take_lock()
            store.save(State())
        service = multiprocessing.get_context("fork").Process(target=_work_as_service, args=(directory,))
        service.start()
        service.join()
        assert service.exitcode == 0


def _work_as_service(directory: Path) -> None:
    os.setgroups([])
    os.setgid(_SERVICE)
    os.setuid(_SERVICE)
    store = AlertStore(directory)
    assert store.take_lock()
    store.save(State())
