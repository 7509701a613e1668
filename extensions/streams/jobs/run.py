"""One run of a stream query, into one build of its result: from its beginning until it ends, including going live."""

import threading
import time
import uuid
from contextlib import suppress
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_policy import check_kept
from cdc.model.errors import LockstepError
from cdc.model.table import Table
from cdc.model.timeouts import BATCH_ENDS_S
from extensions.streams.executor.task_input import StreamInput
from extensions.streams.jobs.batches import Batches, applied
from extensions.streams.jobs.beginning import Beginning, record_bytes_max
from extensions.streams.jobs.builds import Builds
from extensions.streams.jobs.frames import quoted, result_texts
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posting import RowPoster
from extensions.streams.jobs.reading import SideTopic, StreamReading
from extensions.streams.jobs.records import result_name
from extensions.streams.jobs.running import RunningQuery
from jobs.ending_thread import LOOK_S
from jobs.executor.task_input import Task
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
from jobs.offsets import Offsets
from jobs.query.identity_watch import IdentityWatch
from jobs.report import Reporter, SinkStarted, SinkWaiting
from sinks.columns.shape import Shape
from sinks.contract import OpenedSink

_TICK_S: Final = 0.2


class QueryRun:
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
        self._opened = opened
        self._lease = lease
        self._generation = generation
        self._stop = stop
        self._report = report
        self._cluster = TopicAdmin(plan.kafka.client())
        self._reading = StreamReading(plan, spark)
        self._builds = Builds(plan, opened, generation, self._reading.checkpoint)
        self._poster: RowPoster | None = None
        self._batches: Batches | None = None
        lease.tells(lambda: None if self._batches is None else self._batches.read)

    def run(self) -> bool:
        """Run until the query ends. Returns whether another run is due, for another build of the result."""
        plan, number = self._plan, self._generation
        streams = self._reading.streams()
        beginning = Beginning(plan, self._lease, self._opened.records, number, self._builds, cluster=self._cluster)
        if (is_due := beginning.await_topics(streams, stop=self._stop, report=self._report)) is not None:
            return is_due
        side_topic, result_topic = plan.side_topic, plan.result_topic(number)
        topics = [side_topic, *filter(None, [result_topic])]
        self._cluster.create(self._cluster.missing(topics))
        for topic in topics:
            check_kept(self._cluster, topic, plan.kafka.bootstrap_servers)
        side_bytes_max, *result_bytes_max = [record_bytes_max(self._cluster, topic) for topic in topics]
        begun = beginning.begun(streams, result_topic, self._reading.checkpoint)
        frame, table = self._reading.planned(streams, begun.start)
        if self._builds.has_other():  # nobody may prepare a dropped build
            return True
        checkpoint = self._reading.checkpoint(number)
        batches = self._batches = Batches(
            plan, self._lease, number, begun, checkpoint=checkpoint, sources=len(streams), cluster=self._cluster
        )
        stream = StreamInput(
            plan.name, number, begun.topic_ids, side_topic.name, side_bytes_max,
            None if result_topic is None else result_topic.name, max(result_bytes_max, default=0),
        )  # fmt: skip
        watch, task, ends = self._prepared(table, begun.start, has_rows=bool(batches.figures.results))
        side, apply = SideTopic(plan, streams, number, bytes_max=side_bytes_max), partial(applied, task, stream, table)

        def batch(part: DataFrame, batch_id: int) -> None:
            report = batches.run(part, batch_id, query.recent_progress, side, apply)
            if self._poster is not None and report.results:
                self._poster.wake()
            self._report(report)

        query = RunningQuery(plan.name, batch)
        return self._run_query(query, self._rows(frame, table), batches, watch, ends, location=checkpoint.location)

    def _prepared(self, table: Table, start: Offsets, *, has_rows: bool) -> tuple[IdentityWatch, Task, Offsets]:
        """Create and claim the result's table. Returns its watch, the input of tasks, and where topics end now."""
        plan, number, records = self._plan, self._generation, self._opened.records
        if has_rows:
            self._check_still_there(table)
        with preparing(records, number, {table.name: table}):
            self._opened.sink.prepare([table])
        identities = identities_of(self._opened, [table.name])
        watch = IdentityWatch(self._lease, identities)
        if load_identities(records, number) != identities:
            self._lease.save_record(identities_name(number), dump_identities(identities))
        shape = Shape.of(table).to_json()
        if records.load(result_name(number)) != shape:
            records.save(result_name(number), shape)
        self._builds.look()
        ends = self._cluster.committed_ends(list(start))
        fence = self._lease.claim(self._opened.sink.claim)
        task = Task(
            plan.name, plan.settings, number, fence, {}, {table.name: table}, 0, plan.spark.retry_s,
            uuid.uuid4().hex, client=plan.kafka.client(), open=plan.open, server=self._opened.server(),
            identities=identities,
        )  # fmt: skip
        return watch, task, ends

    def _check_still_there(self, table: Table) -> None:
        """Raise LockstepError if somebody has removed the written rows: nobody writes them again."""
        known = load_identities(self._opened.records, self._generation)
        for what in lost_of(self._opened, known_of(known, [table.name])).values():
            raise LockstepError(
                f"the result of stream query {self._plan.name!r} lacks rows: its data was removed ({what})",
                hint=f"build the result again: lockstep streams rebuild {self._plan.name}",
            )

    def _rows(self, frame: DataFrame, table: Table) -> DataFrame:
        """The result's rows, in two tasks; sorted if they go to a topic."""
        query = self._plan.query
        frame = frame.repartition(2, *[f.col(quoted(column)) for column in query.order_columns])
        if query.has_topic:
            frame = frame.sortWithinPartitions(*[f.col(quoted(column)) for column in table.key])
        return result_texts(frame)

    def _run_query(
        self,
        query: RunningQuery,
        rows: DataFrame,
        batches: Batches,
        watch: IdentityWatch,
        ends: Offsets,
        *,
        location: str,
    ) -> bool:
        poster = self._start_poster()
        end = partial(query.end, self._stop, while_waiting=self._still_ending)
        try:
            if self._builds.is_live:
                self._drop_earlier()
            query.start(rows, self._plan, self._generation, location=location)
            self._report(SinkStarted(self._plan.name, self._generation))
            is_due = self._wait(query, batches, watch, ends)
            end()
            query.raise_failure(may_be_interrupted=is_due or self._stop.is_set())
            self._go_live(batches, ends)
            if poster is not None and self._plan.once and not is_due:
                poster.finish(self._stop, while_waiting=self._lease.heartbeat)
            if self._builds.has_earlier and not is_due:
                self._drop_earlier()
            return is_due
        finally:
            has_ended = end()
            if poster is not None:
                poster.close()
            if has_ended:
                query.close()

    def _start_poster(self) -> RowPoster | None:
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

    def _wait(self, query: RunningQuery, batches: Batches, watch: IdentityWatch, ends: Offsets) -> bool:
        look_at = time.monotonic() + LOOK_S
        while query.is_active and not self._stop.wait(_TICK_S):
            self._lease.heartbeat()
            if self._poster is not None:
                self._poster.check()
            self._go_live(batches, ends)
            if time.monotonic() >= look_at:
                if self._builds.has_other() or watch.has_lost():
                    return True
                if self._builds.has_earlier:
                    self._drop_earlier()
                look_at = time.monotonic() + LOOK_S
        return query.failure is None and not self._stop.is_set() and self._builds.has_other()

    def _still_ending(self) -> None:
        self._report(SinkWaiting(self._plan.name, "its last batch hasn't ended yet", BATCH_ENDS_S))
        with suppress(LockstepError):  # the next run finds out what that means
            self._lease.heartbeat()

    def _go_live(self, batches: Batches, ends: Offsets) -> None:
        """Show readers a new build once it has all that the topics held when it began, and drop the one before."""
        done = batches.figures.offsets
        if self._builds.is_live or any(done.get(at, 0) < end for at, end in ends.items()):
            return
        if self._builds.go_live():
            if self._poster is not None:
                self._poster.wake()
            self._drop_earlier()

    def _drop_earlier(self) -> None:
        self._builds.drop_earlier(self._cluster, None if self._poster is None else self._poster.has_posted)
