"""Ctrl-C and SIGTERM for a program that has to end processes: the first one interrupts the work, none the clean-up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While it is open, the first signal raises KeyboardInterrupt, unless ``disarm`` came first; later ones only hurry.
    KeyboardInterrupt is raised at most once, so its handler can clean up undisturbed.
    """

    def __init__(self) -> None:
        self._armed = True
        self._deferred = 0
        self._received = 0
        self._hurry = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def hurried(self) -> bool:
        """Whether a second signal came."""
        return self._hurry.is_set()

    def disarm(self) -> None:
        self._armed = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A signal in this block raises at its end: a process that is started in it is also recorded."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if self._received and not self._deferred:
            self._raise_once()

    def _raise_once(self) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._received += 1
        if self._received > 1:
            self._hurry.set()
        if not self._deferred:
            self._raise_once()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
