"""Which process of this machine watches a pipeline: it holds a lock for as long as it lives. The system frees the lock
however the process ends. What root creates in the lock's directory belongs to the directory's owner, since the watching
process may be a service of that user."""

import contextlib
import fcntl
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from cdc.model.errors import LockstepError

logger = logging.getLogger("lockstep.alerts")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whether a process of this machine watches, and when one last looked; None if none ever did."""

    is_there: bool
    looked_ms: int | None


class ReporterLock:
    """The lock of a directory. ``take`` and ``holder`` raise LockstepError if it can't be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._has_said = False

    def take(self) -> bool:
        """Become the process that watches, until ``close``. False while another process is; that is logged once."""
        if self._lock is None:
            try:
                make_directory(self._directory)
                lock = open_lock(self._directory / "lock")
            except OSError as error:
                raise unusable(self._directory, error) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                if not self._has_said:
                    self._has_said = True
                    logger.info(
                        "another process reports alerts, since it holds %s/lock; this process does when that one ends",
                        self._directory,
                    )
                return False
            self._lock, self._has_said = lock, False
        with contextlib.suppress(OSError):
            os.utime(self._lock)  # shows others that it looks
        return True

    def holder(self) -> Holder:
        """Who watches now."""
        try:
            lock = os.open(self._directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Holder(False, None)
        except OSError as error:
            raise unusable(self._directory, error) from error
        try:
            looked_ms = os.fstat(lock).st_mtime_ns // 1_000_000
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return Holder(True, looked_ms)
            return Holder(False, looked_ms)
        finally:
            os.close(lock)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def unusable(directory: Path, error: OSError) -> LockstepError:
    """The error for a directory that can't be used."""
    return LockstepError(
        f"the directory {directory} can't be used: {error.strerror}",
        hint="check pipeline.data_directory, its permissions and its disk",
    )


def make_directory(directory: Path) -> None:
    """Make it and its missing parents. Raises OSError."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        made = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_to_owner(made, path.parent)
        finally:
            os.close(made)


def open_lock(path: Path) -> int:
    """A descriptor of a file to lock, created if missing. Raises OSError."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    give_to_owner(lock, path.parent)
    return lock


def give_to_owner(descriptor: int, directory: Path) -> None:
    """Give what root has just created to the directory's owner. By descriptor, since names can be changed."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
