"""A lock between processes and between threads."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file; the kernel releases it when the holder ends. ``waits`` is called once if another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waits is not None:
                waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
