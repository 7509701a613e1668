"""One sink's job: from its topics, through one Structured Streaming query, into one generation of its data."""

import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.kafka.control_topics import ProgressReader, read_schema_records
from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans
from cdc.kafka.topic_names import SCHEMA, control_topic, table_topic
from cdc.model.errors import DataLost, Fenced, LockstepError, PositionMismatch, Unavailable
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.dead_letters.store import DeadLetters
from jobs.executor.deliver import deliver
from jobs.executor.log_reader import Range, ranges
from jobs.executor.result import RESULT_SCHEMA, Result, check_rejections, from_arrow
from jobs.executor.shape_history import histories, newest_shapes
from jobs.executor.task import OpenSink, Task
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease
from jobs.generations.prepared import preparing
from jobs.generations.record import require_in_use
from jobs.offsets import Offsets
from jobs.query.checkpoint import Checkpoint, checkpoint_location
from jobs.query.column_backfill import (
    ColumnBackfill,
    Columns,
    backfill_columns,
    load_columns,
    next_columns,
    save_columns,
)
from jobs.query.progress import ProgressKeeper
from jobs.query.resume import ResumePoint, TopicFacts, check_resume, check_same_topics
from jobs.query.schema_watch import SchemaWatch
from jobs.query.start_position import StartPosition, load_start_position, skipped_by
from jobs.query.watermark import Watermark
from jobs.report import (
    BatchGoesOn,
    ColumnBackfillProgress,
    Reporter,
    SinkStarted,
    SinkWaiting,
    StatusReport,
    WatermarkRaised,
)
from jobs.settings import SparkSettings
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.computed_columns import TablePlan, checked_plans, with_derived
from jobs.spark.source import portable_client, range_frame, read_topics
from sinks.contract import AddedValues, OpenedSink
from sinks.registry import SinkSettings, history_tables, open_sink, projection_of

_TICK_S: Final = 0.5
"""How often an idle sink looks for progress records; a batch makes it look at once."""

_POLL_S: Final = 0.1
_SCHEMA_LOOK_S: Final = 1.0
"""How often a running job looks whether a table has got another shape."""

_TELL_S: Final = 5.0
"""How often a job tells how far rows are carried over."""

_LONG_BATCH_S: Final = 15.0
"""A batch that takes longer is told of, again and again: a server that hangs says nothing, and neither does a lock in it."""

_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0

# How Kafka's client names what ends by itself, in a failed query's message.
_PASSING: Final = (
    "TimeoutException",
    "DisconnectException",
    "NotLeaderOrFollowerException",
    "CoordinatorNotAvailableException",
    "BrokerNotAvailableException",
    "NetworkException",
    "Failed to construct kafka consumer",
)
# How Spark says that a process in which rows are applied has ended.
_LOST_WORKER: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    # It was killed while rows were on their way to it.
    "IOException: Broken pipe",
    "IOException: Connection reset by peer",
    "ClosedChannelException",
)
# How Spark says that another query has written to the checkpoint.
_TAKEN: Final = ("CONCURRENT_STREAM_LOG_UPDATE",)
# How Spark's Kafka source says that the log has lost records it had not read yet.
_DATA_LOSS: Final = ("KAFKA_DATA_LOSS", "failOnDataLoss", "OffsetOutOfRange", "Some data may have been lost")


@dataclass(frozen=True)
class SinkPlan:
    """What one sink's job is about. Everything here is configuration; nothing is opened.

    ``settings`` are those that this generation is built with. ``go_live`` lets it become the live generation when there is none;
    ``bulk`` loads it in the destination's fastest way, for which nobody may read it yet. ``trimmed`` reads a log that has lost its
    beginning.
    """

    name: str
    settings: SinkSettings
    generation: int
    pipeline: str
    kafka: KafkaSettings
    tables: Sequence[TableName]
    spark: SparkSettings
    once: bool
    go_live: bool = True
    bulk: bool = False
    trimmed: bool = False
    open: OpenSink = open_sink


class _Stopping(Exception):
    """Ends a query from inside its batch because the job is asked to stop."""


class _Backoff:
    """How long to wait before the next try: doubling, bounded, and never the same for two jobs."""

    def __init__(self) -> None:
        self._tries = 0

    def next_s(self, error: Unavailable) -> float:
        longest = min(_BACKOFF_MAX_S, max(_BACKOFF_FIRST_S, error.retry_after_s) * 2.0 ** min(self._tries, 10))
        self._tries += 1
        return longest * (1 - random.random() / 2)  # noqa: S311  no secret depends on it


class SinkJob:
    """Runs one sink until it is stopped, done (``once``) or failed. ``run`` is its thread."""

    def __init__(self, plan: SinkPlan, spark: SparkSession, *, stop: threading.Event, report: Reporter) -> None:
        self._plan = plan
        self._spark = spark
        self._stop = stop
        self._report = report
        self._prepared: dict[TableName, Table] = {}
        self._tell_at = 0.0
        self._refusal: PositionMismatch | None = None

    def run(self) -> None:
        """Returns when stopped or done. Raises LockstepError when somebody has to act; waits for servers without end."""
        backoff = _Backoff()
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if not self._run_query():
                    return
            except Unavailable as error:
                if time.monotonic() - began > _BACKOFF_MAX_S:
                    backoff = _Backoff()  # it had worked for a while
                self._wait(error, backoff)
            except LockstepError:
                # A row of a newer shape came before its table was prepared for it: the next start prepares it.
                if not self._schema_has_moved():
                    raise

    def _wait(self, error: Unavailable, backoff: _Backoff) -> None:
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._plan.name, error.message, retry_in_s))
        self._stop.wait(retry_in_s)

    def _run_query(self) -> bool:
        """Run a query to its end. Whether another one is due: a table has got another shape."""
        plan = self._plan
        cluster = TopicAdmin(plan.kafka.client())
        tables, records = self._read_tables(cluster)
        shapes = histories(records)
        plans = checked_plans(self._spark, plan.settings.expressions(), tables, shapes)
        computed = projection_of(plan.settings).computed
        versions = history_tables(plan.settings, tables)
        topics = {table_topic(plan.pipeline, name): name for name in plan.tables}
        facts = self._topic_facts(cluster, topics)
        cluster.create(cluster.missing(control_topic_plans(plan.pipeline, plan.kafka.topics)))
        generation = plan.generation
        opened = plan.open(plan.name, plan.settings, generation)
        try:
            require_in_use(opened.records, plan.name, generation)
            with preparing(opened.records, generation, tables):
                columns, left = self._prepare(opened, tables, records)
            if plan.bulk:
                opened.generations.begin_bulk()
            self._prepared = tables
            reading = load_start_position(opened.records, generation)
            location = checkpoint_location(
                plan.spark.checkpoint_directory, sink=plan.name, generation=generation, reading=reading
            )
            checkpoint = Checkpoint(self._spark, location)
            partitions = [(topic, n) for topic, fact in facts.items() for n in range(fact.partitions)]
            if reading.start is not None:
                # Tables may have joined since: they are read from their beginning.
                reading = replace(reading, start={at: reading.start.get(at, 0) for at in partitions})
            stored = opened.generations.load_progress()
            check_resume(
                ResumePoint(plan.name, generation, stored, checkpoint.committed(), location, reading.start),
                topics=facts,
                begins={} if plan.trimmed else cluster.begin_offsets(partitions),
                ends=cluster.end_offsets(partitions),
                now_ms=_now_ms(),
            )
            keeper = ProgressKeeper(
                opened.generations,
                Watermark(
                    topics,
                    lsn=0 if stored is None else stored.watermark_lsn,
                    commit_time_ms=0 if stored is None else stored.commit_time_ms,
                ),
                stored=stored,
                topic_ids={topic: fact.topic_id for topic, fact in facts.items()},
                now_ms=_now_ms,
                skipped=skipped_by(reading.start, stored),
            )
            task = Task(
                sink=plan.name,
                settings=plan.settings,
                generation=generation,
                fence=opened.sink.claim(),
                tables=topics,
                shapes=tables,
                window_bytes=(plan.spark.bulk_window_mb if plan.bulk else plan.spark.window_mb) << 20,
                histories=shapes,
                computed={name: computed.get(name, ()) for name in plans},
                versions=versions,
                compaction_lag_ms=min((fact.compaction_lag_ms for fact in facts.values()), default=0),
                overwrite_equal_tags=reading.overwrite_equal_tags,
                retry_s=plan.spark.retry_s,
                run=uuid.uuid4().hex,
                # Expressions are Spark's to evaluate, so it has to read the rows itself.
                client=None if plans else portable_client(plan.kafka),
                open=plan.open,
            )
            # Before the first batch: the watermark says that all is as at the source, the rows from before included.
            if not self._carry_over(opened, tables, columns, left, fence=task.fence):
                return False
            with self._watched(cluster, tables, facts) as ending:
                derived = {table_topic(plan.pipeline, name): of_table for name, of_table in plans.items()}
                run = _Run(
                    plan,
                    self._spark,
                    task,
                    checkpoint,
                    keeper,
                    reading,
                    derived,
                    stop=ending,
                    leaving=self._stop,
                    report=self._report,
                )
                run.run()
            if self._refusal is not None:
                raise self._refusal
            return ending.is_set() and not self._stop.is_set()
        finally:
            opened.sink.close()

    def _prepare(
        self, opened: OpenedSink, tables: Mapping[TableName, Table], records: Sequence[SchemaRecord]
    ) -> tuple[Columns, AddedValues]:
        """Prepare the sink for the tables. Returns its columns, and what rows still lack when it has done what it can do."""
        plan = self._plan
        known = load_columns(opened.records, plan.generation)
        has_rows = plan.generation in opened.generations.numbers()
        projection = projection_of(plan.settings)
        columns = next_columns(known, tables.values(), records, projection=projection, has_rows=has_rows)
        if columns != known:
            save_columns(opened.records, plan.generation, columns)
        if columns.lacking and has_rows:
            # Where the destination can refuse another writer: no row of the earlier shape comes in behind this.
            opened.sink.claim()
        return columns, opened.sink.prepare(list(tables.values()), go_live=plan.go_live, added=columns.lacking)

    def _carry_over(
        self, opened: OpenedSink, tables: Mapping[TableName, Table], columns: Columns, left: AddedValues, *, fence: int
    ) -> bool:
        """Give the rows that lack a column what the source shows in it. False when the job was asked to stop before that was done."""
        plan = self._plan
        if not columns.lacking:
            return True
        lacking = dict(columns.lacking)
        with _shown(plan, self._stop) as gate:
            for name in columns.lacking:
                values = left.get(name, {})
                if values:
                    leave = partial(self._left, gate, name, tuple(values))
                    carried = backfill_columns(
                        opened.sink, tables[name], values, fence=fence, enter=gate.enter, leave=leave
                    )
                    self._tell(name, tuple(values), carried)
                    if not carried.is_over:
                        return False
                    if carried.refused:
                        continue  # they are tried again at the next start
                del lacking[name]
        save_columns(opened.records, plan.generation, replace(columns, lacking=lacking))
        return True

    def _left(self, gate: BatchGate, name: TableName, columns: tuple[str, ...], carried: ColumnBackfill) -> None:
        gate.leave()
        if time.monotonic() >= self._tell_at:
            self._tell(name, columns, carried)

    def _tell(self, name: TableName, columns: tuple[str, ...], carried: ColumnBackfill) -> None:
        self._tell_at = time.monotonic() + _TELL_S
        plan = self._plan
        self._report(
            ColumnBackfillProgress(
                plan.name,
                plan.generation,
                str(name),
                columns,
                rows=carried.rows,
                refused=carried.refused,
                reason=carried.reason,
                is_over=carried.is_over,
            )
        )

    @contextmanager
    def _watched(
        self, cluster: TopicAdmin, tables: Mapping[TableName, Table], facts: Mapping[str, TopicFacts]
    ) -> Iterator[threading.Event]:
        """What ends a query: that the job is asked to stop, that a table has got another shape, or that a topic isn't the same."""
        ending, over = threading.Event(), threading.Event()
        watch = SchemaWatch(cluster, self._plan.kafka.client(), self._plan.pipeline, tables)

        def pass_on() -> None:
            while not over.is_set() and not ending.is_set():
                if self._stop.wait(_POLL_S):
                    ending.set()

        def look() -> None:
            while not over.wait(_SCHEMA_LOOK_S) and not ending.is_set():
                # A log that can't be read is told of by the batches, which read it too; and no bug may end the looking.
                with suppress(Exception):
                    try:
                        check_same_topics(self._plan.name, facts, cluster.identities(list(facts)))
                    except PositionMismatch as error:
                        self._refusal = error
                        ending.set()
                    if watch.has_moved():
                        ending.set()

        passing = threading.Thread(target=pass_on, name=f"stop-{self._plan.name}", daemon=True)
        passing.start()
        if not self._plan.once:
            # Nobody waits for its end, which may take as long as brokers that don't answer.
            threading.Thread(target=look, name=f"schema-{self._plan.name}", daemon=True).start()
        try:
            yield ending
        finally:
            over.set()
            passing.join()

    def _read_tables(self, cluster: TopicAdmin) -> tuple[dict[TableName, Table], list[SchemaRecord]]:
        """This sink's tables, and all shapes that they had, in order. Raises Unavailable while capture hasn't published one."""
        plan = self._plan
        records = []
        if control_topic(plan.pipeline, SCHEMA) in cluster.partition_counts():
            records = read_schema_records(plan.kafka.client(), plan.pipeline)
        known = newest_shapes(records)
        missing = [name for name in plan.tables if name not in known]
        if missing:
            raise self._not_yet(f"table {missing[0]} isn't in the log of pipeline {plan.pipeline!r}")
        mine = [record for record in records if record.table.name in plan.tables]
        return {name: known[name] for name in plan.tables}, mine

    def _topic_facts(self, cluster: TopicAdmin, topics: Mapping[str, TableName]) -> dict[str, TopicFacts]:
        counts = cluster.partition_counts()
        missing = [topic for topic in topics if topic not in counts]
        if missing:
            raise self._not_yet(f"topic {missing[0]} doesn't exist")
        ids = cluster.topic_ids(list(topics))
        configs = {topic: cluster.config(topic) for topic in topics}
        return {
            topic: TopicFacts(
                ids[topic],
                counts[topic],
                int(configs[topic]["delete.retention.ms"]),
                int(configs[topic]["min.compaction.lag.ms"]),
            )
            for topic in topics
        }

    def _not_yet(self, message: str) -> LockstepError:
        hint = "start capture: it creates the topics and publishes the tables' shapes before the first row"
        return LockstepError(message, hint=hint) if self._plan.once else Unavailable(message, hint=hint)

    def _schema_has_moved(self) -> bool:
        """Whether the log knows a newer shape of a table than the sink was prepared for."""
        if not self._prepared:
            return False
        known = newest_shapes(read_schema_records(self._plan.kafka.client(), self._plan.pipeline))
        moved = any(known.get(name, table) != table for name, table in self._prepared.items())
        self._prepared = {}  # the next failure without a new preparation is final
        return moved


@contextmanager
def _shown(plan: SinkPlan, stop: threading.Event) -> Iterator[BatchGate]:
    """Others see that a job applies to the generation, and can let it stand still, while no query runs. Closed by ``stop``."""
    gate, over = BatchGate(), threading.Event()
    opened = plan.open(plan.name, plan.settings, plan.generation)
    runner = GenerationLease(opened.records, plan.generation, gate)

    def tend() -> None:
        while not over.wait(_TICK_S):
            if stop.is_set():
                gate.close(0)
            with suppress(LockstepError):
                runner.heartbeat()

    with suppress(LockstepError):
        runner.heartbeat()  # who wants this generation to stand still may have asked before we came
    thread = threading.Thread(target=tend, name=f"runner-{plan.name}", daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        over.set()
        thread.join()
        opened.sink.close()


class _Run:
    """One life of a query: its batches, its watermark, its end."""

    def __init__(
        self,
        plan: SinkPlan,
        spark: SparkSession,
        task: Task,
        checkpoint: Checkpoint,
        keeper: ProgressKeeper,
        reading: StartPosition,
        derived: Mapping[str, TablePlan],
        *,
        stop: threading.Event,
        leaving: threading.Event,
        report: Reporter,
    ) -> None:
        """``stop`` ends this life, ``leaving`` says that no other one is to follow in this process."""
        self._plan = plan
        self._spark = spark
        self._task = task
        self._checkpoint = checkpoint
        self._keeper = keeper
        self._reading = reading
        self._derived = derived
        self._stop = stop
        self._leaving = leaving
        self._report = report
        client = plan.kafka.client()
        self._dead_letters = DeadLetters(client, plan.pipeline, sink=task.sink, generation=task.generation)
        self._rejections = self._dead_letters.read(task.tables)
        self._progress_reader = ProgressReader(client, plan.pipeline, list(task.tables))
        self._write = self._writer()
        self._failure: Exception | None = None
        self._under_way: tuple[int, float] | None = None  # a batch, and since when
        self._gate = BatchGate()
        self._opened = plan.open(task.sink, task.settings, task.generation)  # for a thread of its own
        self._runner = GenerationLease(self._opened.records, task.generation, self._gate)
        self._batch_done = threading.Event()
        self._ended = threading.Event()
        self._previous_ends: tuple[int, Offsets] | None = None
        self._compiles = True

    def run(self) -> None:
        """Run the query to its end. Raises Unavailable or LockstepError with the first cause."""
        try:
            # Before the first batch: what was published while this sink was away is what it is behind.
            self._learn()
            with suppress(LockstepError):
                self._runner.heartbeat()  # who wants this generation to stand still may have asked before we came
            query = self._start()
            self._report(SinkStarted(self._task.sink, self._task.generation, self._checkpoint.location))
            self._attend(query)
        finally:
            self._progress_reader.close()
            with suppress(LockstepError):
                self._runner.end()
            self._opened.sink.close()
        self._raise_failure(query)

    def _attend(self, query: StreamingQuery) -> None:
        """Follow the watermark until the query has ended, or end it when the job is asked to stop."""
        threads = [
            threading.Thread(target=self._follow_watermark, name=f"watermark-{self._task.sink}", daemon=True),
            threading.Thread(target=self._tend_runner, name=f"runner-{self._task.sink}", daemon=True),
            threading.Thread(target=self._tell_of_long_batches, name=f"batches-{self._task.sink}", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while query.isActive and not self._stop.is_set() and self._failure is None:
                self._ended.wait(_POLL_S)
            self._end(query)
        finally:
            self._ended.set()
            self._batch_done.set()
            for thread in threads:
                thread.join()

    def _writer(self) -> ArrowMap:
        task = replace(
            self._task,
            rejected_before=dict(self._rejections),
            complete_at_ms=self._keeper.complete_at_ms if self._task.versions else 0,
        )
        return ArrowMap(partial(deliver, task), RESULT_SCHEMA)

    def _start(self) -> StreamingQuery:
        settings = self._plan.spark
        frame = read_topics(
            self._spark,
            self._plan.kafka,
            list(self._task.tables),
            max_offsets_per_trigger=(
                settings.bulk_offsets_per_trigger if self._plan.bulk else settings.max_offsets_per_trigger
            ),
            start=self._reading.start,
            with_times=bool(self._task.versions),
        )
        if self._derived:
            # Here rather than for each batch: analysing these takes longer than evaluating them for a few rows.
            frame = with_derived(frame, self._derived)
        writer = (
            frame.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", self._checkpoint.location)
            .queryName(f"{self._task.sink}-g{self._task.generation}-{time.monotonic_ns()}")
        )
        trigger: dict[str, Any] = (
            {"availableNow": True} if self._plan.once else {"processingTime": f"{settings.trigger_ms} milliseconds"}
        )
        return writer.trigger(**trigger).start()

    def _end(self, query: StreamingQuery) -> None:
        """Let the running batch finish, and stop the query.

        That may take as long as a server that hangs. Who leaves waits for a bounded time; else the next life of the query has to
        wait, since two at once would take each other for strangers.
        """
        limit_s = self._plan.spark.stop_timeout_s
        while query.isActive:
            self._gate.close(limit_s)
            try:
                query.stop()
            except PySparkException:
                message = f"the last batch of sink {self._task.sink!r} hasn't ended yet"
                if self._leaving.is_set():  # it ends with the process, and is read again
                    self._failure = self._failure or LockstepError(message)
                    return
                self._report(SinkWaiting(self._task.sink, message, limit_s))

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """foreachBatch. Spark commits the batch when this returns, so by then everything is durable."""
        if not self._gate.enter():
            raise _Stopping
        self._under_way = (batch_id, time.monotonic())
        try:
            self._run_batch(frame, batch_id)
        except Exception as error:
            if not isinstance(error, _Stopping) and self._failure is None:
                self._failure = error
            # Spark looks for its own words in the text of what is raised here, and its stack overflows on pages of a JVM's trace.
            raise _Stopping from None
        finally:
            self._under_way = None
            self._gate.leave()
            self._batch_done.set()

    def _tend_runner(self) -> None:
        """Thread: show others that this generation is applied to, and stand still when they ask for it."""
        while not self._ended.wait(_TICK_S):
            try:
                # The batches have the same destination, and tell what is wrong with it.
                with suppress(LockstepError):
                    self._runner.heartbeat()
            except Exception as error:  # without its tending, batches could wait for ever for one who has asked them to
                self._fail(error)

    def _tell_of_long_batches(self) -> None:
        """Thread: a batch that waits for its server without end is not silent."""
        told_at = 0.0
        while not self._ended.wait(_TICK_S):
            under_way, now = self._under_way, time.monotonic()
            if under_way is not None and now - max(under_way[1], told_at) >= _LONG_BATCH_S:
                told_at = now
                self._report(
                    BatchGoesOn(self._task.sink, self._task.generation, under_way[0], elapsed_s=now - under_way[1])
                )

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        ends = self._checkpoint.end_offsets(batch_id)
        wanted = ranges(self._starts(batch_id), ends)
        # Whether one task is quicker than one per partition. Offsets count gaps too; that only errs to the safe side.
        is_small = sum(one.end - (one.start or 0) for one in wanted) <= self._plan.spark.small_batch_rows
        result = self._deliver(self._records(frame, wanted, one_task=is_small))
        self._keep_rejections(result)
        progress = self._keeper.batch_applied(ends, rejected=len(result.rejected))
        self._previous_ends = (batch_id, ends)
        self._report(
            StatusReport(
                sink=self._task.sink,
                generation=self._task.generation,
                batch_id=batch_id,
                rows=result.rows,
                applied=result.applied,
                stale=result.stale,
                rejected=len(result.rejected),
                rejected_total=progress.rejected,
                duration_ms=round((time.monotonic() - began) * 1000),
                newest_commit_ms=result.commit_time_ms,
                watermark_lsn=progress.watermark_lsn,
            )
        )

    def _starts(self, batch_id: int) -> Offsets:
        """Where a batch begins: its predecessor's end, else where the query begins."""
        if self._previous_ends is not None and self._previous_ends[0] == batch_id - 1:
            return self._previous_ends[1]
        if batch_id:
            return self._checkpoint.end_offsets(batch_id - 1)
        return dict(self._reading.start or {})

    def _records(self, frame: DataFrame, wanted: Sequence[Range], *, one_task: bool) -> DataFrame:
        """The batch's records, or what tells the tasks to read them; each partition's by one task."""
        if self._task.client is not None:
            self._compile(frame, whether=False)
            return range_frame(frame.sparkSession, wanted, one_task=one_task)
        self._compile(frame, whether=not one_task)
        # coalesce keeps each partition's records together and in order.
        return frame.coalesce(1) if one_task else frame

    def _compile(self, frame: DataFrame, *, whether: bool) -> None:
        """Whether expressions become Java classes: their source is made anew for each task, which takes longer than a few rows."""
        if whether != self._compiles:
            frame.sparkSession.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if whether else "NO_CODEGEN")
            self._compiles = whether

    def _deliver(self, records: DataFrame) -> Result:
        """Apply the batch's records: one pass over them. Waits while the destination doesn't answer."""
        backoff = _Backoff()
        while True:
            if self._task.versions:
                self._write = self._writer()  # it says since when versions may have been compacted away
            work = self._write(records)
            result = from_arrow(work.toArrow())
            errors = [failure.error() for failure in result.failures]
            # What needs somebody comes before what ends by itself.
            errors.sort(key=lambda error: isinstance(error, Unavailable))
            if not errors:
                return result
            first = errors[0]
            if not isinstance(first, Unavailable):
                raise first
            retry_in_s = backoff.next_s(first)
            self._report(SinkWaiting(self._task.sink, first.message, retry_in_s))
            if self._stop.wait(retry_in_s):
                raise _Stopping

    def _keep_rejections(self, result: Result) -> None:
        """Write dead letters, remove those that are void, and let the next batch know. Raises LockstepError for too many."""
        if not (result.rejected or result.resolved):
            return
        check_rejections(self._task.sink, result.rejected)
        self._rejections = self._dead_letters.keep(
            result.rejected,
            result.resolved,
            rejected_at_ms=_now_ms(),
            max_open=self._plan.settings.max_open_rejections,
        )
        self._write = self._writer()

    def _follow_watermark(self) -> None:
        """Thread: raise the watermark when progress records arrive, also while no batch runs."""
        waiting = last = False
        while not last:
            self._batch_done.wait(_TICK_S)
            self._batch_done.clear()
            last = self._ended.is_set()  # once more after the last batch: what it applied is to be known
            try:
                self._learn()
                waiting = False
            except DataLost as error:
                self._fail(error)
            except Unavailable as error:
                if not waiting:
                    self._report(SinkWaiting(self._task.sink, error.message, _TICK_S))
                waiting = True
            except Exception as error:  # a bug of ours must not leave a job whose watermark stands still
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """From a thread beside the batches: end this life of the query."""
        self._failure = self._failure or error
        self._ended.set()

    def _learn(self) -> None:
        progress = self._keeper.learn(self._progress_reader.new_records())
        if progress is not None:
            self._report(
                WatermarkRaised(self._task.sink, self._task.generation, progress.watermark_lsn, progress.commit_time_ms)
            )

    def _raise_failure(self, query: StreamingQuery) -> None:
        failure = self._failure
        if isinstance(failure, LockstepError):
            raise failure
        if self._stop.is_set():
            return  # a batch that was interrupted is read again
        if isinstance(failure, PySparkException | Py4JError):
            raise spark_error(self._task.sink, str(failure)) from failure
        if failure is not None:
            raise failure
        error = query.exception()
        if error is not None:
            raise spark_error(self._task.sink, str(error))


def spark_error(sink: str, text: str) -> LockstepError:
    """A failed query's message -> the error that says what it means for the operator. Pure."""
    if any(word in text for word in _LOST_WORKER):
        return Unavailable(
            f"a Python worker of sink {sink!r} died: killed, or out of memory (spark.window_mb says how much it holds)"
        )
    if any(word in text for word in _TAKEN):
        return Fenced(f"another job applies to sink {sink!r} with the same checkpoint", hint="stop one of the two jobs")
    if any(word in text for word in _DATA_LOSS):
        return PositionMismatch(
            f"the log no longer holds what sink {sink!r} has to read next",
            hint="somebody deleted records or created a topic anew; have capture copy the table (lockstep snapshot table TABLE),"
            f" then lockstep rebuild {sink} --switch",
        )
    if any(word in text for word in _PASSING):
        return Unavailable(f"Kafka doesn't answer the query of sink {sink!r}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return LockstepError(
        f"the query of sink {sink!r} failed: {lines[0][:300] if lines else 'without a message'}",
        hint="nothing was skipped: the batch is read again at the next start. On a cluster, see that the executors have this"
        " version of Lockstep and its packages: spark.package and spark.python in lockstep.toml",
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
