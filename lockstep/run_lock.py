"""One ``lockstep run`` of a pipeline at a time on this machine: a second one would take capture over from the first."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc.model.errors import ConfigurationError

_LOOK_S: Final = 0.2


@contextmanager
def only_run(
    file: Path, *, take_over: bool, say: Callable[[str], None], wait: Callable[[float], bool]
) -> Iterator[bool]:
    """Hold the lock file until the block ends, with our pid in it. False where we were told to stop before we had it.

    The kernel lets it go when the process ends, however it ends. ``take_over`` ends the run that holds it, and waits
    until it has ended. ``wait`` sleeps for so many seconds, and says whether we are told to stop.

    Raises ConfigurationError where another run holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as lock:
        has_asked = False
        while not _is_taken(lock.fileno()):
            pid = _holder(file)
            if not take_over:
                raise ConfigurationError(
                    f"another run of this pipeline is at work on this machine{_named(pid)}",
                    hint="stop that one, or end it and go on in its place with `lockstep run --take-over`",
                )
            if pid is not None and not has_asked:
                _ask_to_stop(pid)
                say(f"the other run{_named(pid)} is told to stop, and waited for")
                has_asked = True
            if wait(_LOOK_S):
                yield False
                return
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n".encode())
        lock.flush()
        yield True


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: Path) -> int | None:
    """The process that holds the lock; None for a moment, before it has written its number."""
    text = file.read_text(encoding="ascii").strip()
    return int(text) if text.isdecimal() else None


def _named(pid: int | None) -> str:
    return "" if pid is None else f" (pid {pid})"


def _ask_to_stop(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended meanwhile
    except PermissionError:
        raise ConfigurationError(
            f"the other run{_named(pid)} belongs to another user, and may not be told to stop",
            hint="stop it as that user, then start this one again",
        ) from None
