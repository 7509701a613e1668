"""Takes looks repeatedly, each kind in a thread of its own, so that nobody waits for a server that hangs."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from monitor.conditions import Condition
from monitor.metrics.definitions import Definition

logger = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A gauge of the process that looks. ``labels`` are in the order of the definition's."""

    definition: Definition
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PanelRow:
    """One line of a panel. ``document`` is the same for programs, with whatever else is known. ``state`` is one of a
    stage's states, or a word of its own. ``needs_somebody``: nothing moves until somebody acts. ``is_reported``: it is
    listed among the problems, for ``reason``."""

    name: str
    state: str
    figures: Sequence[int | None]
    document: Mapping[str, JsonValue]
    reason: str = ""
    step: str = ""
    since_ms: int | None = None
    needs_somebody: bool = False
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """What an extension runs, as a table below the stages: on the page's first screen, and below ``lockstep lag``.
    ``columns`` are the headings of the rows' figures; in those of ``times`` they are milliseconds since 1970."""

    name: str
    """In documents."""
    title: str
    kind: str
    """What each row is, in words."""
    columns: tuple[str, ...]
    rows: tuple[PanelRow, ...]
    times: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """What one look of an extension has found."""

    conditions: tuple[Condition, ...] = ()
    figures: tuple[Figure, ...] = ()
    unknown: frozenset[tuple[str, str | None]] = frozenset()
    """Conditions, by name and subject or by name alone, that can't be judged now: they stay as they were."""
    panel: Panel | None = None
    """For the page."""


class Watch(Protocol[T_co]):
    """Takes looks. For one thread at a time."""

    def look(self) -> T_co:
        """Ask servers. Raises LockstepError if nothing can be said."""
        ...

    def close(self) -> None: ...


class Watching(Closing, Generic[T]):
    """Makes one watch look repeatedly, until it is closed. ``latest`` is the result of its last look."""

    def __init__(self, what: str, opened: Callable[[], Watch[T]], nothing: T, *, every_s: float = 2.0) -> None:
        """``what`` it looks at, for the log. ``opened`` is called in the thread, again if it raises, as for a missing
        password. ``nothing`` is ``latest`` before the first look, and after a failed one."""
        self.latest = nothing
        self._what = what
        self._opened = opened
        self._nothing = nothing
        self._every_s = every_s
        self._has_failed = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=what, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. One that hangs in a server's answer ends with the process."""
        self._closed.set()
        self._thread.join(2.0)

    def _work(self) -> None:
        watch: Watch[T] | None = None
        while not self._closed.is_set():
            try:
                watch = watch or self._opened()
                self.latest = watch.look()
                self._has_failed = False
            except Exception as error:
                # Nobody restarts this thread, and its earlier results are too old to show.
                self.latest = self._nothing
                if not self._has_failed:
                    level = logging.WARNING if isinstance(error, LockstepError) else logging.ERROR
                    logger.log(level, "%s can't be looked at, which is tried again", self._what, exc_info=error)
                self._has_failed = True
            self._closed.wait(self._every_s)
        if watch is not None:
            watch.close()
