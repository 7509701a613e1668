"""One stream with all of its parts, each built before the one that uses it."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import psycopg

from cdc.capture.assembler import Assembler, Notice
from cdc.capture.batch import Batch, Committed, Publisher
from cdc.capture.confirmation import Clock, Confirmation, KeepAlive
from cdc.capture.loop import CaptureLoop, Stream
from cdc.capture.messages_and_outbox import MessageChannel, OutboxChannel, OutboxTopics
from cdc.capture.published_table import PublishedTable
from cdc.capture.resumed_stream import ResumedStream
from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import MESSAGES, control_topic, is_outbox_topic, outbox_topic, shared_outbox_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.pipeline import Pipeline
from cdc.postgres.copy_orders import COPIES_PREFIX, CopyOrder
from cdc.postgres.ddl_messages import DDL_PREFIX
from cdc.postgres.repair_messages import REPAIR_PREFIX, UnreadableRequest
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.slot import current_snapshot, emit_heartbeat, sender_timeout_s
from cdc.protocol.control_records import CaptureState, SchemaRecord
from cdc.protocol.visibility import UnfinishedTransactions
from cdc.spilling import SpillingMap
from cdc.stream.catalogue_shapes import CatalogueShapes
from cdc.stream.copy_orders import obeyed, unsigned
from cdc.stream.repair_requests import RepairRequests
from cdc.stream.slot_stream import start_stream
from cdc.stream.source_checks import RECOVER, require_slot
from cdc.stream.table_publication import PublishedTables
from cdc.stream.table_watch import TableWatch
from cdc.stream.toast_cache import ToastCache
from cdc.stream.topics import TopicWatch
from cdc.stream.visible_commits import VisibleCommits

OUTBOX_TYPES_MAX: Final = 100
"""So many types of an outbox get a topic of their own: a topic costs brokers, and an application writes them."""

_STATUS_INTERVAL_S: Final = 2.0
"""Who looks tells a capture that is at work on a copy from one that hangs by this, within seconds."""

StreamWrapper = Callable[[ReplicationConnection], Stream]


@dataclass(frozen=True, slots=True)
class _Downstream:
    """The open batch, the store of large values, and who reads what happens."""

    batch: Batch
    toast: ToastCache
    say: Callable[[str], None]

    def commit_pending(self, assembler: Assembler) -> None:
        self.batch.commit_pending(assembler)

    def reload_toast(self, published: PublishedTable, position: tuple[int, int]) -> None:
        self.toast.reload(published, position)

    def left_unread(self, topic: str, keys: Sequence[bytes]) -> None:
        if self.batch.watch is not None:
            self.batch.watch(topic, keys)

    def passed_over(self, name: TableName, columns: Sequence[str]) -> None:
        if not columns:
            self.say(
                f"{name}: a row was changed or deleted while the table's first copy was interrupted, and may be missing"
                " from it; its changes wait for a copy of it"
            )
            return
        self.say(
            f"{name}: an update left the large values of {', '.join(columns)} untouched, so PostgreSQL didn't send"
            " them, and the topic doesn't hold them as they are now; its changes wait for a copy of it"
        )


@dataclass(frozen=True, slots=True)
class LiveStream:
    """What follows a slot, and what copies in the middle of the stream work with."""

    loop: CaptureLoop
    assembler: Assembler
    tables: PublishedTables
    watch: TableWatch
    shapes: CatalogueShapes
    toast: ToastCache
    log: TopicReader
    unfinished: UnfinishedTransactions
    is_resumed: Callable[[], bool]
    """Whether it is known that this is the stream that was published from. Before, nothing may be copied."""


@dataclass(frozen=True, slots=True)
class StreamOpener:
    """Opens the stream of a pipeline; what has to be closed goes to ``closing``."""

    pipeline: Pipeline
    sql: psycopg.Connection[Any]
    publisher: Publisher
    repairs: RepairRequests
    keep_alive: KeepAlive
    say: Callable[[str], None]
    committed: Callable[[Committed], None]
    stopping: Callable[[], bool]
    closing: contextlib.ExitStack
    wrap_stream: StreamWrapper
    order_secret: bytes
    """What orders about copies are signed with."""
    was_published: set[TableName]
    """Tables that some stream of this process has seen published; those of this one join them."""

    def open(self, state: CaptureState) -> LiveStream:
        """Start streaming where ``state`` ends.

        Raises PositionMismatch when the slot doesn't fit the state, Unavailable when PostgreSQL or Kafka can't be
        reached, and LockstepError for what they refuse.
        """
        pipeline, sql = self.pipeline, self.sql
        require_slot(sql, state)
        tables = PublishedTables(pipeline, sql, state.database)
        records = read_schema_records(pipeline.kafka.client(), pipeline.name)
        recorded = {record.table.name: record.table for record in records}
        # Topics keep the shapes of all tables that were ever captured; those no longer configured are only counted.
        # A table without a copy on its topic is followed once it has one: before, an update may lack what isn't there.
        shapes_of = {name: tables.of(recorded[name]) for name in pipeline.source.table_names if name in recorded}
        copying = {name for name, copy in state.copying.items() if copy.has_begun}
        published = {name: shape for name, shape in shapes_of.items() if name in state.memberships or name in copying}
        passed_over = {name: shape for name, shape in shapes_of.items() if name not in published}
        uncaptured = {name: tables.only_counted(table) for name, table in recorded.items() if name not in shapes_of}
        relations = {record.table.oid: record.table for record in records if record.table.name in shapes_of}
        of_today = {0, *(table.oid for table in recorded.values())}
        former = {oid: tables.only_counted(table) for oid, table in relations.items() if oid not in of_today}
        self.was_published.update(recorded)  # a table has its shape recorded with its copy, which only begins then
        watch = TableWatch(pipeline, sql, self.say, shapes=recorded, was_published=self.was_published)
        topics = TopicWatch(pipeline, self.keep_alive)
        state = watch.inspect(state)
        stream, confirmed = self._stream(state)
        clock = Clock(time.monotonic, lambda: time.time_ns() // 1000)
        interval_s = min(_STATUS_INTERVAL_S, sender_timeout_s(sql) / 4)
        confirmation = Confirmation(stream, clock, interval_s=interval_s, confirmed=confirmed)
        self.keep_alive.add(confirmation.send_status_if_due)
        directory = pipeline.values_directory / pipeline.slot
        log = TopicReader(pipeline.kafka.client(), self.keep_alive, directory=directory)
        moved_rows = self.closing.enter_context(SpillingMap(directory))
        toast = ToastCache(pipeline, log, state, published.values(), self.say)
        self.closing.callback(toast.close)
        batch = Batch(
            publisher=self.publisher,
            confirmation=confirmation,
            state=state,
            settings=pipeline.capture,
            clock=clock,
            report=self.committed,
            memory=toast.store,
        )
        unfinished = UnfinishedTransactions()
        visible = VisibleCommits(sql, self.keep_alive)
        shapes = CatalogueShapes(
            sql,
            pipeline,
            tables.of,
            self.say,
            visible,
            membership_of=lambda name: _membership(batch.state, name),
            names_before=partial(_names_before, records),
        )
        altering: list[int] = []  # the transaction whose statements have altered something, until that is looked at

        def ddl_told(*_: object) -> None:
            altering[:] = [unfinished.newest]
            loop.look_next()

        assembler = self._assembler(
            state,
            published,
            passed_over,
            uncaptured,
            former,
            shapes,
            log,
            toast,
            batch,
            moved_rows,
            unfinished,
            visible,
            watch,
            ddl_told=ddl_told,
        )

        def inspect(state: CaptureState) -> CaptureState:
            if altering:
                visible.wait_for(altering.pop(), "tables, types or a publication were altered")
            shapes.forget()
            unfinished.all_seen_by(current_snapshot(sql))  # which forgets those that have ended
            return watch.inspect(topics.inspect(state), assembler, shapes) if stream.is_resumed else state

        loop = CaptureLoop(
            stream=stream,
            batch=batch,
            assembler=assembler,
            confirmation=confirmation,
            clock=clock,
            stopping=self.stopping,
            heartbeat=lambda: emit_heartbeat(sql),
            heartbeat_interval_s=pipeline.source.heartbeat_interval_s,
            inspect=inspect,
            is_resumed=lambda: stream.is_resumed,
            keep_alive=self.keep_alive,
        )
        return LiveStream(loop, assembler, tables, watch, shapes, toast, log, unfinished, lambda: stream.is_resumed)

    def _stream(self, state: CaptureState) -> tuple[ResumedStream, Lsn]:
        """The stream, and what its slot was told before."""
        opened = start_stream(self.pipeline, self.sql, state, self.say)
        self.closing.callback(opened.connection.close)
        stream = self.wrap_stream(opened.connection)
        return ResumedStream(stream, opened.last, begun=opened.begun, hint=RECOVER), opened.confirmed

    def _assembler(
        self,
        state: CaptureState,
        published: Mapping[TableName, PublishedTable],
        passed_over: Mapping[TableName, PublishedTable],
        uncaptured: Mapping[TableName, PublishedTable],
        former: Mapping[int, PublishedTable],
        shapes: CatalogueShapes,
        log: TopicReader,
        toast: ToastCache,
        batch: Batch,
        moved_rows: SpillingMap,
        unfinished: UnfinishedTransactions,
        visible: VisibleCommits,
        watch: TableWatch,
        ddl_told: Notice,
    ) -> Assembler:
        copying = {name for name, copy in state.copying.items() if copy.has_begun}

        def asked(content: bytes, captured: Mapping[TableName, PublishedTable]) -> None:
            """Committed together with the position of the request: nobody who reads on from there forgets it."""
            self.repairs.add(content, captured)
            for name in self.repairs.take_whole_tables():
                if not assembler.comes_again:
                    self.say(f"{name}: copying it again, as was asked for")
                    batch.state = batch.state.asked_to_copy(name)

        def ordered(content: bytes, _: object) -> None:
            try:
                order = CopyOrder.from_bytes(content)
            except UnreadableRequest as error:
                self.say(f"warning: an order about copies is ignored: {error}")
                return
            if order.slot != self.pipeline.slot or assembler.comes_again:
                return
            if order.pid or not order.is_signed(self.order_secret):
                self.say(unsigned(order))
                return
            before = batch.state.with_unread(assembler.unread)
            batch.state, said = obeyed(before, order, self.pipeline.source.table_names)
            for name in batch.state.copied.keys() - before.copied.keys():
                assembler.copied(name)
            for sentence in said:
                self.say(f"{sentence} (ordered by role {order.role})")

        def of_partition(name: TableName, partition: int) -> None:
            """Committed together with its rows: whoever reads on from there knows that there are some."""
            batch.state = batch.state.with_partition(name, partition)

        assembler = Assembler(
            published,
            passed_over=passed_over,
            uncaptured=uncaptured,
            former=former,
            outdated=state.outdated(published),
            copying=copying & published.keys(),
            unfinished=unfinished,
            epoch=state.epoch,
            skip_to=(state.commit_lsn, state.seq),
            end_lsn=Lsn(state.end_lsn),
            commit_time_ms=state.commit_time_ms,
            last_transaction=state.last_transaction,
            begun=state.begun,
            only_local=self.pipeline.source.origin == "none",
            shapes=shapes,
            log=log,
            memory=toast.store,
            downstream=_Downstream(batch, toast, self.say),
            messages=_message_channel(self.pipeline, state.database),
            outbox=_outbox_channel(self.pipeline, self.say),
            notices={REPAIR_PREFIX: asked, COPIES_PREFIX: ordered, DDL_PREFIX: ddl_told},
            moved_rows=moved_rows,
            handoff=state.handoff,
            on_uncaptured=lambda name: watch.described(batch.state, name, unfinished.newest, visible),
            on_partition=of_partition,
        )
        return assembler


def _message_channel(pipeline: Pipeline, database: str) -> MessageChannel:
    return MessageChannel(
        frozenset(pipeline.source.messages),
        control_topic(pipeline.name, MESSAGES),
        server=pipeline.name,
        database=database,
        version=version("lockstep"),
    )


def _outbox_channel(pipeline: Pipeline, say: Callable[[str], None]) -> OutboxChannel | None:
    if pipeline.source.outbox_name is None:
        return None
    listed = TopicAdmin(pipeline.kafka.client()).all_partition_counts()
    topics = OutboxTopics(
        partial(outbox_topic, pipeline.name),
        shared_outbox_topic(pipeline.name),
        [topic for topic in listed if is_outbox_topic(pipeline.name, topic)],
        most=OUTBOX_TYPES_MAX,
        say=say,
    )
    return OutboxChannel(pipeline.source.outbox_name, topics)


def _membership(state: CaptureState, name: TableName) -> str | None:
    """What was recorded of a table that is followed; None for one that is to be copied anyway."""
    if state.has_copy(name):
        return state.memberships.get(name)
    copy = state.copying.get(name)
    return copy.membership if copy is not None and copy.has_begun else None


def _names_before(records: Sequence[SchemaRecord], table: Table) -> set[str]:
    """The names of the columns that a table had in earlier epochs than this one."""
    return {
        column.name
        for record in records
        if record.table.name == table.name and record.table.epoch < table.epoch
        for column in record.table.columns
    }
