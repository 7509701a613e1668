"""Writes rows of a view's new result to the sink while more of them are computed. The sink's server then works on one
core and the task on another, and the rows written needn't be stored in the view's state until they are delivered. The
newest rows always wait for the delivery, which says that the sink has all."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import orjson

from cdc.model.errors import DataLost, Fenced, LockstepError
from sinks.contract import Outcome
from views.operators.building import PORTION_BYTES, Item
from views.result_rows import rows_of

_AT_WORK_MAX: Final = 2
"""How many slices are with the sink at most: one that it writes, and the next one."""

LOOK_S: Final = 0.5
"""How often a task that waits for the sink checks whether it must end."""


class WrittenAhead:
    """Takes rows of a result that the sink has nothing of. For one thread; another one uses the sink meanwhile.

    ``write`` applies a slice to the sink. Rows that it refuses stay pending, and so does everything after the first
    slice that it can't take: the delivery finds out why. ``meanwhile`` is called periodically while the sink is busy;
    what it raises is raised. Memory holds three slices of about ``rows_max`` rows or ``PORTION_BYTES``.
    """

    def __init__(
        self, write: Callable[[Sequence[Item]], Outcome], meanwhile: Callable[[], None], *, rows_max: int
    ) -> None:
        self._write = write
        self._meanwhile = meanwhile
        self._rows_max = rows_max
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="view-rows")
        self._at_work: deque[tuple[list[Item], Future[Outcome]]] = deque()
        self._newest: list[Item] = []
        self._bytes = 0
        self._is_over = False
        self.applied = self.stale = 0
        """The outcome of the rows that the sink has."""

    def __call__(self, items: list[Item]) -> list[Item]:
        """As ``views.view.Ahead``. Raises Fenced and DataLost of the sink, and what isn't a LockstepError."""
        if not items:
            stays = [item for _ in range(len(self._at_work)) for item in self._done()]
            return [*stays, *self._taken()]
        stays = []
        if self._newest and (len(self._newest) >= self._rows_max or self._bytes >= PORTION_BYTES):
            stays = self._handed_over(self._taken())
        self._newest += items
        self._bytes += sum(len(pending) for _, _, pending in items)
        return stays

    def close(self) -> None:
        """Wait for the slice that is being written, and drop the others."""
        self._pool.shutdown(cancel_futures=True)

    def _taken(self) -> list[Item]:
        newest, self._newest, self._bytes = self._newest, [], 0
        return newest

    def _handed_over(self, portion: list[Item]) -> list[Item]:
        """Have a slice written. Returns rows that stay pending, of this slice or an earlier one."""
        stays = []
        while self._at_work and (self._at_work[0][1].done() or len(self._at_work) >= _AT_WORK_MAX):
            stays += self._done()
        if self._is_over:
            return stays + portion
        self._at_work.append((portion, self._pool.submit(self._write, portion)))
        return stays

    def _done(self) -> list[Item]:
        """The rows that stay pending of the oldest slice with the sink."""
        portion, writing = self._at_work.popleft()
        while not wait([writing], LOOK_S).done:
            self._meanwhile()
        try:
            outcome = writing.result()
        except (Fenced, DataLost):
            # The rows before it may be gone from the sink, or aren't this job's to write any more.
            raise
        except LockstepError:
            self._is_over = True
            return portion
        self.applied += outcome.applied
        self.stale += outcome.stale
        if not outcome.rejections:
            return []
        refused = {orjson.dumps(each.event.key) for each in outcome.rejections}
        return [item for item, key in zip(portion, rows_of(portion)[0], strict=True) if key in refused]
