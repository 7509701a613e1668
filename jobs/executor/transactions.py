"""The applier of a consistent sink: whole transactions of all its tables -> one step of the store.

After each step that a reader can see, the tables together are as of one commit. So a step ends at a progress record,
and what was read beyond it waits for the next one. What doesn't fit into memory until then waits on disk.

A generation that is being filled gets its records as they come: it has parts of transactions until the first step.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import pyarrow as pa

from jobs.consistency import Consistency, load_consistency, save_consistency
from jobs.executor.applier import Applier
from jobs.executor.deliver import apply_portion, portions
from jobs.executor.driver_line import DriverLine
from jobs.executor.log_feed import LogFeed
from jobs.executor.log_reader import Polled, Range
from jobs.executor.open_sinks import opened_for
from jobs.executor.reports import Reports
from jobs.executor.result import Result
from jobs.executor.task_input import Task
from jobs.executor.task_pace import LogEnd, NextCut
from jobs.executor.view_log import NEVER, Cut, ViewLog
from jobs.executor.waiting_records import WaitingRecords
from jobs.offsets import Offsets
from sinks.contract import Batch
from sinks.stored_progress import check_written


class Transactions(Applier):
    """Applies whole transactions, for one batch."""

    def __init__(self, task: Task, reached: Offsets, line: DriverLine | None, result: Result) -> None:
        """``line`` is that of a batch that goes on until the driver ends it. ``reached`` is what was applied before.
        Raises DataLost if the store has lost some of that."""
        assert task.client is not None
        assert task.steps is not None
        opened = opened_for(task)
        assert opened.whole is not None
        self._task = task
        self._opened = opened
        self._whole = opened.whole
        self._result = result
        self._line = line
        self._position = {**task.steps.reached, **reached}
        self._stored = reached
        self._check_stored()
        # Others may have stored more than the driver knows. It comes again, and the tags make that harmless.
        self._consistency = load_consistency(opened.records, task.generation) or Consistency()
        # The stored rows may include a part of a transaction.
        floor = NEVER if self._consistency.is_reached else self._whole.newest_tag()
        self._log = ViewLog(task.tables, self._position, append_only=task.append_only, floor=floor)
        self._feed = LogFeed(
            task.client,
            self._log,
            pipeline=task.steps.pipeline,
            progress_topic=task.steps.progress_topic,
            topics=list(task.tables),
        )
        self._waiting = WaitingRecords()
        self._cuts = NextCut(self._log, is_long=line is not None)
        self._end = LogEnd(self._log, result)
        self._reports = Reports(line, result, lambda: self._log.came)

    def begin(self) -> Sequence[Range]:
        return self._feed.begin(self._position)

    def take(self, polled: Polled) -> None:
        """Take what was polled, up to the newest cut. Raises as ``LogFeed``, ``Sink.apply`` and DataLost."""
        self._result.rows += self._feed.take(polled)
        log = self._log
        if log.bytes > self._task.window_bytes and (records := log.take_all()) is not None:
            if self._consistency.is_reached:
                self._waiting.add(records)
            else:
                self._fill(records)
        if (cut := self._cuts.find(time.monotonic(), waits=self._waits)) is not None:
            self._step(cut)

    def needs_driver(self) -> bool:
        return bool(self._result.rejected or self._result.resolved)

    def report(self, now_s: float) -> None:
        if self._reports.is_due(now_s, has_news=self._reports.has_moved):
            report = self._reports.take(now_s)
            report.read = self._feed.read if self._waits else {}
            self._reports.send(report)

    def is_at_end(self, now_s: float) -> bool:
        return self._end.is_reached(now_s, is_taken_in=self._consistency.is_reached and not self._waits)

    def close(self) -> None:
        """Discard what waits: it is read again."""
        self._waiting.clear()

    def _fill(self, records: pa.Table) -> None:
        """Apply records to a generation that isn't consistent yet."""
        reached = self._feed.read
        for start, end in portions(records):
            next_offsets = reached if end == records.num_rows else {}
            portion = records.slice(start, end - start)
            with self._at_work(), self._whole.step():
                self._check_stored()
                apply_portion(self._task, self._opened.sink, portion, next_offsets, self._result)
        self._stored = self._result.next_offsets = reached

    def _step(self, cut: Cut) -> None:
        before = self._consistency
        if (cut.epoch, cut.lsn) < (before.epoch, before.lsn):
            return
        taken = self._log.take(cut)
        reached = self._feed.of_topics(taken.next_offsets)
        is_empty = taken.records is None and not self._waiting.rows
        if is_empty and before.is_reached and (self._position == reached or not self._cuts.is_due(time.monotonic())):
            return
        after = before.after(epoch=cut.epoch, lsn=cut.lsn, commit_time_ms=cut.commit_time_ms)
        with self._at_work(), self._whole.step():
            self._check_stored()
            last = None
            for portion in self._portions(taken.records):
                if last is not None:
                    self._apply(last, {})
                last = portion
            if last is None:
                self._opened.sink.apply(Batch([], next_offsets=reached, fence=self._task.fence))
            else:
                self._apply(last, reached)
            save_consistency(self._opened.records, self._task.generation, after)
        self._waiting.clear()
        self._consistency, self._position, self._stored = after, reached, reached
        self._cuts.was_taken(time.monotonic())
        self._result.next_offsets = reached
        self._result.commit_time_ms = max(self._result.commit_time_ms, cut.commit_time_ms)

    def _at_work(self) -> AbstractContextManager[None]:
        return nullcontext() if self._line is None else self._line.at_work_on(self._feed.read)

    def _check_stored(self) -> None:
        """Raise DataLost if the store lacks what was applied to it: a step on top of a gap is as of no commit."""
        check_written(self._stored, self._whole.next_offsets(), destination=f"sink {self._task.sink!r}")

    def _portions(self, records: pa.Table | None) -> Iterator[pa.Table]:
        """The records that waited on disk, then these, in slices."""
        for table in chain(self._waiting.tables(), [] if records is None else [records]):
            for start, end in portions(table):
                yield table.slice(start, end - start)

    def _apply(self, portion: pa.Table, next_offsets: Offsets) -> None:
        """Apply a part of a step. Nothing in it is repeated: a failure rolls back the whole step."""
        apply_portion(self._task, self._opened.sink, portion, next_offsets, self._result)
        self._send_sign_of_life()

    @property
    def _waits(self) -> bool:
        return self._log.waits or bool(self._waiting.rows)

    def _send_sign_of_life(self) -> None:
        """Report within a step, which may take long."""
        now_s = time.monotonic()
        if self._reports.is_due(now_s, has_news=False):
            self._reports.send(self._reports.sign_of_life(now_s, has_got_on=True))
