"""How far a task is with building a view's state."""

import time
from collections.abc import Callable

from jobs.clock import now_ms
from views.figures import Building, Doing, ViewFigures
from views.state.contract import Size
from views.view import View


class BuildProgress:
    """Counts what a build has done of its present part."""

    def __init__(self) -> None:
        self._began_ms = now_ms()
        self.begin(Doing.READING, 0)

    def begin(self, doing: Doing, total: int) -> None:
        """Begin the next part, with so many events or rows."""
        self._doing, self._total, self._done = doing, total, 0
        self._since_s = time.monotonic()

    def reach(self, done: int, *, total: int = 0) -> None:
        """So many are done. ``total`` may have grown: a log grows while it is read."""
        self._done, self._total = done, max(total, self._total, done)

    def add(self, done: int) -> None:
        self.reach(self._done + done)

    @property
    def now(self) -> Building:
        took_s = time.monotonic() - self._since_s
        per_s = self._done / took_s if took_s > 0 else 0.0
        return Building(self._began_ms, self._doing, self._done, self._total, per_s)


class FiguresNow:
    """A view's figures, with the progress of its build while there is one."""

    def __init__(self, view: View, size: Callable[[], Size]) -> None:
        """``size`` is that of the view's state."""
        self._view = view
        self._size = size
        self.building: BuildProgress | None = None

    def __call__(self) -> ViewFigures:
        building = None if self.building is None else self.building.now
        at_ms = now_ms()
        return ViewFigures.of(self._view.position(), self._size(), building=building, at_ms=at_ms)

    def begin(self, doing: Doing, total: int) -> None:
        """Begin the next part of a build, if there is one."""
        if self.building is not None:
            self.building.begin(doing, total)

    def add(self, done: int) -> None:
        if self.building is not None:
            self.building.add(done)
