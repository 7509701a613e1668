"""One ``lockstep run`` of a pipeline at a time on this machine: a second one would take capture over from the first.

The kernel holds the lock and knows which process has it, so a file left behind can't name a wrong process.
"""

import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc.model.errors import ConfigurationError

_LOOK_S: Final = 0.2

_FLOCK: Final = struct.Struct("hhqqi")
"""``struct flock`` of Linux: type, whence, start, length, pid."""


@contextmanager
def only_run(
    file: Path, *, take_over: bool, say: Callable[[str], None], wait: Callable[[float], bool]
) -> Iterator[bool]:
    """Hold the lock file until the block ends. Yields False if we were told to stop before we had it.

    The kernel releases the lock when the process ends, however it ends. ``take_over`` stops the run that holds the
    lock, and waits until it has ended. ``wait`` sleeps for a number of seconds, and returns whether we are told to
    stop.

    Raises ConfigurationError if another run holds it, and if the file can't be opened or locked.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("ab")
    except OSError as error:
        raise ConfigurationError(
            f"{file} can't be opened, which keeps a second run away: {error.strerror}",
            hint="let pipeline.data_directory name a directory that this user may write to; where the file is another"
            " user's, that user's run comes first",
        ) from None
    with lock:
        asked: int | None = None
        while not _is_taken(lock.fileno()):
            pid = _holder(lock.fileno())
            if not take_over:
                raise ConfigurationError(
                    f"another run of this pipeline is at work on this machine{_named(pid)}",
                    hint="stop that one, or end it and go on in its place with `lockstep run --take-over`",
                )
            if pid is not None and pid != asked:  # Another run may have taken the lock in the meantime.
                _ask_to_stop(pid)
                say(f"asked the other run{_named(pid)} to stop, and waiting for it")
                asked = pid
            if wait(_LOOK_S):
                yield False
                return
        yield True


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:  # a file system without locks
        raise ConfigurationError(
            f"the file that keeps a second run away can't be locked: {error.strerror}",
            hint="let pipeline.data_directory name a directory on a local disk",
        ) from None
    return True


def _holder(descriptor: int) -> int | None:
    """The process that holds the lock; None if it has just released it. Raises ConfigurationError if that process isn't
    visible from here, as in another container."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)[: _FLOCK.size])
    if kind == fcntl.F_UNLCK:
        return None
    if pid <= 0:
        raise ConfigurationError(
            "another run of this pipeline is at work on this machine, in another container",
            hint="stop that one, then start this one again",
        )
    return int(pid)


def _named(pid: int | None) -> str:
    return "" if pid is None else f" (pid {pid})"


def _ask_to_stop(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended meanwhile
    except PermissionError:
        raise ConfigurationError(
            f"the other run{_named(pid)} belongs to another user, so this one can't stop it",
            hint="stop it as that user, then start this one again",
        ) from None
