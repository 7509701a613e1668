"""Builds one stream with all of its parts, each before its user."""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import psycopg

from cdc.capture.assembler import Assembler
from cdc.capture.batch import Batch, Committed, Publisher, commit_pace
from cdc.capture.confirmation import Clock, Confirmation, KeepAlive
from cdc.capture.loop import CaptureLoop
from cdc.capture.outbox import OutboxChannel, OutboxTopics
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import (
    NeedLargeValues,
    NeedLiveKeys,
    NeedRowBefore,
    NeedShape,
    Notice,
    PassedOver,
    Question,
    Uncaptured,
)
from cdc.capture.relations import Relations
from cdc.capture.resume import StreamProgress
from cdc.capture.resumed_stream import ResumedStream
from cdc.capture.row_changes import RowChanges
from cdc.capture.source import Stream
from cdc.event_format.messages import MessageChannel
from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import MESSAGES, control_topic, is_outbox_topic, outbox_topic, shared_outbox_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import UnsupportedChange
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.pipeline_settings import Pipeline
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
"""The most types of an outbox that get a topic of their own: topics cost brokers, and applications choose the types."""

_STATUS_INTERVAL_S: Final = 2.0
"""Shows observers within seconds whether a capture works on a copy or hangs."""

StreamWrapper = Callable[[ReplicationConnection], Stream]


@dataclass(frozen=True, slots=True)
class _Notices:
    """Applies messages for capture itself to the state, which is committed with the messages' position: no later reader
    misses a request."""

    pipeline: Pipeline
    batch: Batch
    assembler: Assembler
    repairs: RepairRequests
    order_secret: bytes
    say: Callable[[str], None]

    def obey(self, notice: Notice) -> None:
        if notice.prefix == REPAIR_PREFIX:
            self._repair(notice.content)
        elif notice.prefix == COPIES_PREFIX:
            self._copy_order(notice.content)

    def _repair(self, content: bytes) -> None:
        relations = self.assembler.relations
        self.repairs.add(content, {**relations.passed_over, **relations.tables})
        for name in self.repairs.take_whole_tables():
            if not self.assembler.progress.comes_again:
                self.say(f"{name}: copying it again, as was asked for")
                self.batch.state = self.batch.state.asked_to_copy(name)

    def _copy_order(self, content: bytes) -> None:
        try:
            order = CopyOrder.from_bytes(content)
        except UnreadableRequest as error:
            self.say(f"warning: an order about copies is ignored: {error}")
            return
        if order.slot != self.pipeline.slot or self.assembler.progress.comes_again:
            return
        if order.pid or not order.is_signed(self.order_secret):
            self.say(unsigned(order))
            return
        before = self.batch.state.with_unread(self.assembler.rows.unread)
        self.batch.state, said = obeyed(before, order, self.pipeline.source.table_names)
        for name in self.batch.state.copied.keys() - before.copied.keys():
            self.assembler.relations.copied(name)
        for sentence in said:
            self.say(f"{sentence} (ordered by role {order.role})")


@dataclass(slots=True)
class _Source:
    """Answers the loop's questions: from the database, the topics, and the store of large values."""

    sql: psycopg.Connection[Any]
    stream: ResumedStream
    batch: Batch
    assembler: Assembler
    notices: _Notices
    shapes: CatalogueShapes
    log: TopicReader
    toast: ToastCache
    watch: TableWatch
    topics: TopicWatch
    visible: VisibleCommits
    unfinished: UnfinishedTransactions
    keep_alive: KeepAlive
    stopping: Callable[[], bool]
    interval_s: float
    say: Callable[[str], None]
    altering: int | None = None
    """The transaction whose statements have altered something, until that is inspected."""

    def answer(self, question: Question) -> Any:
        match question:
            case NeedShape():
                return self._shape(question)
            case NeedLiveKeys():
                return self.log.live_keys(question.topic)
            case NeedRowBefore():
                return self.log.row_before(question.topic, question.key, question.prefix)
            case NeedLargeValues():
                self.toast.reload(question.published, question.position)
            case Uncaptured():
                self.watch.described(self.batch.state, question.name, self.unfinished.newest, self.visible)
            case PassedOver():
                self.say(f"{question.name}: {question.why}; its changes wait for a copy of it")
            case Notice(prefix=prefix) if prefix == DDL_PREFIX:
                self.altering = self.unfinished.newest
                return True
            case Notice():
                self.notices.obey(question)
        return None

    def _shape(self, question: NeedShape) -> PublishedTable | None:
        try:
            return self.shapes.adopt(question.relation, question.known, question.xid)
        except UnsupportedChange:
            if question.is_followed:
                raise
            return None  # the table's copy reports the problem

    def is_resumed(self) -> bool:
        return self.stream.is_resumed

    def inspect(self, state: CaptureState) -> CaptureState:
        if self.altering is not None:
            self.visible.wait_for(self.altering, "tables, types or a publication were altered")
            self.altering = None
        self.shapes.forget()
        self.unfinished.all_seen_by(current_snapshot(self.sql))  # this drops those that have ended
        if not self.stream.is_resumed:
            return state
        return self.watch.inspect(self.topics.inspect(state), self.assembler, self.shapes)

    def heartbeat(self) -> None:
        emit_heartbeat(self.sql)


@dataclass(frozen=True, slots=True)
class LiveStream:
    """What follows a slot, and what copies in the middle of the stream use."""

    loop: CaptureLoop
    assembler: Assembler
    tables: PublishedTables
    watch: TableWatch
    shapes: CatalogueShapes
    toast: ToastCache
    log: TopicReader
    unfinished: UnfinishedTransactions
    is_resumed: Callable[[], bool]
    """Whether the stream is known to be the one that was published from. Before, nothing may be copied."""


@dataclass(frozen=True, slots=True)
class StreamOpener:
    """Opens the stream of a pipeline; what must be closed goes to ``closing``."""

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
    """Tables that some stream of this process has seen published; those of this one are added."""

    def open(self, state: CaptureState) -> LiveStream:
        """Start streaming where ``state`` ends. Raises PositionMismatch if the slot doesn't fit the state, Unavailable
        if PostgreSQL or Kafka can't be reached, and LockstepError for what they refuse."""
        pipeline, sql = self.pipeline, self.sql
        require_slot(sql, state)
        tables = PublishedTables(pipeline, sql, state.database)
        records = read_schema_records(pipeline.kafka.client(), pipeline.name)
        recorded = {record.table.name: record.table for record in records}
        self.was_published.update(recorded)  # a table's shape is recorded with its copy, which only begins then
        watch = TableWatch(pipeline, sql, self.say, shapes=recorded, was_published=self.was_published)
        # A table is followed once it has a copy on its topic: before, an update may leave out values that the topic
        # lacks.
        followed = {*state.memberships, *(name for name, copy in state.copying.items() if copy.has_begun)}
        state = watch.inspect(state)
        relations = self._relations(tables, records, followed, state)
        stream, confirmed = self._stream(state)
        clock = Clock(time.monotonic, lambda: time.time_ns() // 1000)
        status_s = min(_STATUS_INTERVAL_S, sender_timeout_s(sql) / 4)
        confirmation = Confirmation(stream, clock, interval_s=status_s, confirmed=confirmed)
        self.keep_alive.add(confirmation.send_status_if_due)
        log = TopicReader(pipeline.kafka.client(), self.keep_alive, directory=pipeline.values_directory / pipeline.slot)
        toast = ToastCache(pipeline, log, state, relations.tables.values(), self.say)
        self.closing.callback(toast.close)
        batch = Batch(
            publisher=self.publisher,
            confirmation=confirmation,
            state=state,
            size=pipeline.batch,
            pace=commit_pace(pipeline.capture),
            clock=clock,
            report=self.committed,
            memory=toast.store,
        )
        unfinished = UnfinishedTransactions()
        assembler = self._assembler(state, relations, toast, unfinished)
        visible = VisibleCommits(sql, self.keep_alive)
        membership_of, names_before = lambda name: _membership(batch.state, name), partial(_names_before, records)
        shapes = CatalogueShapes(sql, pipeline, tables.of, self.say, visible, membership_of, names_before)
        source = _Source(
            sql,
            stream,
            batch,
            assembler,
            _Notices(pipeline, batch, assembler, self.repairs, self.order_secret, self.say),
            shapes,
            log,
            toast,
            watch,
            TopicWatch(pipeline, self.keep_alive),
            visible,
            unfinished,
            self.keep_alive,
            self.stopping,
            pipeline.source.heartbeat_interval_s,
            self.say,
        )
        loop = CaptureLoop(stream, batch, assembler, source, confirmation, clock)
        return LiveStream(loop, assembler, tables, watch, shapes, toast, log, unfinished, source.is_resumed)

    def _relations(
        self,
        tables: PublishedTables,
        records: Sequence[SchemaRecord],
        followed: Collection[TableName],
        state: CaptureState,
    ) -> Relations:
        """Topics retain the shapes of all tables ever captured; those no longer configured are only counted."""
        recorded = {record.table.name: record.table for record in records}
        shapes = {name: tables.of(recorded[name]) for name in self.pipeline.source.table_names if name in recorded}
        published = {name: shape for name, shape in shapes.items() if name in followed}
        of_today = {0, *(table.oid for table in recorded.values())}
        relations = {record.table.oid: record.table for record in records if record.table.name in shapes}
        return Relations(
            published,
            passed_over={name: shape for name, shape in shapes.items() if name not in followed},
            uncaptured={name: tables.only_counted(table) for name, table in recorded.items() if name not in shapes},
            former={oid: tables.only_counted(table) for oid, table in relations.items() if oid not in of_today},
            outdated=state.outdated(published),
            copying={name for name, copy in state.copying.items() if copy.has_begun and name in published},
            outbox=_outbox_channel(self.pipeline, self.say),
        )

    def _stream(self, state: CaptureState) -> tuple[ResumedStream, Lsn]:
        """The stream, and the position that was confirmed to its slot before."""
        opened = start_stream(self.pipeline, self.sql, state, self.say)
        self.closing.callback(opened.connection.close)
        stream = self.wrap_stream(opened.connection)
        return ResumedStream(stream, opened.last, begun=opened.begun, hint=RECOVER), opened.confirmed

    def _assembler(
        self, state: CaptureState, relations: Relations, toast: ToastCache, unfinished: UnfinishedTransactions
    ) -> Assembler:
        pipeline = self.pipeline
        progress = StreamProgress(
            position=(state.commit_lsn, state.seq),
            end_lsn=Lsn(state.end_lsn),
            commit_time_ms=state.commit_time_ms,
            last_transaction=state.last_transaction,
            begun=state.begun,
            only_local=pipeline.source.origin == "none",
        )
        moved_rows = self.closing.enter_context(SpillingMap(pipeline.values_directory / pipeline.slot))
        return Assembler(
            RowChanges(
                relations, progress, toast.store, epoch=state.epoch, moved_rows=moved_rows, handoff=state.handoff
            ),
            messages=_message_channel(pipeline, state.database),
            notices=(REPAIR_PREFIX, COPIES_PREFIX, DDL_PREFIX),
            unfinished=unfinished,
        )


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
    """What was recorded of a followed table; None if it is to be copied anyway."""
    if state.has_copy(name):
        return state.memberships.get(name)
    copy = state.copying.get(name)
    return copy.membership if copy is not None and copy.has_begun else None


def _names_before(records: Sequence[SchemaRecord], table: Table) -> set[str]:
    """The names of a table's columns in earlier epochs."""
    return {
        column.name
        for record in records
        if record.table.name == table.name and record.table.epoch < table.epoch
        for column in record.table.columns
    }
