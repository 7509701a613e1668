"""The job of one stream query: Spark runs it, and each batch's final rows go to a sink before Spark commits the batch.

A batch in order: what takes no part in it goes to the side topic, the rows go to the sink and then to their own topic,
the figures are stored, Spark commits. A job that is killed anywhere runs the batch again, with the same offsets and the
same watermark. Records of the topics then have the same keys and values, and rows the same tag.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cdc.kafka.kept_topics import check_kept
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, partitions_of
from cdc.model.errors import (
    ConfigurationError,
    DataLost,
    Fenced,
    LockstepError,
    Overtaken,
    Unavailable,
)
from cdc.model.log_message import LogMessage
from cdc.model.table import Table
from cdc.model.timeouts import BATCH_ENDS_S
from extensions.streams.executor.pattern_state import too_many_events
from extensions.streams.executor.results import apply_results
from extensions.streams.executor.topics import check_topic_ids
from extensions.streams.jobs.builds import Builds, newest_generation
from extensions.streams.jobs.checkpoint import Checkpoint, PlannedBatch, checkpoint_location
from extensions.streams.jobs.frames import LATE, MALFORMED, quoted, result_texts, side_frame, union
from extensions.streams.jobs.kafka_source import kafka_options, starting_offsets
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.planning import planned
from extensions.streams.jobs.posting import RowPoster
from extensions.streams.jobs.records import POSTING_PAUSE, begun_name, figures_name, result_name, waiting_name
from extensions.streams.jobs.report import StreamReport
from extensions.streams.jobs.resume import (
    Begun,
    Figures,
    check_checkpoint,
    check_definition,
    check_new_topic,
    check_state_form,
    load_figures,
    unfinished_batch,
)
from extensions.streams.jobs.sql_plans import UNCHECKED, QueryRefused
from extensions.streams.settings import StreamSettings
from jobs.clock import now_ms
from jobs.executor.result import RESULT_SCHEMA, from_arrow
from jobs.executor.task_input import StreamInput, Task
from jobs.generations.identities import (
    dump_identities,
    identities_name,
    identities_of,
    known_of,
    load_identities,
    lost_of,
)
from jobs.generations.lease import GenerationLease
from jobs.generations.prepared import preparing
from jobs.generations.read_so_far import ReadSoFar
from jobs.generations.record import (
    Record,
    begin_generation,
)
from jobs.offsets import Offsets
from jobs.query.failures import BACKOFF_MAX_S, Backoff, spark_error
from jobs.query.identity_watch import IdentityWatch
from jobs.query.threads import beat
from jobs.report import Reporter, SinkStarted, SinkWaiting
from jobs.settings import OFFSETS_MAX
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.batch_call import BatchCall
from jobs.spark.jvm import jvm_calls, stop_query, text_of
from sinks.columns.shape import Shape
from sinks.contract import OpenedSink

logger = logging.getLogger("lockstep.streams")

_CONF: Final[Mapping[str, str]] = {
    # What is kept may be more than fits into memory, and the JVM's own would be written anew for each batch.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # What a batch has dropped is compared with what it has set aside.
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    **UNCHECKED,
}

_LOOK_S: Final = 2.0
"""How often a job looks whether it is to work on another build, and whether topics that it lacks are there."""

_TICK_S: Final = 0.2

_RECORD_BYTES: Final = "max.message.bytes"
_BUFFER_BYTES: Final = 32 * 1024 * 1024

_JOINED: Final = ("START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "MISMATCHED_TOPIC_PARTITIONS")
"""How Spark says that a partition has joined while it began. It takes it in when it begins again."""


class _Stopping(Exception):
    """The batch isn't to be done any more."""


class StreamJob:
    """Runs one stream query until it is stopped, done (``once``) or failed. ``run`` is its thread."""

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, *, stop: threading.Event, report: Reporter) -> None:
        self._plan = plan
        self._spark = spark
        self._stop = stop
        self._report = report
        self.generation = 0
        """The build that it works on, once it does."""
        self._lease: GenerationLease | None = None
        """Kept from one query of a build to the next: what it has claimed counts also while it waits to try again."""
        self._lease_sink: OpenedSink | None = None

    def run(self) -> None:
        """Return when stopped or done. Raises LockstepError when somebody has to act; waits for servers without end."""
        backoff = Backoff()
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    if not self._run_once():
                        return
                except (Unavailable, Overtaken) as error:
                    if time.monotonic() - began > BACKOFF_MAX_S:
                        backoff = Backoff()  # it had worked for a while
                    self._wait(Unavailable(error.message), backoff)
        finally:
            self._end_lease()

    def _wait(self, error: Unavailable, backoff: Backoff) -> None:
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._plan.name, error.message, retry_in_s))
        go_on_at = time.monotonic() + retry_in_s
        while (left_s := go_on_at - time.monotonic()) > 0 and not self._stop.wait(min(left_s, _TICK_S)):
            if self._lease is not None:
                with suppress(DataLost):  # the next query finds out what that means
                    beat(self._lease)

    def _run_once(self) -> bool:
        """Run the query into the newest generation to the end of the query. Whether another one is due."""
        with closing((opened := self._plan.opened(1)).sink):
            number = newest_generation(self._plan, opened)
            if number is None:
                record = Record(self._plan.pipeline, {}, created_at_ms=now_ms())
                number = begin_generation(opened, record)
        with closing((opened := self._plan.opened(number)).sink):
            lease = self._opened_lease(number)
            lease.begin()
            try:
                with jvm_calls(partial(stream_error, self._plan.name)):
                    run = _Run(self._plan, self._spark, opened, lease, number, stop=self._stop, report=self._report)
                    return run.run()
            except Fenced:
                lease.check_fence()  # so says a store that was put back too: its tasks find another fence
                raise
            except Unavailable:
                raise
            except LockstepError:
                # A newer job has the same checkpoint, and may end this one's query before the claims are looked at.
                self._look_at_claims(lease)
                with suppress(LockstepError):
                    if newest_generation(self._plan, opened) != number:
                        return True  # it was dropped meanwhile, by the job of a newer build
                raise

    def _look_at_claims(self, lease: GenerationLease) -> None:
        """Raise Fenced when another job has claimed the build since this one did, as far as can be seen."""
        try:
            lease.look()
        except Fenced:
            raise
        except LockstepError:
            pass  # the error that has ended the query counts

    def _opened_lease(self, number: int) -> GenerationLease:
        """The job's lease of this build, by a new connection: the password may be another one by now."""
        if self._lease is not None and self.generation != number:
            self._end_lease()
        opened, before = self._plan.opened(number), self._lease_sink
        self.generation, self._lease_sink = number, opened
        if self._lease is None:
            self._lease = GenerationLease(opened, number, once=self._plan.once, pause_request=POSTING_PAUSE)
        else:
            self._lease.reopen(opened)
        if before is not None:
            before.sink.close()
        return self._lease

    def _end_lease(self) -> None:
        lease, opened = self._lease, self._lease_sink
        self._lease = self._lease_sink = None
        if lease is not None:
            with suppress(LockstepError):
                lease.end()
        if opened is not None:
            opened.sink.close()


class _Run:
    """One run of the query, into one generation."""

    def __init__(
        self,
        plan: StreamQueryPlan,
        spark: SparkSession,
        opened: OpenedSink,
        lease: GenerationLease,
        generation: int,
        *,
        stop: threading.Event,
        report: Reporter,
    ) -> None:
        self._plan = plan
        self._session = spark.newSession()
        for name, value in _CONF.items():
            self._session.conf.set(name, value)
        self._opened = opened
        self._lease = lease
        self._generation = generation
        self._stop = stop
        self._report = report
        self._cluster = TopicAdmin(plan.kafka.client())
        self._failure: Exception | None = None
        self._gate = threading.Lock()
        self._is_closed = False
        self._query: StreamingQuery | None = None
        self._read: ReadSoFar | None = None
        lease.tells(lambda: self._read)
        self._poster: RowPoster | None = None
        self._builds = Builds(plan, opened, generation, self._checkpoint_of)
        self._late_of: tuple[int, int] = (-1, 0)
        """A batch, and how many late events it has set aside."""

    def run(self) -> bool:
        """Whether another run is due, for another build of the result."""
        plan, name = self._plan, self._plan.name
        streams = self._read_streams()
        if (is_due := self._await_topics(streams)) is not None:
            return is_due
        side_topic, result_topic = plan.side_topic, plan.result_topic(self._generation)
        topics = [side_topic, *filter(None, [result_topic])]
        self._cluster.create(self._cluster.missing(topics))
        for topic in topics:
            check_kept(self._cluster, topic, plan.kafka.bootstrap_servers)
        self._side_bytes_max, *result_bytes_max = [record_bytes_max(self._cluster, topic) for topic in topics]
        begun = self._begun(streams, result_topic)
        frame, table, _ = self._planned(streams, begun.start)
        self._streams, self._begun_with = streams, begun
        if self._builds.has_other():  # what was dropped is prepared by nobody
            return True
        self._checkpoint = self._checkpoint_of(self._generation)
        self._figures = load_figures(self._opened.records.load, self._generation)
        self._check_checkpoint()
        self._read = ReadSoFar(sum(self._figures.offsets.values()))
        self._check_still_there(table)
        with preparing(self._opened.records, self._generation, {table.name: table}):
            self._opened.sink.prepare([table])
        identities = identities_of(self._opened, [table.name])
        self._watch = IdentityWatch(self._lease, identities)
        if load_identities(self._opened.records, self._generation) != identities:
            self._lease.save_record(identities_name(self._generation), dump_identities(identities))
        shape = Shape.of(table).to_json()
        if self._opened.records.load(result_name(self._generation)) != shape:
            self._opened.records.save(result_name(self._generation), shape)
        self._builds.look()
        self._ends = self._cluster.committed_ends(list(begun.start))
        fence = self._lease.claim(self._opened.sink.claim)
        self._table = table
        self._task = Task(
            name, plan.settings, self._generation, fence, {}, {table.name: table}, 0, plan.spark.retry_s,
            uuid.uuid4().hex, client=plan.kafka.client(), open=plan.open, server=self._opened.server(),
            stream=StreamInput(
                name, self._generation, begun.topic_ids, side_topic.name, self._side_bytes_max,
                None if result_topic is None else result_topic.name, max(result_bytes_max, default=0),
            ),
            identities=identities,
        )  # fmt: skip
        frame = frame.repartition(2, *[f.col(quoted(column)) for column in plan.query.order_columns])
        if result_topic is not None:
            frame = frame.sortWithinPartitions(*[f.col(quoted(column)) for column in table.key])
        return self._run_query(result_texts(frame))

    def _run_query(self, rows: DataFrame) -> bool:
        plan, name, location = self._plan, self._plan.name, self._checkpoint.location
        call = BatchCall(self._batch)
        trigger: dict[str, Any] = (
            {"availableNow": True} if plan.once else {"processingTime": f"{plan.spark.trigger_ms} milliseconds"}
        )
        poster = self._start_poster()
        try:
            if self._builds.is_live:
                self._drop_earlier()
            writer = rows.writeStream.foreachBatch(call).outputMode("append").option("checkpointLocation", location)
            self._query = (
                writer.queryName(f"{name}-g{self._generation}-{time.monotonic_ns()}").trigger(**trigger).start()
            )
            self._report(SinkStarted(name, self._generation))
            is_due = self._wait(self._query)
            self._end()
            self._raise_failure(self._query, may_be_interrupted=is_due or self._stop.is_set())
            self._go_live()
            if poster is not None and plan.once and not is_due:
                poster.finish(self._stop, while_waiting=self._lease.heartbeat)
            if self._builds.has_earlier and not is_due:
                self._drop_earlier()
            return is_due
        finally:
            has_ended = self._end()
            if poster is not None:
                poster.close()
            if has_ended:
                call.close()

    def _start_poster(self) -> RowPoster | None:
        """Have rows posted to the webhook, where there is one."""
        if self._plan.query.webhook is None:
            return None
        self._builds.look_shown()
        self._poster = RowPoster(
            self._plan,
            self._lease,
            generations=lambda: self._builds.shown,
            said=lambda reason, retry_in_s: self._report(SinkWaiting(self._plan.name, reason, retry_in_s)),
        )
        return self._poster

    def _read_streams(self) -> dict[str, StreamSettings]:
        """The streams that the query reads. Raises ConfigurationError for a query that can't be kept."""
        _, _, names = self._planned(self._plan.streams, {})
        return {name: self._plan.streams[name] for name in names}

    def _planned(self, streams: Mapping[str, StreamSettings], start: Offsets) -> tuple[DataFrame, Table, list[str]]:
        sources = {name: (self._records(stream, start), stream) for name, stream in streams.items()}
        try:
            return planned(self._session, self._plan.name, self._plan.query, sources)
        except QueryRefused as refused:
            raise ConfigurationError(
                f"stream query {self._plan.name!r} can't be kept",
                problems=refused.problems,
                hint=f"mend [stream_queries.{self._plan.name}]; docs/stream-queries.md says what a query may be",
            ) from None

    def _records(self, stream: StreamSettings, start: Offsets) -> DataFrame:
        of_topic = {at: offset for at, offset in start.items() if at[0] == stream.topic}
        options = {
            **kafka_options(self._plan.kafka),
            "subscribe": stream.topic,
            "startingOffsets": starting_offsets(of_topic) if of_topic else "earliest",
            "maxOffsetsPerTrigger": str(OFFSETS_MAX),
            # A gap in the topic means lost events, and that must stop the job.
            "failOnDataLoss": "true",
        }
        return self._session.readStream.format("kafka").options(**options).load()

    def _await_topics(self, streams: Mapping[str, StreamSettings]) -> bool | None:
        """Wait for the topics of these streams, and let who looks at the query know for which one.

        None once all are there, else whether another run is due. Raises LockstepError where the job ends by itself and
        one isn't there, and what the lease raises.
        """
        look_at, told = 0.0, None
        while True:
            if time.monotonic() >= look_at:
                topics = [stream.topic for stream in streams.values()]
                counts = self._cluster.partition_counts(topics, must_see=True)
                lacking = lacking_topic(self._plan.name, streams, counts)
                if lacking is not None and self._plan.once:
                    raise lacking
                reason = None if lacking is None else f"{lacking.message}: {lacking.hint}"
                if reason != told or reason is None:
                    self._note_waiting(reason)
                if reason is None:
                    return None
                if reason != told:
                    self._report(SinkWaiting(self._plan.name, reason, _LOOK_S))
                told = reason
                if self._builds.has_other():
                    return True
                look_at = time.monotonic() + _LOOK_S
            if self._stop.wait(_TICK_S):
                return False
            self._lease.heartbeat()

    def _note_waiting(self, reason: str | None) -> None:
        name = waiting_name(self._generation)
        if self._lease.record(name) != reason:
            self._lease.save_record(name, reason)

    def _begun(self, streams: Mapping[str, StreamSettings], result_topic: TopicPlan | None) -> Begun:
        """What the result was begun with; noted now where it is new. Raises LockstepError where that doesn't fit."""
        records, name = self._opened.records, begun_name(self._generation)
        topics = sorted(stream.topic for stream in streams.values())
        counts = self._cluster.partition_counts(topics, must_see=True)
        own = [] if result_topic is None else [result_topic.name]
        topic_ids, definition = self._cluster.topic_ids([*topics, *own]), self._plan.definition(streams)
        text = records.load(name)
        if text is None:
            for topic in own:
                check_new_topic(self._plan.name, topic, end=self._cluster.end_offsets([(topic, 0)])[topic, 0])
            self._tell_unfinished()
            start = self._cluster.begin_offsets(partitions_of(topics, counts))
            begun = Begun(definition, topic_ids, start, self._plan.state_form)
            records.save(name, begun.text())
            return begun
        begun = Begun.parse(text)
        check_definition(self._plan.name, begun, definition)
        check_state_form(self._plan.name, begun, form=self._plan.state_form)
        check_topic_ids(self._plan.name, begun.topic_ids, topic_ids)
        # Where nothing was read yet, Spark wants an offset of partitions too that have joined since.
        joined = dict.fromkeys(partitions_of(topics, counts), 0)
        return replace(begun, start={**joined, **begun.start})

    def _tell_unfinished(self) -> None:
        """Log which builds, whose rows are posted before this one's, have begun a batch that nobody ends any more."""
        if self._plan.query.webhook is None:
            return
        for number in self._builds.look_shown():
            figures = load_figures(self._opened.records.load, number)
            planned = self._checkpoint_of(number).newest_planned()
            if (batch := unfinished_batch(figures, planned=planned)) is not None:
                subject: Mapping[str, str | int] = {
                    "stream_query": self._plan.name,
                    "generation": number,
                    "batch": batch,
                }
                why = "its rows come from the new build, as far as the topics still have their events"
                logger.warning(LogMessage("a batch of the build before isn't finished", subject, why))

    def _checkpoint_of(self, generation: int) -> Checkpoint:
        plan = self._plan
        location = checkpoint_location(
            plan.spark.checkpoint_directory, pipeline=plan.pipeline, query=plan.name, generation=generation
        )
        return Checkpoint(self._session, location)

    def _check_checkpoint(self) -> None:
        newest, batch = self._checkpoint.newest_planned(), self._figures.batch
        known = None if batch < 0 else self._planned_batch(batch)
        ends, committed = None if known is None else known.ends, self._checkpoint.newest_committed()
        check_checkpoint(self._plan.name, self._figures, planned=newest, committed=committed, ends=ends)

    def _check_still_there(self, table: Table) -> None:
        """Raise LockstepError where somebody has removed the rows that were written: nobody writes them again."""
        if not self._figures.results:
            return
        known = load_identities(self._opened.records, self._generation)
        for what in lost_of(self._opened, known_of(known, [table.name])).values():
            raise LockstepError(
                f"the result of stream query {self._plan.name!r} lacks rows: somebody has removed its data ({what})",
                hint=f"build the result again: lockstep streams rebuild {self._plan.name}",
            )

    def _check_figures(self) -> None:
        """Raise Unavailable where the store has other figures than this job: it was put back meanwhile.

        The job begins again then, and finds whether it may go on. Raises Fenced where they are a newer job's.
        """
        if load_figures(self._lease.record, self._generation) != self._figures:
            self._lease.look()
            raise Unavailable(f"the result of stream query {self._plan.name!r} was put back while its job ran")

    def _planned_batch(self, batch_id: int) -> PlannedBatch | None:
        return self._checkpoint.planned(batch_id, sources=len(self._streams))

    def _wait(self, query: StreamingQuery) -> bool:
        look_at = time.monotonic() + _LOOK_S
        while query.isActive and self._failure is None and not self._stop.wait(_TICK_S):
            self._lease.heartbeat()
            if self._poster is not None:
                self._poster.check()
            self._go_live()
            if time.monotonic() >= look_at:
                if self._builds.has_other() or self._watch.has_lost():
                    return True
                if self._builds.has_earlier:
                    self._drop_earlier()
                look_at = time.monotonic() + _LOOK_S
        return self._failure is None and not self._stop.is_set() and self._builds.has_other()

    def _end(self) -> bool:
        """Let the running batch finish, and stop the query. Whether it has ended.

        A job that stops waits for a bounded time: the batch ends with the process, and is run again at the next start.
        Else the next run has to wait, since two at once would overtake each other.
        """
        query, limit_s = self._query, BATCH_ENDS_S
        if not self._is_closed:
            is_free = self._gate.acquire(timeout=limit_s)
            self._is_closed = True
            if is_free:
                self._gate.release()
        while query is not None and not stop_query(query):
            if self._stop.is_set():
                return False
            self._report(SinkWaiting(self._plan.name, "its last batch hasn't ended yet", limit_s))
            with suppress(LockstepError):  # the next run finds out what that means
                self._lease.heartbeat()
        return True

    def _raise_failure(self, query: StreamingQuery, *, may_be_interrupted: bool) -> None:
        if isinstance(self._failure, LockstepError):
            raise self._failure
        if may_be_interrupted:
            return  # a batch that was interrupted is run again
        if self._failure is not None:
            raise self._failure
        error = query.exception()
        if error is not None:
            raise stream_error(self._plan.name, text_of(error))

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """foreachBatch. Spark commits the batch when this returns, so by then everything is durable."""
        with self._gate:
            if self._is_closed:
                raise _Stopping
            try:
                self._run_batch(frame, batch_id)
            except Exception as error:
                self._failure = self._failure or error
                raise _Stopping from None

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        self._lease.check()
        self._check_figures()
        state_rows = self._compare_dropped()
        this = self._planned_batch(batch_id)
        before = self._planned_batch(batch_id - 1) if batch_id else None
        if this is None or (batch_id and before is None):
            raise LockstepError(f"the checkpoint {self._checkpoint.location} has no offsets of batch {batch_id}")
        # Offsets were planned in a topic that may have been recreated since: they would mean other records now.
        begun = self._begun_with
        self._check_topics()
        self._read = ReadSoFar(sum(this.ends.values()))
        starts = begun.start if before is None else before.ends
        counts = self._set_aside(frame.sparkSession, starts, this.ends, None if before is None else before.watermark_ms)
        work = ArrowMap(partial(apply_results, self._task, self._table, batch_id), RESULT_SCHEMA)
        result = from_arrow(work(frame).toArrow())
        if result.failures:
            errors = [failure.error() for failure in result.failures]
            raise min(errors, key=lambda error: isinstance(error, Unavailable))
        # Or while it was read, which a batch without rows finds out here: Spark doesn't commit it then.
        self._check_topics()
        self._late_of = batch_id, counts[LATE]
        done = Figures(
            batch=batch_id,
            watermark_ms=this.watermark_ms or None,
            at_ms=now_ms(),
            results=result.rows - result.set_aside,
            late=counts[LATE],
            malformed=counts[MALFORMED],
            refused=result.set_aside,
            state_rows=state_rows,
            offsets=this.ends,
            starts=starts,
        )
        self._figures = self._figures.after(done)
        self._lease.save_claimed(figures_name(self._generation), self._figures.text())
        if self._poster is not None and done.results:
            self._poster.wake()
        self._report(
            StreamReport(
                sink=self._plan.name,
                generation=self._generation,
                batch_id=batch_id,
                results=done.results,
                late=done.late,
                malformed=done.malformed,
                refused=done.refused,
                state_rows=done.state_rows,
                watermark_ms=done.watermark_ms,
            )
        )

    def _set_aside(
        self, session: SparkSession, starts: Offsets, ends: Offsets, watermark_ms: int | None
    ) -> dict[str, int]:
        """Write what takes no part in this batch to the side topic, and count it by kind."""
        frames = []
        for name, stream in self._streams.items():
            own = {at: end for at, end in ends.items() if at[0] == stream.topic}
            first = {at: starts.get(at, 0) for at in own}
            if first == own:
                continue
            options = {
                **kafka_options(self._plan.kafka),
                # Those alone: a partition that has joined since has no part in this batch, and would need an offset.
                "assign": json.dumps({stream.topic: sorted(partition for _, partition in own)}),
                "startingOffsets": starting_offsets(first),
                "endingOffsets": starting_offsets(own),
                "failOnDataLoss": "true",
            }
            records = session.read.format("kafka").options(**options).load()
            of_batch = partial(side_frame, watermark_ms=watermark_ms, bytes_max=self._side_bytes_max)
            frames.append(of_batch(records, name, stream, generation=self._generation))
        if not frames:
            return {LATE: 0, MALFORMED: 0}
        aside = union(frames)
        counted: dict[str, int] = {row["kind"]: row["count"] for row in aside.groupBy("kind").count().collect()}
        if counted:
            self._write_aside(aside)
        return {kind: counted.get(kind, 0) for kind in (LATE, MALFORMED)}

    def _write_aside(self, frame: DataFrame) -> None:
        options = {
            **kafka_options(self._plan.kafka),
            "topic": self._plan.side_topic.name,
            "kafka.acks": "all",
            "kafka.max.request.size": str(self._side_bytes_max),
            # Kafka's client has less by default than a record may have here.
            "kafka.buffer.memory": str(max(_BUFFER_BYTES, 2 * self._side_bytes_max)),
        }
        frame.select("key", "value").write.format("kafka").options(**options).save()

    def _check_topics(self) -> None:
        """Raise PositionMismatch where a topic was recreated since the result was begun."""
        known = self._begun_with.topic_ids
        check_topic_ids(self._plan.name, known, self._cluster.topic_ids(sorted(known)))

    def _compare_dropped(self) -> int:
        """How many rows Spark keeps, as of the last batch. Raises LockstepError where it has dropped others than we.

        What Spark drops has to be on the side topic, to the last event.
        """
        batch_id, late = self._late_of
        assert self._query is not None or batch_id < 0
        kept = self._figures.state_rows
        if self._query is None:
            return kept
        dropped = 0
        for progress in self._query.recentProgress:
            if progress.batchId == batch_id:
                operators = progress.stateOperators
                dropped = max(dropped, sum(operator.numRowsDroppedByWatermark for operator in operators))
                kept = sum(operator.numRowsTotal for operator in operators)
        if batch_id >= 0 and dropped != late:
            raise LockstepError(
                f"Spark has dropped {dropped} late events of stream query {self._plan.name!r} in batch {batch_id}, and"
                f" {late} went to the side topic",
                hint="this is a bug of Lockstep's; report it with the query",
            )
        return kept

    def _go_live(self) -> None:
        """Show readers a new build once it has what the topics held when it began, and drop the one before."""
        ends = self._figures.offsets
        if self._builds.is_live or any(ends.get(at, 0) < end for at, end in self._ends.items()):
            return
        if self._builds.go_live():
            if self._poster is not None:
                self._poster.wake()
            self._drop_earlier()

    def _drop_earlier(self) -> None:
        self._builds.drop_earlier(self._cluster, None if self._poster is None else self._poster.has_posted)


def record_bytes_max(cluster: TopicAdmin, plan: TopicPlan) -> int:
    """How long a record of a topic may be: as planned, which it is altered for, or else what it takes as it is."""
    wanted = int(plan.config[_RECORD_BYTES])
    known = int(cluster.configs([plan.name])[plan.name][_RECORD_BYTES])
    if known >= wanted:
        return wanted
    try:
        cluster.change_config(plan.name, {_RECORD_BYTES: str(wanted)})
    except Unavailable:
        raise
    except LockstepError as refused:
        subject: Mapping[str, str | int] = {"topic": plan.name, "takes": known, "wanted": wanted}
        logger.warning(LogMessage("topic takes smaller records than the settings say", subject, str(refused)))
        return known
    return wanted


def lacking_topic(query: str, streams: Mapping[str, StreamSettings], topics: Collection[str]) -> LockstepError | None:
    """Why a query over these streams can't begin where Kafka has these topics, None where it has them all. Pure."""
    for name, stream in sorted(streams.items()):
        if stream.topic not in topics:
            return LockstepError(
                f"topic {stream.topic}, which stream query {query!r} reads as {name}, doesn't exist",
                hint=f"create it, or mend streams.{name}.topic",
            )
    return None


def stream_error(query: str, text: str) -> LockstepError:
    """A failed query's message -> what it means, as ``spark_error``. Pure."""
    if any(word in text for word in _JOINED):
        return Unavailable(f"a topic of stream query {query!r} got another partition just now")
    if (events_max := too_many_events(text)) is not None:
        return LockstepError(
            f"the pattern of stream query {query!r} would keep more than {events_max:,} events of one key",
            hint="nothing was skipped: the batch is read again at the next start. Let steps take fewer events by"
            " `where`, make `within` shorter, or add a column to `per`; then run `lockstep streams rebuild"
            f" {query}`, which begins with what the topics still hold",
        )
    return spark_error(query, text)
