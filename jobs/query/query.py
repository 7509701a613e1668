"""One Structured Streaming query of a sink's job, and its batches: records from the log to the tasks, results kept.

``jobs.query.threads`` lists the threads beside it.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import DataLost, LockstepError, PositionMismatch, Unavailable
from cdc.model.timeouts import BATCH_ENDS_S
from cdc.protocol.control_records import ProgressRecord
from jobs.clock import now_ms
from jobs.dead_letters.limit import TooManyOpen
from jobs.dead_letters.store import DeadLetters
from jobs.executor.driver_line import Told, Until
from jobs.executor.follow import deliver
from jobs.executor.log_reader import Range, open_ranges, ranges, spread
from jobs.executor.result import RESULT_SCHEMA, RejectedEvent, Result, check_rejections, from_arrow
from jobs.executor.task_input import Task
from jobs.executor.view_shards import told_to_shard
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease
from jobs.offsets import Offsets
from jobs.query.batch_plan import BatchPlan
from jobs.query.captured_tables import CapturedWatch
from jobs.query.failures import Backoff, spark_error
from jobs.query.log_bell import listener_to
from jobs.query.long_batch_listener import SLOTS, LongBatches
from jobs.query.progress import ProgressKeeper
from jobs.query.rest import Rest, look_every_s
from jobs.query.sink_plan import SinkPlan
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
    store_told,
)
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_figures import FiguresKeeper
from jobs.query.view_shards import ViewShards
from jobs.report import LacksRecord, Reporter, SinkStarted, SinkWaiting, StatusReport, WatermarkRaised
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.batch_call import BatchCall
from jobs.spark.jvm import stop_query, text_of
from jobs.spark.source import clock_frame, range_frame
from sinks.contract import NOTHING_WRITTEN, Progress, TablesRefused, TopicPartition
from views.retention import whole_minutes

_TASKS_MAX: Final = 32
_TASKS_MAX_PER_CORE: Final = 4
"""A batch has no more tasks than the greater of both, however many partitions it reads: each costs milliseconds."""

_TOPICS_MAX: Final = 64
"""Tasks are told of no more topics than these, unless their batch has more: each costs a kilobyte to carry and read."""

_PLANS_MAX: Final = 4
"""A query asks the brokers so often where its next batch ends. Then the next query begins."""

_END_LOOK_S: Final = 0.2
"""How soon a query ends that is to end: the gate wakes everybody else."""

_LOOK_S: Final = 1.0
"""How often Spark is asked whether a query goes on that has no end of its own: that is a call into the JVM."""


class _Stopping(Exception):
    """Ends a query from inside its batch because the job is asked to stop."""


@dataclass(frozen=True)
class QueryPlan:
    """What a query is made of.

    ``topics`` watches them, and ``partitions`` are all of theirs. ``news`` is set when something was published.
    ``backfill`` gives rows from before the columns that they lack, where there are any. It returns whether all is done;
    else the gate was closed. ``lacks_step``: a consistent sink lacks its first step, which is taken also where nothing
    is to be read. ``goes_on``: batches may be long ones.
    ``captured`` says whether the
    sink is to have other tables by now: then the query ends. ``uncopied`` are the topics of those that it doesn't read
    yet, since their copy hasn't begun. ``begin`` is called before the first task: it keeps what is read from then on.
    Where it says that it had nothing to keep yet, it is called again before the next one.
    ``aside`` are the topics of the sink's tables that are set aside: their rejections count among those that are open.
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
    aside: Sequence[str] = ()


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
        """``stop`` ends this query; ``leaving`` does so too, and says that no other one follows in this process.

        ``leaving`` sets ``stop``.
        """
        self._plan = plan.sink
        self._spark = spark
        self._task = plan.task
        self._keeper = keeper
        self._backfill = plan.backfill
        self._stop = stop
        self._leaving = leaving
        self._report = report
        client = self._plan.kafka.client()
        task = plan.task
        self._dead_letters = DeadLetters(
            client, self._plan.pipeline, sink=task.sink, generation=task.generation, report=report
        )
        own = [] if task.view is None else [task.view.topic]
        self._rejections = self._dead_letters.read([*task.tables, *plan.aside, *own])
        self._progress_reader = ProgressReader(
            client, self._plan.pipeline, [*task.tables, *plan.uncopied], watched=task.tables.keys()
        )
        self._captured = plan.captured
        self._unlearned: list[ProgressRecord] = []
        self._cluster = TopicAdmin(client)
        self._topics = plan.topics
        self._batch_plan = BatchPlan(self._plan, plan.partitions, keeper, plan.topics, self._cluster)
        self._look_s = look_every_s(len(plan.partitions))
        self._batch_minute_ms = 0
        # Whether to wait for something to read before the next batch, and whether to look at once.
        self._may_rest = not (self._plan.once or plan.lacks_step)
        self._looks_now = True
        self._bell = listener_to(client, self._plan.pipeline)
        # What tasks run, by whether a batch is long, and the topics that it was made for. Made anew where it has to be.
        self._writers: dict[bool, tuple[frozenset[str], ArrowMap]] = {}
        self._keeping = threading.Lock()  # rejections also come from the thread that listens to tasks
        self._rejected_since = 0  # those that it has kept since the last report
        self._tasks_max = max(_TASKS_MAX, _TASKS_MAX_PER_CORE * spark.sparkContext.defaultParallelism)
        self._state = QueryState(plan.news)
        # A column backfill goes on beside the batches: newer tags win.
        self._gate = BatchGate(at_once=2)
        self._takes_slots = plan.goes_on
        # A view's task also tells how far a building is in a batch that ends by itself.
        view = plan.task.view
        self._shard_count = 1 if view is None else max(1, len(view.shards))
        self._shards: ViewShards | None = None
        self._long_batches = self._make_long_batches() if plan.goes_on or plan.task.view is not None else None
        self._figures = FiguresKeeper(lease, plan.task.sink, plan.task.generation, report)
        self._batch_id, self._part_began = -1, 0.0
        self._is_told_stored = True
        self._lease = lease
        lease.guard(self._gate)
        lease.tells(keeper.read_so_far)
        self._begin = plan.begin
        self._has_begun = False

    def run(self) -> None:
        """Run the query to its end. Raises Unavailable or LockstepError with the first cause, or one of JVM_ERRORS."""
        try:
            # Before the first batch: this sink lacks all that was published while it was away.
            self._read_progress()
            beat(self._lease)  # somebody may have asked for a pause before we came
            self._load_shards()
            self._report(SinkStarted(self._task.sink, self._task.generation))
            query = self._run_to_end()
        finally:
            self._progress_reader.close()
            if self._long_batches is not None:
                self._long_batches.close()
        self._raise_failure(query)

    def _load_shards(self) -> None:
        view = self._task.view
        if view is not None and view.shards:
            stored, count = self._keeper.shards, self._shard_count
            self._shards = ViewShards.of_progress(stored, count=count, reached=view.reached)

    def _run_to_end(self) -> StreamingQuery:
        """Start Spark's query, and wait until it has ended. End it when the job is asked to stop.

        The side threads run meanwhile.
        """
        state, sink = self._state, self._task.sink
        targets: dict[str, Callable[[], None]] = {
            "watermark": partial(follow_watermark, state, sink, self._read_progress, self._report),
            "heartbeat": partial(keep_lease, state, self._lease),
            "batches": partial(report_long_batches, state, self._plan, self._report),
        }
        if self._long_batches is not None:
            targets["tasks"] = partial(listen_to_tasks, state, self._long_batches.serve)
        if self._backfill is not None:
            state.filling.set()
            targets["columns"] = partial(fill_columns, state, partial(self._fill, self._backfill))
        with (
            side_threads(state, sink, targets, not_awaited={"log": partial(listen_to_log, state, self._bell)}),
            # Spark stores each tick of its clock there. Nobody reads that.
            tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True) as ticks,
        ):
            call = BatchCall(self._batch)
            query = self._start(call, Path(ticks).as_uri())
            self._wait_for(query)
            if self._end(query):
                call.close()
        return query

    def _wait_for(self, query: StreamingQuery) -> None:
        """Return when Spark has ended the query, or it is to be ended."""
        look_at = 0.0
        while not self._is_over():
            if time.monotonic() >= look_at:
                if not self._goes_on(query):
                    return
                look_at = time.monotonic() + (POLL_S if self._plan.once else _LOOK_S)
            self._state.ended.wait(POLL_S if self._plan.once else _END_LOOK_S)

    def _is_over(self) -> bool:
        if self._leaving.is_set():
            self._stop.set()
        return self._stop.is_set() or self._state.failure is not None

    def _goes_on(self, query: StreamingQuery) -> bool:
        return query.isActive or (self._state.filling.is_set() and query.exception() is None)

    def _fill(self, backfill: Callable[[BatchGate], bool]) -> None:
        if backfill(self._gate):
            self._keeper.release_watermark()

    def _writer(self, topics: Collection[str], *, is_long: bool) -> ArrowMap:
        """What tasks run for a batch with records of these topics."""
        with self._keeping:
            return self._written_by(topics, is_long=is_long)

    def _written_by(self, topics: Collection[str], *, is_long: bool) -> ArrowMap:
        if self._task.versions:
            self._writers.clear()  # it says since when versions may have been compacted
        known = self._writers.get(is_long)
        if known is not None and known[0].issuperset(topics):
            return known[1]
        if self._task.reads_whole_transactions:
            topics = self._task.tables.keys()
        told = told_topics(topics, frozenset() if known is None else known[0], self._task.tables)
        task = replace(
            self._task,
            rejected_before=dict(self._rejections),
            complete_at_ms=self._keeper.complete_at_ms if self._task.versions else 0,
        ).only(told)
        hears = self._long_batches is not None and (is_long or task.view is not None)
        until = Until(
            goes_on=is_long,
            socket=self._long_batches.path if self._long_batches is not None and hears else None,
            rows_max=self._plan.spark.small_batch_rows,
        )
        self._writers[is_long] = told, ArrowMap(partial(deliver, task, until), RESULT_SCHEMA)
        return self._writers[is_long][1]

    def _make_long_batches(self) -> LongBatches:
        return LongBatches(self._gate, self._told, is_behind=self._is_behind, is_shared=self._shard_count > 1)

    def _is_behind(self, shard: int | None) -> bool:
        """Whether more is known to be published than a task has. A shard that is ahead waits for others."""
        shards = self._shards
        return self._keeper.is_behind and (shard is None or shards is None or not shards.is_ahead(shard))

    def _start(self, call: BatchCall, ticks: str) -> StreamingQuery:
        # Its plans tell tasks what to read: Java classes for them would take longer to make than they are of use.
        self._spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        writer = (
            clock_frame(self._spark)
            .writeStream.foreachBatch(call)
            .option("checkpointLocation", ticks)
            .queryName(f"{self._task.sink}-g{self._task.generation}-{time.monotonic_ns()}")
        )
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if self._plan.once
            else {"processingTime": f"{self._plan.spark.trigger_ms} milliseconds"}
        )
        return writer.trigger(**trigger).start()

    def _rest(self, *, look_now: bool = False) -> None:
        """Wait until there is something to read, or the query is to end."""
        state = self._state
        state.resting.set()
        try:
            Rest(
                wait=state.wait_woken,
                is_behind=lambda: self._keeper.is_behind,
                has_more=lambda: self._batch_plan.has_more() or self._time_has_passed(),
                look_s=self._look_s,
                is_over=lambda: self._is_over() or state.ended.is_set() or self._gate.is_closed,
            ).until_news(look_now=look_now)
        finally:
            state.resting.clear()
            state.batch_done.set()

    def _time_has_passed(self) -> bool:
        """Whether rows of a view's tables may have become too old since its last batch, though nothing has come."""
        view = self._task.view
        return (
            view is not None
            and bool(view.plan.retained)
            and whole_minutes(self._keeper.commit_time_ms) > self._batch_minute_ms
        )

    def _end(self, query: StreamingQuery) -> bool:
        """Let the running batch finish, and stop the query. Whether it has ended.

        That may take as long as a server that hangs. Who leaves waits for a bounded time. Else the next query has to
        wait, since two at once would fence each other off.
        """
        limit_s = BATCH_ENDS_S
        self._gate.close(0)  # a column backfill ends there too, and a rest
        self._state.woken.set()
        while True:
            self._gate.close(limit_s)
            if stop_query(query):
                return True
            message = f"the last batch of sink {self._task.sink!r} hasn't ended yet"
            if self._leaving.is_set():  # it ends with the process, and is read again
                self._state.keep_failure(LockstepError(message))
                return False
            self._report(SinkWaiting(self._task.sink, message, limit_s))

    def _batch(self, frame: DataFrame, _: int) -> None:
        """foreachBatch: apply what there is, once there is something. Spark hears of no failure but _Stopping.

        It looks for its own words in the text of what is raised here, and its stack overflows on a JVM's trace.
        """
        try:
            if self._may_rest:
                self._rest(look_now=self._looks_now)
            while self._run_one(frame) and self._plan.once:
                pass
        except Exception as error:
            if not isinstance(error, _Stopping):
                self._state.keep_failure(error)
            raise _Stopping from None

    def _run_one(self, frame: DataFrame) -> bool:
        """One batch. All of it is durable by its end. Whether there was anything to do."""
        if self._is_over() or not self._gate.enter():
            raise _Stopping
        self._part_began = time.monotonic()
        self._state.planned_rows = 0
        self._state.under_way = (self._batch_id + 1, self._part_began)
        try:
            if not self._task.reads_whole_transactions:
                return self._run_batch(frame)
            self._run_whole_batch(frame)
            return False
        finally:
            self._state.under_way = None
            self._gate.leave()
            self._state.batch_done.set()

    def _run_batch(self, frame: DataFrame) -> bool:
        """Plan a batch of a sink that gets rows as they come, and apply it. Whether there was anything to do."""
        starts, ends = self._planned()
        # Whether one task is quicker than one per partition. Offsets count gaps too; that only errs to the safe side.
        wanted_ranges = ranges(starts, ends)
        rows_at_most = self._state.planned_rows = sum(ends[part.at] - starts[part.at] for part in wanted_ranges)
        is_small = rows_at_most <= self._plan.spark.small_batch_rows
        # Before any of it is applied: what a recreated topic has isn't what comes next. And before a slot is taken,
        # which nobody would give back.
        self._topics.check(self._cluster, {part.topic for part in wanted_ranges})
        is_long = is_small and self._takes_slot()
        self._may_rest = not (is_long or self._plan.once)
        # After a large one there may be more that no progress record tells of, as rows of a first copy.
        self._looks_now = not is_small
        if not (is_long or wanted_ranges):
            return False
        self._batch_id += 1
        if is_long:
            try:
                # From there on again with each attempt: it may have come far before it failed.
                result = self._deliver(
                    lambda: range_frame(frame.sparkSession, [open_ranges({**starts, **self._keeper.positions}, ends)]),
                    {topic for topic, _ in ends},
                    is_long=True,
                )
            finally:
                SLOTS.give_back()
            # A long batch tells where it is, past the markers of transactions; no row has stored that.
            written: Mapping[TopicPartition, int] = NOTHING_WRITTEN
        else:
            # Its tasks tell nothing before their end: what they are to read counts as read.
            self._keeper.read_to(ends)
            tasks = spread(wanted_ranges, tasks_max=1 if is_small else self._tasks_max)
            records = range_frame(frame.sparkSession, tasks)
            result = self._deliver(lambda: records, {part.topic for part in wanted_ranges}, is_long=False)
            written = result.next_offsets
        self._keep_rejections(result)
        reached = {at: max(end, result.next_offsets.get(at, 0)) for at, end in ends.items()}
        self._report_applied(
            result, self._keeper.batch_applied(reached, rejected=len(result.rejected), written=written)
        )
        return True

    def _planned(self) -> tuple[Offsets, Offsets]:
        """Where the next batch begins and ends. Raises as ``BatchPlan.next``, and Unavailable only after some tries.

        The next query looks whether single topics are gone, or may not be read any more, and goes on with the others.
        """
        backoff = Backoff()
        for _ in range(_PLANS_MAX - 1):
            try:
                return self._batch_plan.next()
            except DataLost:
                raise
            except Unavailable as error:
                self._wait_out(error, backoff)
        return self._batch_plan.next()

    def _run_whole_batch(self, frame: DataFrame) -> None:
        """The same where the task says by itself what it reads: a view's state, or the sink, knows how far it is."""
        self._batch_id += 1
        # Before its tasks look: they know of as much, or more.
        self._batch_minute_ms = max(self._batch_minute_ms, whole_minutes(self._keeper.commit_time_ms))
        topics = self._task.tables.keys()
        self._topics.check(self._cluster, topics)
        is_long = self._takes_slot()
        result = Result()
        refused: dict[tuple[str, bytes], RejectedEvent] = {}

        def told() -> DataFrame:
            # Asked for again by each attempt: a long batch may have come far before it failed.
            if (shards := self._shards) is not None:
                told = [told_to_shard(number, shards.stored(number)) for number in range(shards.count)]
                return range_frame(frame.sparkSession, told)
            reached = [Range(*at, 0, offset) for at, offset in self._keeper.reached.items()]
            return range_frame(frame.sparkSession, [reached])

        try:
            while True:
                part = self._deliver(told, topics, is_long=is_long)
                # A task ends for the size of its rejections, so each part alone may have few of them.
                refused = {at: event for at, event in refused.items() if at not in part.resolved}
                refused |= {(event.position.topic, event.key): event for event in part.rejected}
                check_rejections(self._task.sink, list(refused.values()))
                self._keep_rejections(part)
                # There may be many parts, and these values are kept now.
                part.rejected = [replace(event, value=None) for event in part.rejected]
                refused |= {(event.position.topic, event.key): event for event in part.rejected}
                result.add(part)
                if not part.has_more or self._is_over():
                    break
        finally:
            if is_long:
                SLOTS.give_back(self._shard_count)
        if self._shards is not None:
            self._reach_of_shards(result, self._shards)
        if result.view is not None:
            self._figures.told(result.view, is_last=True)
        if result.next_offsets:
            progress = self._store_whole(result.next_offsets, rejected=len(result.rejected))
            self._report_applied(result, progress)
            if result.lacks_record and self._plan.once:
                at = self._plan.name, self._plan.generation, progress.watermark_lsn
                self._report(LacksRecord(*at, awaits_copy=result.awaits_copy))
        elif result.lacks_record and self._plan.once and not self._plan.bulk:  # after a bulk load another job goes on
            what = "view" if self._task.steps is None else "sink"
            raise lacks_record(f"{what} {self._plan.name!r}", awaits_copy=result.awaits_copy)
        self._may_rest = not is_long
        self._looks_now = bool(result.rejected or result.resolved)  # it may have ended for these alone

    def _reach_of_shards(self, result: Result, shards: ViewShards) -> None:
        """How far the shards of a view are, and with them the view. It is nowhere new before all have said so."""
        for shard, reached in result.reached.items():
            shards.reach(shard, reached)
        for shard, figures in result.views.items():
            result.view = shards.figures(shard, figures) or result.view
        if len(result.reached) == shards.count:
            result.next_offsets = shards.least

    def _takes_slot(self) -> bool:
        """Whether this batch may be a long one; then the slot has to be given back."""
        return self._takes_slots and SLOTS.take(self._spark.sparkContext.defaultParallelism, self._shard_count)

    def _told(self, told: Told) -> bool:
        """What a long batch has applied, in the thread that listens to it. Rejections come with its result, but for
        those of a view's shards.

        Returns whether that is stored, and all that was told before.
        """
        # One that is behind and doesn't get on may be deaf, or its destination hangs: that is to be reported.
        if told.is_at_work or not self._keeper.is_behind:
            self._state.heard_at = time.monotonic()
        figures, shards = told.view, self._shards
        if shards is not None and told.shard is not None and figures is not None:
            figures = shards.figures(told.shard, figures)
        if figures is not None:
            self._figures.told(figures)
        if told.read and shards is None:  # what one shard has read, others may not have
            self._keeper.read_to(told.read)
        if told.failure is not None:
            self._hear_failure(told.failure.error())
        if (told.rejected or told.resolved) and not self._keep_told(told):
            self._is_told_stored = False
            return False
        if not told.next_offsets:
            return self._is_told_stored
        self._topics.heard_of({topic for topic, _ in told.next_offsets})
        self._state.look_first()

        def store() -> Progress:
            if shards is not None and told.shard is not None:
                shards.reach(told.shard, told.next_offsets)
            return self._store_whole(told.next_offsets, rejected=0)

        progress = store_told(self._state, store)
        if progress is not None:
            self._report_applied(told, progress)
            self._state.has_stored(progress.watermark_lsn)
        self._is_told_stored = progress is not None
        return self._is_told_stored

    def _keep_told(self, told: Told) -> bool:
        """Keep what was rejected in the middle of a batch. Whether that is done: its task goes on then.

        Else it comes again with the batch's result. What doesn't end by itself ends the query.
        """
        try:
            self._keep_rejections(told)
        except Unavailable as error:
            if isinstance(error, DataLost):
                self._state.fail(error)
            return False
        except Exception as error:
            self._state.fail(error)
            return False
        self._keeper.count_rejected(len(told.rejected))
        self._rejected_since += len(told.rejected)
        return True

    def _hear_failure(self, error: LockstepError) -> None:
        """One shard of a view fails. The batch may go on for long: another one is being built.

        What doesn't end by itself ends the query, as it does where the batch ends with it.
        """
        if isinstance(error, Unavailable) and not isinstance(error, DataLost):
            self._report(SinkWaiting(self._task.sink, error.message, error.retry_after_s))
            return
        try:
            if isinstance(error, PositionMismatch):
                self._topics.check(self._cluster, self._task.tables.keys())
        except LockstepError as named:
            error = named
        self._state.fail(error)

    def _store_whole(self, next_offsets: Offsets, *, rejected: int) -> Progress:
        """Store that all below these offsets is applied, or where a view's shards are. Returns the progress.

        Raises as ``ProgressKeeper.batch_applied``.
        """
        if self._shards is not None:
            return self._shards.store(
                lambda least, reached: self._keeper.batch_applied(least, rejected=rejected, shards=reached)
            )
        # A consistent sink has stored them with its rows. A view's state may have got on without any.
        written = NOTHING_WRITTEN if self._task.steps is None else next_offsets
        return self._keeper.batch_applied(next_offsets, rejected=rejected, written=written)

    def _report_applied(self, part: Result | Told, progress: Progress) -> None:
        rejected, self._rejected_since = self._rejected_since, 0
        if isinstance(part, Result):
            rejected += len(part.rejected)
        began, self._part_began = self._part_began, time.monotonic()
        self._report(
            StatusReport(
                sink=self._task.sink,
                generation=self._task.generation,
                batch_id=self._batch_id,
                rows=part.rows,
                applied=part.applied,
                stale=part.stale,
                rejected=rejected,
                duration_ms=round((self._part_began - began) * 1000),
                watermark_lsn=progress.watermark_lsn,
            )
        )

    def _deliver(self, records: Callable[[], DataFrame], topics: Collection[str], *, is_long: bool) -> Result:
        """Apply a batch's records, which are of these topics: one pass. Waits while the destination doesn't answer."""
        if not self._has_begun:
            self._has_begun = self._begin()
        backoff = Backoff()
        while True:
            if self._long_batches is not None:
                self._long_batches.begin()
            work = self._writer(topics, is_long=is_long)(records())
            result = from_arrow(work.toArrow())
            errors = [failure.error() for failure in result.failures if failure.table is None]
            of_tables = {each.table: each.error() for each in result.failures if each.table is not None}
            if of_tables:
                errors.append(TablesRefused(of_tables))
            # What needs somebody comes before what ends by itself.
            errors.sort(key=lambda error: isinstance(error, Unavailable))
            if not errors:
                return result
            first = errors[0]
            if isinstance(first, PositionMismatch):
                self._topics.check(self._cluster, topics)  # which names the way out, where a topic isn't the same
            if isinstance(first, DataLost) or not isinstance(first, Unavailable):
                raise first  # the next query begins at what the destination has
            self._wait_out(first, backoff)

    def _wait_out(self, error: Unavailable, backoff: Backoff) -> None:
        """Wait for a server. Raises _Stopping where the query ends meanwhile."""
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._task.sink, error.message, retry_in_s))
        if self._gate.wait_closed(retry_in_s):
            raise _Stopping

    def _keep_rejections(self, result: Result | Told) -> None:
        """Write dead letters, remove void ones, and let the next batch know.

        Raises LockstepError for too many, and as ``GenerationLease.check``: a newer job may have applied these events
        while this one hung, and somebody closed their rejections.
        """
        if not (result.rejected or result.resolved):
            return
        self._lease.check()
        tables = None if self._task.reads_whole_transactions else self._task.tables
        check_rejections(self._task.sink, result.rejected, tables)
        with self._keeping:
            try:
                self._rejections = self._dead_letters.keep(
                    result.rejected,
                    result.resolved,
                    rejected_at_ms=now_ms(),
                    max_open=self._plan.settings.max_open_rejections,
                )
            except TooManyOpen as error:
                table = None if tables is None else tables.get(error.topic)
                if table is None:
                    raise
                raise TablesRefused({table: error}) from None
            self._writers.clear()  # they say what was rejected

    def _read_progress(self) -> bool:
        """Whether there were new records. Raises PositionMismatch when they are of a topic that was recreated."""
        if not self._unlearned:  # while nobody answers, no more is held than there was to learn then
            # After the last batch the bell may not have rung yet for what that has applied.
            heard = None if self._state.ended.is_set() else self._bell.take_heard()
            self._unlearned = self._progress_reader.new_records(heard)
        records = self._unlearned
        if self._captured is not None and self._captured.has_changed(records):
            # What they say isn't true of a table that the sink doesn't read. The next query begins with all of them.
            self._unlearned = []
            if self._plan.takes_up:
                self._stop.set()
            return bool(records)
        # Offsets of such a topic begin again. All of its bounds lie below what was applied of the one before.
        if records:
            self._topics.check_identities(self._progress_reader.identities)
        self._unlearned = []
        known = records[-1].selection if records else ""
        selection = known if self._captured is None else self._captured.selection
        known_at_ms = self._progress_reader.known_at_ms
        learned = map(self._of_captured, records)
        progress = self._keeper.learn(learned, selection=selection, known_at_ms=known_at_ms)
        if progress is not None:
            self._report(
                WatermarkRaised(self._task.sink, self._task.generation, progress.watermark_lsn, progress.commit_time_ms)
            )
        return bool(records)

    def _of_captured(self, record: ProgressRecord) -> ProgressRecord:
        """The record. Of one that was written with other captured tables only the bounds count."""
        if self._captured is None or self._captured.holds(record):
            return record
        return replace(record, uncopied=tuple(self._task.tables))

    def _raise_failure(self, query: StreamingQuery) -> None:
        failure = self._state.failure
        if isinstance(failure, LockstepError):
            raise failure
        if self._stop.is_set():
            return  # a batch that was interrupted is read again
        if failure is not None:
            raise failure
        error = query.exception()
        if error is not None:
            raise spark_error(self._task.sink, text_of(error))


def lacks_record(what: str, *, awaits_copy: bool) -> LockstepError:
    """The error of a sink that gets whole transactions, and hasn't got any. Pure."""
    if awaits_copy:
        return LockstepError(
            f"{what} can't be built: one of its tables is being copied, and it begins when that copy is complete",
            hint="run this again once `lockstep lag` tells of no copy any more; capture and the copy have to go on"
            " until then",
        )
    return LockstepError(
        f"{what} can't be built: no progress record is newer than all rows that were read",
        hint="start capture, which writes one: `lockstep run` or `lockstep capture`; then run this again",
    )


def told_topics(topics: Collection[str], before: frozenset[str], known: Collection[str]) -> frozenset[str]:
    """The topics that tasks are told of for a batch with these ``topics``, out of all ``known`` ones. Pure.

    All, where there are few. Else also those of the batches ``before``, as long as these are few: the next batch then
    probably needs no other.
    """
    for wider in (frozenset(known), before.union(topics)):
        if len(wider) <= _TOPICS_MAX:
            return wider
    return frozenset(topics)
