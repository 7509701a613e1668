"""The applier of a sink that gets rows as they come: raw records -> the newest of each key -> the sink."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from cdc.pace import Pace
from jobs.executor.applier import Applier
from jobs.executor.deliver import apply_portion, portions
from jobs.executor.driver_line import DriverLine, Until
from jobs.executor.log_reader import Polled, Range
from jobs.executor.open_sinks import freeze_opened, sink_for
from jobs.executor.reports import Reports
from jobs.executor.result import Result
from jobs.executor.task_input import Task
from jobs.executor.window import Window
from jobs.offsets import Offsets
from sinks.contract import TopicPartition

_TIMES_A_DELIVERY: Final = 10.0
_FASTEST_S: Final = 0.01
_SLOWEST_S: Final = 0.25
"""Deliveries take a tenth of the time, or more under load. A request costs a store about the same whatever its size:
OpenSearch took 34 % of a core for 50 requests a second of 4 rows, and 8 % for 10 of 20."""

_ROWS: Final = 100
"""Rows beyond so many in a delivery cost work that waiting doesn't save."""


class DeliveryPace:
    """When a task delivers: at once after a pause; rows that come soon after a delivery wait for the next one."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pace = Pace(times_as_long=_TIMES_A_DELIVERY, fastest_s=_FASTEST_S, slowest_s=_SLOWEST_S)
        self._next_s = 0.0

    @contextmanager
    def delivering(self, rows: int) -> Iterator[None]:
        """Time a delivery of so many rows."""
        began_s = self._monotonic()
        yield
        self._pace.took((self._monotonic() - began_s) / max(1.0, rows / _ROWS))
        self._next_s = began_s + self._pace.interval_s

    @property
    def left_s(self) -> float:
        """How long the next delivery must wait; 0 if it is due."""
        return max(0.0, self._next_s - self._monotonic())


class Rows(Applier):
    """Applies ranges of the log, and what comes after them. If the batch goes on, it delivers each poll at once,
    otherwise window by window."""

    def __init__(
        self, task: Task, planned: Sequence[Range], until: Until, line: DriverLine | None, result: Result
    ) -> None:
        self._task = task
        self._ranges = planned
        # The ends that the driver planned: it takes the whole range as applied, so nothing less is a result.
        self._planned: Offsets = {part.at: part.end for part in planned}
        self._until = until
        self._line = line
        self._result = result
        # Everything read, transaction markers included; a batch that ends with the log reports less.
        self._read: Offsets = {part.at: part.start for part in planned if part.start is not None}
        self._is_applied = False
        self._window = self._new_window()
        # The rows of the last poll.
        self._polled = 0
        self._pace = DeliveryPace()
        self._reports = Reports(line, result)

    def begin(self) -> Sequence[Range]:
        if self._until.goes_on:
            self._result.next_offsets = dict(self._read)
        return self._ranges

    def take(self, polled: Polled) -> None:
        self._polled = sum(batch.num_rows for batch in polled.records)
        self._result.rows += self._polled
        if polled.records:
            with self._at_work(polled.ends), self._pace.delivering(self._polled):
                for batch in polled.records:
                    if self._window.add(batch):
                        self._deliver()
                if self._until.goes_on:
                    self._deliver()
        _reach(self._read, polled.ends)
        self._is_applied = self._is_applied or is_applied(self._planned, self._read)
        if self._until.goes_on:
            _reach(self._result.next_offsets, polled.ends)

    def needs_driver(self) -> bool:
        if not (self._until.goes_on and self.may_end):
            return False
        return bool(self._result.rejected or self._result.resolved) or self._polled > self._until.rows_max

    def report(self, now_s: float) -> None:
        # Until then the driver must not hear of offsets after a rejection that it doesn't have yet.
        if self.may_end and self._reports.is_due(now_s, has_news=self._reports.has_moved):
            self._reports.send(self._reports.take(now_s))

    @property
    def ending_fetch_wait_ms(self) -> int:
        return 1  # it waits for nothing that isn't there

    @property
    def may_end(self) -> bool:
        return self._is_applied

    @property
    def rest_s(self) -> float:
        return self._pace.left_s if self._polled and self.may_end else 0.0

    def is_at_end(self, now_s: float) -> bool:
        return self.may_end

    def end(self) -> None:
        self._deliver()

    def _at_work(self, read: Offsets) -> AbstractContextManager[None]:
        return nullcontext() if self._line is None else self._line.at_work_on(read)

    def _new_window(self) -> Window:
        task = self._task
        return Window(task.window_bytes, folds=not task.versions, append_only=task.append_only)

    def _deliver(self) -> None:
        """Apply the window and add the outcome to the result. Raises LockstepError."""
        window, result = self._window, self._result
        if window.is_empty:
            return
        self._window = self._new_window()
        records = window.records()
        reached = result.next_offsets | window.next_offsets
        for start, end in portions(records):
            # Keys are in the order of their newest records, so the window is complete only after its last slice.
            is_last = end == records.num_rows
            portion = records.slice(start, end - start)
            next_offsets = reached if is_last else result.next_offsets
            apply_portion(self._task, sink_for(self._task), portion, next_offsets, result)
        result.next_offsets = reached
        result.commit_time_ms = max(result.commit_time_ms, window.commit_time_ms)
        freeze_opened()


def is_applied(planned: Mapping[TopicPartition, int], reached: Mapping[TopicPartition, int]) -> bool:
    """Whether the planned ranges lie entirely below what was reached."""
    return all(reached.get(at, 0) >= end for at, end in planned.items())


def _reach(offsets: Offsets, ends: Mapping[TopicPartition, int]) -> None:
    for at, end in ends.items():
        offsets[at] = max(end, offsets.get(at, 0))
