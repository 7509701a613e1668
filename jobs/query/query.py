"""One Structured Streaming query of a sink's job, and its batches: sends records from the log to the tasks, stores
results. ``jobs.query.threads`` lists the threads beside it."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from cdc.model.timeouts import BATCH_ENDS_S
from jobs.dead_letters.store import DeadLetters
from jobs.executor.task_input import Task
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease
from jobs.query.applied import Applied
from jobs.query.batch_ranges import BatchPlan
from jobs.query.batches import Batches, Ran, RowBatches, Slots, WholeBatches
from jobs.query.captured_tables import CapturedWatch
from jobs.query.delivery import Delivery, Stopping, only_stopping
from jobs.query.failures import spark_error
from jobs.query.idle_wait import IdleWait, look_every_s
from jobs.query.log_bell import listener_to
from jobs.query.long_batch_listener import SLOTS, LongBatches
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_feed import ProgressFeed
from jobs.query.rejections import Rejections
from jobs.query.sink_plan import SinkPlan
from jobs.query.task_maps import TaskMaps
from jobs.query.threads import (
    POLL_S,
    QueryState,
    beat,
    fill_columns,
    follow_watermark,
    keep_lease,
    listen_to_log,
    listen_to_tasks,
    report_long_batches,
    side_threads,
)
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_figures import FiguresKeeper
from jobs.query.whole_progress import WholeProgress
from jobs.report import Reporter, SinkStarted, SinkWaiting
from jobs.spark.batch_call import BatchCall
from jobs.spark.jvm import stop_query, text_of
from jobs.spark.source import clock_frame
from sinks.contract import TopicPartition

_END_LOOK_S: Final = 0.2
"""How soon a query notices that it must end; the gate wakes everything else."""

_LOOK_S: Final = 1.0
"""How often to ask Spark whether a query without an end of its own goes on: that is a call into the JVM."""


@dataclass(frozen=True)
class QueryPlan:
    """What a query is made of.

    ``topics`` watches the topics, and ``partitions`` are all of theirs. ``news`` is set when something was published.

    ``backfill`` gives older rows the columns that they lack, if any, and returns whether it is done; if not, the gate
    was closed. ``lacks_step``: a consistent sink lacks its first step, which it takes even with nothing to read.
    ``goes_on``: batches may be long ones.

    ``captured`` says whether the sink should have other tables by now: then the query ends. ``uncopied`` are the topics
    of tables that it doesn't read yet, since their copy hasn't begun. ``begin`` is called before the first task, to
    store what is read from then on. If it returns False, it had nothing to store yet and is called again before the
    next batch.

    ``held`` are the topics of the sink's tables that are held: their rejections count among the open ones.
    """

    sink: SinkPlan
    task: Task
    topics: TopicWatch
    partitions: Sequence[TopicPartition]
    news: Event
    backfill: Callable[[BatchGate], bool] | None = None
    lacks_step: bool = False
    goes_on: bool = False
    captured: CapturedWatch | None = None
    uncopied: Sequence[str] = ()
    begin: Callable[[], bool] = lambda: True
    held: Sequence[str] = ()


class SinkQuery:
    """One query: its batches, its watermark, its end."""

    def __init__(
        self,
        plan: QueryPlan,
        spark: SparkSession,
        keeper: ProgressKeeper,
        lease: GenerationLease,
        *,
        stop: Event,
        leaving: Event,
        report: Reporter,
    ) -> None:
        """``stop`` ends this query. ``leaving`` sets ``stop``, and says that no other query follows in this process."""
        sink, task = plan.sink, plan.task
        self._plan = plan
        self._spark = spark
        self._keeper = keeper
        self._lease = lease
        self._stop = stop
        self._leaving = leaving
        self._report = report
        self._state = QueryState(plan.news)
        # A column backfill runs beside the batches: newer tags win.
        self._gate = BatchGate(at_once=2)
        # What the last batch says about the next one.
        self._ran = Ran(may_rest=not (sink.once or plan.lacks_step), looks_now=True)
        self._batches, self._applied, self._lines = self._made_batches()
        client = sink.kafka.client()
        self._bell = listener_to(client, sink.pipeline)
        reader = ProgressReader(client, sink.pipeline, [*task.tables, *plan.uncopied], watched=task.tables.keys())
        # In a bulk load the tables stay.
        on_change = stop if sink.takes_up else None
        self._feed = ProgressFeed(
            task, reader, self._bell, plan.topics, keeper, plan.captured, on_change=on_change, report=report
        )
        lease.guard(self._gate)
        lease.tells(keeper.read_so_far)

    def _made_batches(self) -> tuple[Batches, Applied, LongBatches | None]:
        """The batches, and the listener to their tasks."""
        plan, task, sink, topics = self._plan, self._plan.task, self._plan.sink, self._plan.topics
        client, cluster = sink.kafka.client(), TopicAdmin(sink.kafka.client())
        letters = DeadLetters(client, sink.pipeline, sink=task.sink, generation=task.generation, report=self._report)
        own = [] if task.view is None else [task.view.topic]
        rejections = Rejections(
            task.sink,
            letters,
            letters.read([*task.tables, *plan.held, *own]),
            self._lease,
            tables=None if task.reads_whole_transactions else task.tables,
            max_open=sink.settings.max_open_rejections,
        )
        progress = WholeProgress(task, self._keeper)
        figures = FiguresKeeper(self._lease, task.sink, task.generation, self._report)
        check = partial(topics.check, cluster, task.tables.keys())
        applied = Applied(task, progress, rejections, figures, topics, check, self._state, self._report)
        count = 1 if progress.shards is None else progress.shards.count
        # A view's task also reports the progress of a build, even in a batch that ends with the log.
        lines = None
        if plan.goes_on or task.view is not None:
            lines = LongBatches(self._gate, applied.hear, is_behind=progress.is_behind, is_shared=count > 1)
        delivery = Delivery(
            task.sink,
            TaskMaps(
                task,
                self._keeper,
                rejections,
                socket=None if lines is None else lines.path,
                rows_max=sink.limits.small_records,
            ),
            topics,
            cluster,
            self._gate,
            on_attempt=(lambda: None) if lines is None else lines.begin,
            begin=plan.begin,
            report=self._report,
        )
        planned = BatchPlan(sink, plan.partitions, self._keeper, topics, cluster)
        tasks_at_once = self._spark.sparkContext.defaultParallelism
        slots = Slots(SLOTS, count=count, tasks_at_once=tasks_at_once, goes_on=plan.goes_on)
        if task.reads_whole_transactions:
            whole = WholeBatches(sink, task, planned, progress, delivery, applied, slots, self._is_over)
            return whole, applied, lines
        return RowBatches(sink, planned, self._keeper, delivery, applied, slots, self._state), applied, lines

    def run(self) -> None:
        """Run the query to its end. Raises Unavailable or LockstepError with the first cause, or one of JVM_ERRORS."""
        task = self._plan.task
        try:
            # Before the first batch: this sink lacks all that was published while it was away.
            self._feed.learn()
            beat(self._lease)  # somebody may have asked for a pause before the query began
            self._report(SinkStarted(task.sink, task.generation))
            query = self._run_to_end()
        finally:
            self._feed.close()
            if self._lines is not None:
                self._lines.close()
        self._raise_failure(query)

    def _run_to_end(self) -> StreamingQuery:
        """Start Spark's query and the side threads, and wait for its end. Ends it when the job is asked to stop."""
        state, sink = self._state, self._plan.task.sink
        targets: dict[str, Callable[[], None]] = {
            "watermark": partial(follow_watermark, state, sink, self._learn, self._report),
            "heartbeat": partial(keep_lease, state, self._lease),
            "batches": partial(report_long_batches, state, self._plan.sink, self._report),
        }
        if self._lines is not None:
            targets["tasks"] = partial(listen_to_tasks, state, self._lines.serve)
        if self._plan.backfill is not None:
            state.filling.set()
            targets["columns"] = partial(fill_columns, state, partial(self._fill, self._plan.backfill))
        with (
            side_threads(state, sink, targets, not_awaited={"log": partial(listen_to_log, state, self._bell)}),
            # Spark stores each tick of its clock there. Nobody reads them.
            tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True) as ticks,
        ):
            call = BatchCall(self._batch)
            query = self._start(call, Path(ticks).as_uri())
            self._wait_for(query)
            if self._end(query):
                call.close()
        return query

    def _wait_for(self, query: StreamingQuery) -> None:
        """Return when Spark has ended the query, or it must be ended."""
        look_at = 0.0
        while not self._is_over():
            if time.monotonic() >= look_at:
                if not self._goes_on(query):
                    return
                look_at = time.monotonic() + (POLL_S if self._plan.sink.once else _LOOK_S)
            self._state.ended.wait(POLL_S if self._plan.sink.once else _END_LOOK_S)

    def _learn(self) -> bool:
        return self._feed.learn(is_last=self._state.ended.is_set())

    def _is_over(self) -> bool:
        if self._leaving.is_set():
            self._stop.set()
        return self._stop.is_set() or self._state.failure is not None

    def _goes_on(self, query: StreamingQuery) -> bool:
        return query.isActive or (self._state.filling.is_set() and query.exception() is None)

    def _fill(self, backfill: Callable[[BatchGate], bool]) -> None:
        if backfill(self._gate):
            self._keeper.release_watermark()

    def _start(self, call: BatchCall, ticks: str) -> StreamingQuery:
        # Its plans only tell tasks what to read: making Java classes for them costs more than they gain.
        self._spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        writer = (
            clock_frame(self._spark)
            .writeStream.foreachBatch(call)
            .option("checkpointLocation", ticks)
            .queryName(f"{self._plan.task.sink}-g{self._plan.task.generation}-{time.monotonic_ns()}")
        )
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if self._plan.sink.once
            else {"processingTime": f"{self._plan.sink.spark.trigger_ms} milliseconds"}
        )
        return writer.trigger(**trigger).start()

    def _rest(self, *, look_now: bool = False) -> None:
        state = self._state
        state.resting.set()
        try:
            IdleWait(
                wait=state.wait_woken,
                is_behind=lambda: self._keeper.is_behind,
                has_more=self._batches.has_more,
                look_s=look_every_s(len(self._plan.partitions)),
                is_over=lambda: self._is_over() or state.ended.is_set() or self._gate.is_closed,
            ).until_news(look_now=look_now)
        finally:
            state.resting.clear()
            state.batch_done.set()

    def _end(self, query: StreamingQuery) -> bool:
        """Let the running batch finish, and stop the query. Returns whether it has ended. That may take as long as a
        server that hangs. A job that leaves waits for a bounded time. Otherwise the next query must wait, since two at
        once would fence each other off."""
        limit_s = BATCH_ENDS_S
        self._gate.close(0)  # also ends a column backfill and an idle wait
        self._state.woken.set()
        while True:
            self._gate.close(limit_s)
            if stop_query(query):
                return True
            message = f"the last batch of sink {self._plan.task.sink!r} hasn't ended yet"
            if self._leaving.is_set():  # it ends with the process, and its batch is read again
                self._state.keep_failure(LockstepError(message))
                return False
            self._report(SinkWaiting(self._plan.task.sink, message, limit_s))

    def _batch(self, frame: DataFrame, _: int) -> None:
        """foreachBatch: wait for something to apply, and apply it."""
        with only_stopping(self._state):
            if self._ran.may_rest:
                self._rest(look_now=self._ran.looks_now)
            self._ran = self._run_one(frame.sparkSession)
            while self._ran.had_any and self._plan.sink.once:
                self._ran = self._run_one(frame.sparkSession)

    def _run_one(self, spark: SparkSession) -> Ran:
        """Run one batch, once nobody wants the gate."""
        if self._is_over() or not self._gate.enter():
            raise Stopping
        applied = self._applied
        applied.part_began_s = time.monotonic()
        self._state.planned_rows = 0
        self._state.under_way = (applied.batch_id + 1, applied.part_began_s)
        try:
            return self._batches.run(spark)
        finally:
            self._state.under_way = None
            self._gate.leave()
            self._state.batch_done.set()

    def _raise_failure(self, query: StreamingQuery) -> None:
        failure = self._state.failure
        if isinstance(failure, LockstepError):
            raise failure
        if self._stop.is_set():
            return  # an interrupted batch is read again
        if failure is not None:
            raise failure
        error = query.exception()
        if error is not None:
            raise spark_error(self._plan.task.sink, text_of(error))
