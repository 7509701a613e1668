"""What extensions find beside the lag report: what is wrong, and figures. Each looks in a thread of its own."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cdc.model.errors import LockstepError
from monitor.conditions import Condition
from monitor.metrics.definitions import Definition

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A gauge of the process that looks. ``labels`` are in the order of the definition's."""

    definition: Definition
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What one look has found."""

    conditions: tuple[Condition, ...] = ()
    figures: tuple[Figure, ...] = ()
    unknown: frozenset[tuple[str, str | None]] = frozenset()
    """Names and subjects of conditions, or names alone, of which nobody can tell now: they stay as they were."""


class Watch(Protocol):
    """What looks. For one thread at a time."""

    def look(self) -> Found:
        """Ask servers. Called every two seconds. Raises LockstepError where nothing can be told."""
        ...

    def close(self) -> None: ...


class Watching:
    """Has one watch look again and again, until it is closed."""

    def __init__(self, conditions: Sequence[str], opened: Callable[[], Watch]) -> None:
        """``conditions`` are the names of all that it may find. ``opened`` is called in the thread, while it raises."""
        self.names = frozenset(conditions)
        self._nothing = Found(unknown=frozenset((name, None) for name in conditions))
        self._latest = self._nothing
        self._opened = opened
        self._has_failed = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="extension", daemon=True)
        self._thread.start()

    def latest(self) -> Found:
        """What was found last. Waits for nothing."""
        return self._latest

    def close(self) -> None:
        """End the thread. One that hangs in a server's answer ends with the process."""
        self._closed.set()
        self._thread.join(_LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        watch: Watch | None = None
        while not self._closed.is_set():
            try:
                watch = watch or self._opened()
                self._latest = watch.look()
                self._has_failed = False
            except Exception as error:
                # Nobody starts this thread again, and what it knew is too old to be told.
                self._latest = self._nothing
                if not self._has_failed:
                    level = logging.WARNING if isinstance(error, LockstepError) else logging.ERROR
                    logger.log(level, "an extension couldn't look, which is tried again", exc_info=error)
                self._has_failed = True
            self._closed.wait(_LOOK_S)
        if watch is not None:
            watch.close()
