"""How far a task is with the building of a view's state."""

import time
from collections.abc import Callable

from jobs.clock import now_ms
from views.figures import Building, Doing


class BuildProgress:
    """Counts what a building has done of what it does now."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._monotonic = monotonic
        self._began_ms = now_ms()
        self.begin(Doing.READING, 0)

    def begin(self, doing: Doing, total: int) -> None:
        """The next part of it, with so many events or rows."""
        self._doing, self._total, self._done = doing, total, 0
        self._since_s = self._monotonic()

    def reach(self, done: int, *, total: int = 0) -> None:
        """So many are done. ``total`` may have grown: a log goes on while it is read."""
        self._done, self._total = done, max(total, self._total, done)

    def add(self, done: int) -> None:
        """So many more are done."""
        self.reach(self._done + done)

    @property
    def now(self) -> Building:
        """How far it is."""
        took_s = self._monotonic() - self._since_s
        per_s = self._done / took_s if took_s > 0 else 0.0
        return Building(self._began_ms, self._doing, self._done, self._total, per_s)
