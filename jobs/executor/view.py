"""The applier of a view: whole transactions of its tables -> its state -> the changed rows of the result -> the sink.
The state's own position says what to read. A batch only says when."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from cdc.model.errors import DataLost, Unavailable
from jobs.executor.applier import Applier
from jobs.executor.driver_line import DriverLine, TaskReport, Until
from jobs.executor.log_feed import LogFeed
from jobs.executor.log_reader import Polled, Range
from jobs.executor.open_sinks import close_sink, sink_for
from jobs.executor.result import Failure, Result
from jobs.executor.task_input import Task
from jobs.executor.task_pace import LogEnd, NextCut
from jobs.executor.view_build import BuildIsOver, ViewBuild
from jobs.executor.view_building import BuildProgress, FiguresNow
from jobs.executor.view_coordination import ViewRecords
from jobs.executor.view_delivery import ViewDelivery
from jobs.executor.view_events import ViewEvents
from jobs.executor.view_log import Cut, Taken, ViewLog
from jobs.executor.view_reports import SinkProgress, ViewReports
from jobs.executor.view_start import can_go_on, opened_state
from jobs.executor.view_topic import ViewTopic, close_view_topic, view_topic_for
from jobs.offsets import Offsets
from sinks.contract import Batch
from views.failures import FanOutExceeded
from views.view import View, ViewPosition

RETRY_S: Final = 0.5
RETRY_MOST_S: Final = 8.0
"""How long a shard waits before it tries again: at first, and at most. After an attempt that lasted longer, the wait
starts from the first value again."""

_HELD_WINDOWS: Final = 4
"""At most so many windows of events wait for the end of their transactions. With more, a state is built."""


class _TooMuch(Exception):
    """More waits than memory should hold: the state is built anew."""


Run = Callable[[Applier], None]
"""Follows the log with an applier; see ``jobs.executor.follow``."""


def keep_view(task: Task, stored: Offsets, until: Until, line: DriverLine | None, result: Result, run: Run) -> None:
    """Maintain the view until the batch must end. ``stored`` are the offsets stored in the sink. Raises as ``run``,
    ``View`` and ``Sink.apply``."""
    try:
        _keep_beside_others(task, stored, until, line, result, run)
    except Exception:
        if task.view is not None and task.view.result_topic is not None:
            close_view_topic(task.view.result_topic)
        raise


def _keep_beside_others(
    task: Task, stored: Offsets, until: Until, line: DriverLine | None, result: Result, run: Run
) -> None:
    """Run attempts, and report a shard's failure at once; after one that ends by itself, try again. The driver reads a
    shard's result only when all tasks of its batch have ended, and a task that builds a state ends late."""
    assert task.view is not None
    progress, shard = SinkProgress({**task.view.reached, **stored}, task.rejected_before), task.view.shard
    if shard is not None:
        result.shard = shard.number
    retry_s = 0.0
    while True:
        began_s = time.monotonic()
        try:
            return _keep(task, progress, until, line, result, run)
        except Exception as error:
            if shard is None or line is None:
                raise
            ends_by_itself = isinstance(error, Unavailable) and not isinstance(error, DataLost)
            is_first = not retry_s or time.monotonic() - began_s > 2 * RETRY_MOST_S
            retry_s = RETRY_S if is_first else min(2 * retry_s, RETRY_MOST_S)
            failure = replace(Failure.of(error), retry_after_s=retry_s)
            line.send_report(TaskReport(failure=failure, shard=shard.number))
            progress.send({})
            if not (until.goes_on and ends_by_itself):
                raise
            close_sink(task)  # the next attempt starts with a new connection
            if line.is_over_within(retry_s):
                raise


def _keep(task: Task, progress: SinkProgress, until: Until, line: DriverLine | None, result: Result, run: Run) -> None:
    """One attempt. A state that can't go on is built."""
    assert task.view is not None
    assert task.client is not None
    # Fails in a job that another one has replaced, so that it leaves the state to that one.
    sink_for(task).apply(Batch([], fence=task.fence))
    stored, is_to_be_built = ViewRecords(task), False
    while True:
        with opened_state(task, task.view) as state:
            view = View(task.view.plan, task.shapes, state, scratch=Path(task.view.directory), shard=task.view.shard)
            where = task.view.result_topic
            topic = None if where is None else view_topic_for(task.client, where, task.run, state)
            is_to_be_built = is_to_be_built or not can_go_on(task, view, topic, stored, progress.offsets)
            feed = _feed(task, ViewPosition() if is_to_be_built else view.position())
            figures = FiguresNow(view, state.size)
            reports = ViewReports(line, result, progress, feed, figures, goes_on=until.goes_on)
            try:
                run(_steps(task, view, topic, stored, reports, result, builds=is_to_be_built))
                return
            except BuildIsOver:
                return
            except _TooMuch:
                is_to_be_built = True


def _steps(
    task: Task,
    view: View,
    topic: ViewTopic | None,
    stored: ViewRecords,
    reports: ViewReports,
    result: Result,
    *,
    builds: bool,
) -> "ViewSteps":
    """The applier of one attempt, which begins where the state is, or anew."""
    events = ViewEvents(task, reports, result)
    delivery = ViewDelivery(task, view, topic, stored, result, reports)
    build = ViewBuild(task, view, events, delivery, stored, reports) if builds else None
    return ViewSteps(task, view, events, delivery, reports, result, build)


def _feed(task: Task, position: ViewPosition) -> LogFeed:
    """The view's tables and progress records, from the view's position on."""
    assert task.view is not None
    assert task.client is not None
    return LogFeed(
        task.client,
        ViewLog(task.tables, position.offsets, append_only=task.append_only),
        pipeline=task.view.pipeline,
        progress_topic=task.view.progress_topic,
        topics=list(task.tables),
    )


class ViewSteps(Applier):
    """Takes a view from one whole transaction to a later one."""

    def __init__(
        self,
        task: Task,
        view: View,
        events: ViewEvents,
        delivery: ViewDelivery,
        reports: ViewReports,
        result: Result,
        build: ViewBuild | None,
    ) -> None:
        """With ``build`` the state is built anew."""
        assert task.view is not None
        self._task = task
        self._topic = task.view.topic
        self._log_name = task.view.log
        self._view = view
        self._feed = reports.feed
        self._log = reports.feed.log
        self._events = events
        self._delivery = delivery
        self._reports = reports
        self._result = result
        # Set while a state is being built and doesn't have all events yet.
        self._build = build
        self._position = ViewPosition() if build is not None else view.position()
        self._cuts = NextCut(self._log, is_long=reports.are_heard)
        self._end = LogEnd(self._log, result)

    def begin(self) -> Sequence[Range]:
        if self._build is not None or self._view.is_new:
            self._reports.figures.building = BuildProgress()
        if self._build is not None:
            self._view.begin_building(log=self._log_name)
            followed = self._feed.begin(self._position.offsets)
            self._build.begin(followed)
            return followed
        # Before another run adopts it, so that rows which the sink surely has aren't written again, such as an erased
        # mark.
        self._view.confirm(self._reports.progress.offsets)
        if not self._view.is_of(self._task.run):
            self._delivery.take_over(self._task.run)
            self._view.adopt(self._task.run)
        void = self._view.settle(self._delivery.rejected_with)
        self._result.resolved += [(self._topic, orjson.dumps(key)) for key in void]
        self._deliver()  # what a killed batch has left
        return () if self._result.has_more else self._feed.begin(self._position.offsets)

    def take(self, polled: Polled) -> None:
        """Take what was polled, up to the newest cut."""
        self._reports.hear()
        self._result.rows += self._feed.take(polled)
        log, window_bytes = self._log, self._task.window_bytes
        if log.bytes > window_bytes:
            if self._build is not None:
                self._build.keep(log.take_all())
            elif log.bytes > _HELD_WINDOWS * window_bytes:
                raise _TooMuch
        if (cut := self._cuts.find(time.monotonic(), waits=log.waits)) is not None:
            with self._reports.at_work():
                self._take_in(cut)

    def needs_driver(self) -> bool:
        if self._events.are_kept_first:
            return True
        return bool(self._result.rejected or self._result.resolved) and not self._reports.are_kept()

    def report(self, now_s: float) -> None:
        if self._build is not None:
            self._build.note_read()
        self._reports.send(now_s)

    def is_at_end(self, now_s: float) -> bool:
        return self._end.is_reached(now_s, is_taken_in=self._build is None and not self._log.waits)

    def end(self) -> None:
        self._result.view = self._reports.figures()

    def _take_in(self, cut: Cut) -> None:
        if (cut.epoch, cut.lsn) < (self._position.epoch, self._position.lsn):
            return
        taken = self._log.take(cut)
        if self._build is not None:
            self._build.keep(taken.records)
            if self._events.report_rows():
                return
            self._build.end(cut, taken)
            self._build = None
        elif self._is_nothing_new(cut, taken) or not self._step(cut, taken):
            return
        self._position = self._view.position()
        self._cuts.was_taken(time.monotonic())
        self._result.commit_time_ms = max(self._result.commit_time_ms, cut.commit_time_ms)
        self._deliver()

    def _is_nothing_new(self, cut: Cut, taken: Taken) -> bool:
        if taken.records is not None:
            return False
        is_there = self._position.offsets == taken.next_offsets or not self._cuts.is_due(time.monotonic())
        return is_there and not self._view.is_due(cut.commit_time_ms)  # time goes on even if nothing else happens

    def _step(self, cut: Cut, taken: Taken) -> bool:
        """Take in whole transactions. False if the driver must store left-out rows first."""
        events = [] if taken.records is None else list(self._view.own_events(self._events.decoded(taken.records)))
        if self._events.report_rows():
            return False
        try:
            self._view.step(
                events,
                epoch=cut.epoch,
                lsn=cut.lsn,
                offsets=taken.next_offsets,
                transactions=taken.transactions,
                time_ms=cut.commit_time_ms,
            )
        except FanOutExceeded:
            # The limit is for the changes of one transaction. The changes of many are built in slices instead.
            if taken.transactions == 1:
                raise
            raise _TooMuch from None
        return True

    def _deliver(self) -> None:
        self._delivery.deliver(self._feed.of_topics(self._view.position().offsets))
