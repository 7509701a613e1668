"""Builds a view's state anew: reads all rows of its tables, computes the result, and then writes it."""

import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from cdc.model.errors import PositionMismatch
from jobs.executor.log_reader import Range
from jobs.executor.task_input import Task
from jobs.executor.view_coordination import ViewRecords
from jobs.executor.view_delivery import ViewDelivery
from jobs.executor.view_events import ViewEvents
from jobs.executor.view_log import Cut, Taken
from jobs.executor.view_reports import ViewReports
from jobs.offsets import Offsets
from views.figures import Doing
from views.retention import whole_minutes
from views.view import View, ViewPosition

AHEAD_FROM: Final = 20_000
"""From so many events on, rows of a new result are written while others are computed."""


class BuildIsOver(Exception):
    """The driver has ended the batch in the middle of a build, which begins again."""


class ViewBuild:
    """Builds the state of one view from everything in the log. Raises as ``View`` and ``Sink.apply``."""

    def __init__(
        self,
        task: Task,
        view: View,
        events: ViewEvents,
        delivery: ViewDelivery,
        stored: ViewRecords,
        reports: ViewReports,
    ) -> None:
        assert task.view is not None
        self._task = task
        self._input = task.view
        self._view = view
        self._feed = reports.feed
        self._events = events
        self._delivery = delivery
        self._stored = stored
        self._reports = reports
        self._figures = reports.figures
        # Where the topics began, and how much there was to read, when the build began.
        self._began: Offsets = {}
        self._to_read = 0

    def begin(self, followed: Sequence[Range]) -> None:
        """Begin with these ranges. Raises PositionMismatch if the log has lost its beginning."""
        ends = self._feed.of_topics({part.at: part.end for part in followed})
        self._began = self._feed.cluster.begin_offsets(list(ends))
        if not self._input.trimmed:
            self._check_log_is_whole()
        self._to_read = sum(ends.values()) - sum(self._began.values())

    def note_read(self) -> None:
        """Update how much is read."""
        if self._figures.building is not None:
            reached = self._feed.log.next_offsets
            read = sum(max(0, reached.get(at, begin) - begin) for at, begin in self._began.items())
            self._figures.building.reach(read, total=self._to_read)

    def keep(self, records: pa.Table | None) -> None:
        """Take in records, which wait to be computed. Raises BuildIsOver."""
        if records is not None:
            self._view.build(self._events.decoded(records), self._note_computed)

    def end(self, cut: Cut, taken: Taken) -> None:
        """Compute everything as of this cut, which was read. Raises BuildIsOver."""
        self._figures.begin(Doing.COMPUTING, self._view.arrived)
        # The sink's rows from an earlier state may be as of a later time, if the source's clock went back since.
        time_ms = max(cut.commit_time_ms, self._stored.time.next_ms)
        seq = self._stored.seq_of_new_state(cut)
        if self._view.arrived >= AHEAD_FROM and self._delivery.has_nothing():
            position = ViewPosition(cut.epoch, cut.lsn, seq=seq, time_ms=whole_minutes(time_ms))
            with self._delivery.writing_ahead(position, lambda: self._note_computed(0)) as ahead:
                self._view.compute(self._note_computed, time_ms=time_ms, ahead=ahead)
        else:
            self._view.compute(self._note_computed, time_ms=time_ms)
        # Before the state is whole: no stored run then means that no state was ever whole.
        self._stored.save_run(self._task.run)
        self._view.end_building(epoch=cut.epoch, lsn=cut.lsn, offsets=taken.next_offsets, seq=seq, time_ms=time_ms)
        self._view.adopt(self._task.run)

    def _note_computed(self, rows: int) -> None:
        """So many more rows of tables are computed."""
        self._figures.add(rows)
        # Otherwise the driver takes the task for one that hangs, and ends its batch.
        self._reports.send(time.monotonic())
        if self._reports.is_over:
            raise BuildIsOver

    def _check_log_is_whole(self) -> None:
        for (topic, partition), begin in sorted(self._began.items()):
            if begin:
                raise PositionMismatch(
                    f"topic {topic}, partition {partition}, begins at {begin}: a view can't be built from it, since"
                    " rows may be missing",
                    hint="let capture copy the table again (lockstep snapshot table TABLE), then build with"
                    f" `lockstep rebuild {self._task.sink} --trimmed --switch`",
                )
