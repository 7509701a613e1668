"""The directory of a pipeline's alerts: who may use it, and who tells."""

import contextlib
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from extensions.alerts.store import AlertStore, State
from monitor.reporter_lock import ReporterLock

_SERVICE = 65534
"""A user as whom a service may run."""


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
        with contextlib.closing(ReporterLock(directory)) as turn:
            assert turn.take()
            AlertStore(directory).save(State())
        service = multiprocessing.get_context("fork").Process(target=_work_as_service, args=(directory,))
        service.start()
        service.join()
        assert service.exitcode == 0


def _work_as_service(directory: Path) -> None:
    os.setgroups([])
    os.setgid(_SERVICE)
    os.setuid(_SERVICE)
    assert ReporterLock(directory).take()
    AlertStore(directory).save(State())
