"""Capture as one process: start safely, take the initial snapshot where there is none, then stream until told to stop.

The order of the start matters: fencing comes before the state is read, else an older process could commit after it.
"""

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import psycopg

from cdc.capture.assembler import Assembler
from cdc.capture.published_table import PublishedTable
from cdc.capture.batch import Committed
from cdc.capture.confirmation import Clock, Confirmation
from cdc.capture.loop import CaptureLoop, Pause
from cdc.capture.side_channels import MessageChannel, OutboxChannel
from cdc.kafka.control_topics import read_state, read_tables
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.topic_admin import (
    COMMIT_MARKER_LOSS,
    TopicAdmin,
    TopicPlan,
    control_topic_plans,
    message_topic_plans,
    table_topic_plan,
)
from cdc.kafka.topic_names import MESSAGES, control_topic, outbox_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table import ReplicaIdentity, Table
from cdc.pipeline import Pipeline
from cdc.postgres.catalogue import keys_can_swap
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.repair_messages import REPAIR_PREFIX
from cdc.postgres.replication import (
    APPLICATION,
    ReplicationConnection,
)
from cdc.postgres.slot import (
    emit_heartbeat,
    end_other_reader,
    find_slot,
    sender_timeout_s,
)
from cdc.postgres.toast_storage import load_rule
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.envelope import TableEncoder
from cdc.stream.catalogue_shapes import CatalogueShapes
from cdc.stream.repair_requests import RepairRequests
from cdc.stream.source_checks import check_system, require_slot
from cdc.stream.table_watch import TableWatch
from cdc.stream.toast_cache import ToastCache
from migrations.source import publication_sql
from snapshot.copy import CopyProgress
from snapshot.in_stream import StreamCopies
from snapshot.initial import InitialSnapshot, Stopped

_STATUS_INTERVAL_S = 10.0
_TAKE_OVER_S = 30.0
_RETRY_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class Observer:
    """Who wants to know: ``say`` gets sentences for people, the others numbers for displays."""

    say: Callable[[str], None] = lambda _: None
    copied: Callable[[CopyProgress], None] = lambda _: None
    committed: Callable[[Committed], None] = lambda _: None


PublisherWrapper = Callable[[TransactionalPublisher], Any]
StreamWrapper = Callable[[ReplicationConnection], Any]


def capture(
    pipeline: Pipeline,
    *,
    stopping: Callable[[], bool],
    observer: Observer,
    wrap_publisher: PublisherWrapper = lambda publisher: publisher,
    wrap_stream: StreamWrapper = lambda stream: stream,
) -> None:
    """Run until ``stopping``. What can heal by itself is tried again from the committed state; the rest is raised.

    ``wrap_publisher`` and ``wrap_stream`` put something around the two edges; the crash tests kill the process there.
    """
    wait_s = 0.5
    ownership = _Ownership()
    repairs = RepairRequests(pipeline.slot, observer.say)
    while not stopping():
        started = time.monotonic()
        session = _Session(
            pipeline, stopping, observer, wrap_publisher, wrap_stream, ownership=ownership, repairs=repairs
        )
        try:
            session.run()
        except Stopped:
            return
        except (Unavailable, psycopg.OperationalError) as raised:
            error = connection_error(raised) if isinstance(raised, psycopg.OperationalError) else raised
            if not isinstance(error, Unavailable):
                raise error from raised
            wait_s = 0.5 if time.monotonic() - started > _RETRY_MAX_S else min(wait_s * 2, _RETRY_MAX_S)
            observer.say(f"{error.message}; starting over from the committed state in {wait_s:.1f} s")
            _sleep(wait_s, stopping)
        finally:
            session.close()


def _sleep(seconds: float, stopping: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not stopping():
        time.sleep(0.1)


class _Ownership:
    """Whose turn it is to write: a process that starts takes over, once, from whoever is the owner by then.

    One that only lost its connections must not take over again, since that may have been done to it. Between fencing the owner
    before and committing its own name a process may lose them too: then that owner's name still stands there.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self._before: tuple[str | None] | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this process has fenced its predecessors once."""
        return self._before is not None

    def begin(self, state: CaptureState | None) -> None:
        """Older producers are fenced, and ``state`` is the committed one. Raises Fenced."""
        owner = None if state is None else state.owner
        if self._before is None:
            self._before = (owner,)
        self._check(owner)

    def check(self, state: CaptureState | None) -> None:
        """Before anybody is fenced again. Raises Fenced when another process has taken over since this one did."""
        self._check(None if state is None else state.owner)

    def _check(self, owner: str | None) -> None:
        assert self._before is not None
        if owner not in (self.name, *self._before):
            raise Fenced(
                "another capture process of this slot has taken over; this one stops",
                hint="exactly one may run: if it wasn't you, look for a second `lockstep capture` or `lockstep run`",
            )


class _Session:
    """One try: connections that are opened together and given up together."""

    def __init__(
        self,
        pipeline: Pipeline,
        stopping: Callable[[], bool],
        observer: Observer,
        wrap_publisher: PublisherWrapper,
        wrap_stream: StreamWrapper,
        *,
        ownership: _Ownership,
        repairs: RepairRequests,
    ) -> None:
        self._repairs = repairs
        self._ownership = ownership
        self._pipeline = pipeline
        self._stopping = stopping
        self._observer = observer
        self._wrap_publisher = wrap_publisher
        self._wrap_stream = wrap_stream
        self._client = pipeline.kafka.client()
        self._closing = contextlib.ExitStack()
        self._confirmation: Confirmation | None = None
        self._database = ""

    def run(self) -> None:
        pipeline = self._pipeline
        sql: psycopg.Connection[Any] = self._closing.enter_context(
            contextlib.closing(connect(pipeline.source, application=APPLICATION))
        )
        sql.execute(LOCK_TIMEOUT)
        with ReplicationConnection(pipeline.source) as connection:
            identity = connection.identify_system()
        self._create_topics()
        publisher = TransactionalPublisher(
            self._client,
            prefix=pipeline.name,
            transactional_id=f"{pipeline.name}.{pipeline.slot}",
            queue_bytes=pipeline.capture.queue_bytes,
            max_message_bytes=pipeline.kafka.topics.max_message_bytes,
            while_waiting=self._while_waiting,
            new_topic=self._outbox_topic_plan if pipeline.source.outbox_name else None,
        )
        self._closing.callback(publisher.close)
        if self._ownership.is_taken:
            self._ownership.check(read_state(self._client, pipeline.name, pipeline.slot))
        publisher.start()
        wrapped = self._wrap_publisher(publisher)
        state = read_state(self._client, pipeline.name, pipeline.slot)
        self._ownership.begin(state)
        if state is not None:
            check_system(state, identity, pipeline)
            # Also when we are the owner already: what an earlier session owed of progress is made good for all topics.
            state = replace(state, owner=self._ownership.name)
            # Nobody follows a table that isn't configured: if it comes back, it has to be copied.
            state = state.to_be_copied(state.copied.keys() - pipeline.topics().keys())
            publisher.commit(state, covering=list(pipeline.topics().values()))
        if state is None or state.phase is not SnapshotPhase.DONE:
            self._database = sql.info.dbname
            snapshot = InitialSnapshot(
                pipeline,
                sql,
                owner=self._ownership.name,
                publish=lambda table: self._publish(sql, table),
                say=self._observer.say,
                copied=self._observer.copied,
                stopping=self._stopping,
                create_publication=publication_sql(pipeline.publication, pipeline.source.published_names),
            )
            state = snapshot.take(wrapped, state, identity)
            if state.phase is not SnapshotPhase.DONE:
                return  # told to stop; the next start goes on with the tables that are missing
        self._stream(sql, wrapped, state)

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error, LockstepError):
            self._closing.close()

    def _while_waiting(self) -> None:
        if self._confirmation is not None:
            self._confirmation.send_status_if_due()

    def _outbox_topic_plan(self, topic: str) -> TopicPlan:
        self._observer.say(f"creating topic {topic}")
        return table_topic_plan(topic, self._pipeline.kafka.topics, append_only=True)

    def _create_topics(self) -> None:
        pipeline = self._pipeline
        cluster = TopicAdmin(self._client)
        plans = [
            *control_topic_plans(pipeline.name, pipeline.kafka.topics),
            *(message_topic_plans(pipeline.name, pipeline.kafka.topics) if pipeline.source.messages else []),
            *(
                table_topic_plan(topic, pipeline.kafka.topics, append_only=name in pipeline.source.append_only)
                for name, topic in pipeline.topics().items()
            ),
        ]
        missing = cluster.missing(plans)
        if missing:
            self._observer.say(f"creating topics: {', '.join(plan.name for plan in missing)}")
            cluster.create(missing)
        wrong = [sentence for sentence in cluster.differences(plans) if "cleanup.policy" in sentence]
        if wrong:
            raise LockstepError(
                "\n".join(wrong), hint="a topic of a table must be compacted; was it made by something else?"
            )

    def _publish(self, sql: psycopg.Connection[Any], table: Table) -> PublishedTable:
        pipeline = self._pipeline
        encoder = TableEncoder(table, server=pipeline.name, database=self._database, version=version("lockstep"))
        rule = None
        if table.replica_identity is not ReplicaIdentity.FULL and table.key:
            rule = load_rule(sql, table)
        return PublishedTable(
            pipeline.topics()[table.name],
            encoder,
            keys_can_swap=keys_can_swap(sql, table.oid),
            toast=rule if rule is not None and rule.positions else None,
        )

    def _heartbeat(self, sql: psycopg.Connection[Any]) -> None:
        try:
            emit_heartbeat(sql)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def _stream(self, sql: psycopg.Connection[Any], publisher: Any, state: CaptureState) -> None:
        pipeline = self._pipeline
        self._database = state.database
        require_slot(sql, state)
        recorded = read_tables(self._client, pipeline.name)
        # Topics keep the shapes of all tables that were ever captured; those no longer configured are left out.
        published = {
            name: self._publish(sql, recorded[name]) for name in pipeline.source.table_names if name in recorded
        }
        watch = TableWatch(pipeline, sql, self._observer.say)
        state = watch.look(state)
        stream = self._start_stream(sql, state)
        clock = Clock(time.monotonic, lambda: time.time_ns() // 1000)
        wrapped = self._wrap_stream(stream)
        self._confirmation = Confirmation(
            wrapped,
            clock,
            interval_s=min(_STATUS_INTERVAL_S, sender_timeout_s(sql) / 4),
            confirmed=Lsn(state.end_lsn),
        )
        log = TopicReader(self._client, self._while_waiting)

        def publish(table: Table) -> PublishedTable:
            return self._publish(sql, table)

        shapes = CatalogueShapes(sql, pipeline, publish, self._observer.say)
        values = ToastCache(pipeline, log, state, published.values(), self._observer.say)
        self._closing.callback(values.close)
        assembler = Assembler(
            published,
            epoch=state.epoch,
            skip_to=(state.commit_lsn, state.seq),
            end_lsn=Lsn(state.end_lsn),
            commit_time_ms=state.commit_time_ms,
            include_before=pipeline.capture.include_before,
            shapes=shapes,
            log=log,
            memory=values.store,
            messages=MessageChannel(
                frozenset(pipeline.source.messages),
                control_topic(pipeline.name, MESSAGES),
                server=pipeline.name,
                database=self._database,
                version=version("lockstep"),
            ),
            outbox=None
            if pipeline.source.outbox_name is None
            else OutboxChannel(pipeline.source.outbox_name, lambda kind: outbox_topic(pipeline.name, kind)),
            notices={REPAIR_PREFIX: lambda content: self._repairs.ask(content, assembler.tables)},
        )
        assembler.refill = lambda table: values.refill(table, assembler.position)
        copies = StreamCopies(
            pipeline,
            sql,
            watch=watch,
            repairs=self._repairs,
            publish=publish,
            publisher=publisher,
            assembler=assembler,
            shapes=shapes,
            values=values,
            log=log,
            say=self._observer.say,
            copied=self._observer.copied,
            stopping=self._stopping,
            while_waiting=self._while_waiting,
        )
        self._closing.callback(copies.close)
        copies.loop = loop = CaptureLoop(
            stream=wrapped,
            publisher=publisher,
            assembler=assembler,
            confirmation=self._confirmation,
            state=state,
            settings=pipeline.capture,
            clock=clock,
            stopping=self._stopping,
            heartbeat=lambda: self._heartbeat(sql),
            heartbeat_interval_s=pipeline.source.heartbeat_interval_s,
            report=self._observer.committed,
            look=lambda state: watch.look(state, assembler, shapes),
            memory=values.store,
            may_copy=copies.may_begin,
        )
        self._observer.say(f"streaming from {format_lsn(state.end_lsn)}")
        pause: Pause | None = Pause(state, None)
        while pause is not None:
            frame = pause.frame
            if copies.is_ready():
                pause = copies.copy(frame)
                frame = None if pause is None else pause.frame
            if pause is not None:
                pause = loop.run(first=frame)

    def _start_stream(self, sql: psycopg.Connection[Any], state: CaptureState) -> ReplicationConnection:
        """Stream from the state's end; an older reader of the slot, which is fenced by now, is ended first."""
        deadline = time.monotonic() + _TAKE_OVER_S
        while True:
            slot = find_slot(sql, state.slot)
            if slot is not None and slot.active_pid is not None:
                self._observer.say(
                    f"slot {slot.name} is still read by pid {slot.active_pid}, which is fenced: ending it"
                )
                end_other_reader(sql, slot)
                time.sleep(0.2)
            stream = ReplicationConnection(self._pipeline.source)
            try:
                stream.start(
                    state.slot,
                    publication=state.publication,
                    at=Lsn(state.end_lsn),
                    only_local=self._pipeline.source.origin == "none",
                )
            except LockstepError as error:
                stream.close()
                if "is active for PID" in error.message and time.monotonic() < deadline:
                    continue
                raise
            break
        self._closing.callback(stream.close)
        # Asked only now: from here on nobody else can move the slot.
        slot = find_slot(sql, state.slot)
        if slot is None or slot.confirmed is None or slot.confirmed > state.end_lsn:
            at = "nowhere" if slot is None or slot.confirmed is None else format_lsn(slot.confirmed)
            raise PositionMismatch(
                f"slot {state.slot} stands at {at}, but only {format_lsn(state.end_lsn)} was published:"
                " what lies between is lost to this slot",
                hint=f"was the slot advanced or made anew by hand? Or did Kafka lose a transaction? {COMMIT_MARKER_LOSS}."
                " Start a pipeline of another name, which takes a new snapshot",
            )
        return stream
