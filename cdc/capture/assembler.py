"""Turns messages of the stream into events: which relation, which tag, which key. The same WAL gives the same events.

Tag rules: ``seq`` counts row events of a transaction from 1. A key change takes two numbers, a TRUNCATE one per table.
A message outside of transactions has 0: a transaction may commit at the very LSN at which the message ends.
Changes that the recorded state says were published are counted but not returned. So are those of a table that waits for
its copy: a restart in the middle of a transaction finds the same numbers, whichever tables are followed by then.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cdc.capture.key_moves import KeyMoves, RowMap
from cdc.capture.messages_and_outbox import Headers, MessageChannel, OutboxChannel, OutboxRoute
from cdc.capture.old_rows import OldRows, Partitions, filled
from cdc.capture.published_table import PublishedTable, shape_difference
from cdc.capture.toast_rows import ToastRows
from cdc.model.errors import LockstepError, UnsupportedChange
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.model.tag import SEQ_MAX
from cdc.protocol.control_records import PublishedPart, SchemaRecord, StreamedTransaction
from cdc.protocol.envelope import event_value, tag_prefix, tag_text
from cdc.protocol.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Fields,
    FullImage,
    Insert,
    KeyImage,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    StreamAbort,
    Truncate,
    Type,
    Update,
)
from cdc.protocol.visibility import UnfinishedTransactions
from cdc.protocol.walsender import WAL_DATA_OFFSET, Frame, unix_ms
from cdc.toast.memory import ToastMemory

Event = tuple[str, bytes, bytes | None, bytes | Headers | None]
"""(topic, key, value, a tombstone's tag or headers). A plain tuple: one is made for every row."""

Notice = Callable[[bytes, Mapping[TableName, PublishedTable]], None]
"""Gets a message for capture itself: its content, and the captured tables."""

_ROW_HEAD: Final = struct.Struct("!BIB")
"""What a row's message begins with: its kind, the relation, and which image of the row comes first."""
_INSERT, _UPDATE, _NEW_IMAGE = b"IUN"
_WRITING: Final = (_INSERT, _UPDATE)
_ROW_KINDS: Final = b"IUD"

_NULL = b"null"
_OUTSIDE_SEQ = 0
"""The ``seq`` of a message outside of transactions."""
_NO_NOTICES: Mapping[str, Notice] = {}
_NO_TABLES: Mapping[TableName, PublishedTable] = {}
_NO_RELATIONS: Mapping[int, PublishedTable] = {}


class _Incomplete(Exception):
    """A row can't be published in full: these columns of it aren't known. None: what it was may never have come."""

    def __init__(self, published: PublishedTable, columns: Sequence[str]) -> None:
        super().__init__()
        self.published = published
        self.columns = columns


@dataclass(frozen=True, slots=True)
class _PassedOver:
    """A table that isn't followed before its copy, in the shape that its rows have in the stream."""

    published: PublishedTable


@dataclass(frozen=True, slots=True)
class OrdinaryRows:
    """Events of rows that came one after the other: the topic, keys and values, and the values' bytes together.

    ``following`` is a frame that was received after them.
    """

    topic: str
    rows: Sequence[tuple[bytes, bytes]]
    size: int
    following: Frame | None


class Shapes(Protocol):
    """Turns a Relation message into the table that it describes."""

    def adopt(self, relation: Relation, known_table: PublishedTable, xid: int | None = None) -> PublishedTable:
        """The table from here on, with ``unrecorded`` set where its shape differs from what was recorded.

        ``xid`` is that of the transaction in which it is described, None outside of one.

        Raises UnsupportedChange when no key is left.
        """
        ...


class PublishedLog(Protocol):
    """What the topics hold. Everything that was sent before must be committed when it is asked."""

    def live_keys(self, topic: str) -> Iterator[bytes]:
        """The keys whose newest event isn't a delete."""
        ...

    def row_before(self, topic: str, key: bytes, prefix: bytes) -> bytes | None:
        """The row, as JSON, that a key had before the transaction of this tag prefix; None when it had none."""
        ...


class Downstream(Protocol):
    """Where the events go that were returned, and what they left in the store of large values."""

    def commit_pending(self, assembler: "Assembler") -> None:
        """Commit everything that the assembler has returned so far, if that isn't done yet."""
        ...

    def reload_toast(self, published: PublishedTable, position: tuple[int, int]) -> None:
        """Read a table's large values from its topic into the memory again. Nothing is pending.

        ``position`` is the (commit LSN, seq) of the last change that was committed.
        """
        ...

    def passed_over(self, name: TableName, columns: Sequence[str]) -> None:
        """A table isn't followed from here to its copy: an update left out these columns, and nobody knows them.

        Without columns: a row of an append-only table was changed, and its copy may lack what it was.
        """
        ...

    def left_unread(self, topic: str, keys: Sequence[bytes]) -> None:
        """The rows of these keys changed, and the change isn't published: the copy of their table reads them."""
        ...


class Assembler:
    """Follows one stream. ``skip_to`` is the (commit LSN, seq) of the last published change.

    ``shapes``, ``log`` and ``memory`` are asked for what the stream lacks; without them a change that needs one stops
    the run. Before ``log`` is asked, ``downstream`` commits. ``notices`` get the messages that are for capture itself,
    by prefix; those are never published. ``moved_rows`` keeps the rows of a transaction whose keys can swap.

    Of a transaction that is ``begun`` so many messages are skipped as its part says. Where it doesn't, changes are
    skipped that have numbers up to ``skip_to``; and where a TRUNCATE was published in part, tables of it.

    Rows of ``passed_over`` are counted as if they were published, and are not: these tables lack a copy to begin with.
    A table comes to them when an update of it can't be completed. ``uncaptured`` are counted like them: they were
    captured before, and perhaps still when the last transaction was published in part. So are ``former``, by oid:
    relations that had a captured table's name before another one got it. ``outdated`` are followed, but have to be
    copied again: what is known of their rows may be of before a change that the stream didn't show.

    ``handoff`` is the last consistent point of a first copy. If that was interrupted, it isn't where the stream begins,
    and rows of an append-only table that were changed in between may be missing from the copy.

    Tables in ``copying`` are followed while they are copied: the memory knows what was published of them since that
    began, and their topics aren't asked. ``unfinished`` gets the xids of all transactions.

    ``on_uncaptured`` is called for each description of a table that isn't captured. What it raises ends the run before
    the end of the running transaction is published. ``on_partition`` is for each partition whose rows come.
    """

    def __init__(
        self,
        tables: Mapping[TableName, PublishedTable],
        *,
        passed_over: Mapping[TableName, PublishedTable] = _NO_TABLES,
        uncaptured: Mapping[TableName, PublishedTable] = _NO_TABLES,
        former: Mapping[int, PublishedTable] = _NO_RELATIONS,
        outdated: Collection[TableName] = (),
        copying: Collection[TableName] = (),
        unfinished: UnfinishedTransactions | None = None,
        epoch: int,
        skip_to: tuple[int, int],
        end_lsn: Lsn,
        commit_time_ms: int,
        last_transaction: StreamedTransaction | None = None,
        begun: StreamedTransaction | None = None,
        only_local: bool = False,
        shapes: Shapes | None = None,
        log: PublishedLog | None = None,
        memory: ToastMemory | None = None,
        downstream: Downstream | None = None,
        messages: MessageChannel | None = None,
        outbox: OutboxChannel | None = None,
        notices: Mapping[str, Notice] = _NO_NOTICES,
        moved_rows: RowMap | None = None,
        handoff: int = 0,
        on_uncaptured: Callable[[TableName], None] = lambda _: None,
        on_partition: Callable[[TableName, int], None] = lambda *_: None,
    ) -> None:
        self._on_partition = on_partition
        self._on_uncaptured = on_uncaptured
        self._handoff = handoff
        self._tables = dict(tables)
        self._passed_over = dict(passed_over)
        self._uncaptured = uncaptured
        self._former = dict(former)
        self._outdated = set(outdated)
        self._copying = set(copying)
        self._unfinished = unfinished or UnfinishedTransactions()
        self._of_oid = {
            published.table.oid: name
            for name, published in [*passed_over.items(), *tables.items()]
            if published.table.oid
        }
        self._epoch = epoch
        # Of a transaction that is complete nothing follows, also where a table is counted by now that wasn't then.
        self._skip_to = (skip_to[0], SEQ_MAX) if end_lsn > skip_to[0] else skip_to
        self._complete_to = end_lsn
        self._shapes = shapes
        self._log = log
        self._toast = ToastRows(memory)
        self._downstream = downstream
        self._messages = messages
        self._outbox = outbox
        self._notices = notices
        self._relations: dict[int, PublishedTable | _PassedOver | OutboxRoute | None] = {}
        """None: a table that the publication sends and nobody captures."""
        self._described: dict[int, Relation] = {}
        self._prefix = b""
        self._only_local = only_local
        self._commit_lsn = 0
        self._commit_time_us = 0
        self._transaction_time_ms = 0
        self._xid = 0
        self._begun_before = begun
        self._messages_done = 0
        """Messages of the running transaction that are done with, as ``PublishedPart`` has it."""
        self._seq_done = 0
        """The ``seq`` after them."""
        self._published_messages = 0
        """So many of them were published before the restart."""
        self._emptied_at = 0
        """Where the transaction commits that emptied a table last: its deletes go before ``position`` does."""
        self._touched: list[PublishedTable] = []
        self._moves = KeyMoves(moved_rows)
        self._partitions = Partitions()
        self._came: dict[int, TableName] = {}
        """Partitions that the running transaction has described, and their tables."""
        self._seq = 0
        self.has_kernels = False
        """Whether the stream has described a table with a compiled encoder. Before, no frame is ordinary."""
        self.uncaptured_relations: set[int] = set()
        """Relations that the publication sends and nobody captures."""
        self.in_transaction = False
        self.position = skip_to
        """(commit LSN, seq) of the last change that was counted."""
        self.end_lsn = end_lsn
        """The end of the last complete transaction."""
        self.commit_time_ms = commit_time_ms
        """When the last complete transaction committed."""
        self.last_transaction = last_transaction
        """Which one that was."""
        self.new_shapes: list[SchemaRecord] = []
        """Shapes that came into use and aren't committed yet; whoever commits clears the list."""
        self.unread: dict[TableName, dict[bytes, None]] = {}
        """Keys of tables that are being copied, of which a change was left out; whoever commits clears it."""

    @property
    def tables(self) -> Mapping[TableName, PublishedTable]:
        """The tables that are followed, in their newest shape."""
        return self._tables

    @property
    def passed_over(self) -> Mapping[TableName, PublishedTable]:
        """The tables that aren't followed before their copy, in the newest shape that was recorded."""
        return self._passed_over

    @property
    def comes_again(self) -> bool:
        """Whether all of the running transaction is in the recorded state, and only comes again.

        That state may have had none of its rows, as of a transaction with nothing but a message for capture.
        """
        return self.in_transaction and self._commit_lsn < self._complete_to

    @property
    def begun(self) -> StreamedTransaction | None:
        """The transaction of which changes were returned, and not its end; None where there is none."""
        is_counted = self._commit_lsn in (self.position[0], self._emptied_at)
        before = self._begun_before
        if self.in_transaction and is_counted and self._commit_lsn >= self.end_lsn:
            if before is not None and self._messages_done < self._published_messages:
                return before
            part = PublishedPart(self._messages_done, self._seq_done)
            return StreamedTransaction(self._commit_lsn, self._xid, self._commit_time_us, self._only_local, part)
        return before if before is not None and before.commit_lsn >= self.end_lsn else None

    def _commit_pending(self) -> None:
        if self._downstream is not None:
            self._downstream.commit_pending(self)

    def feed(self, message: Message, lsn: int) -> Sequence[Event]:
        """The events of one message; ``lsn`` is where it starts in the WAL.

        Raises UnsupportedChange for what can't be published exactly and LockstepError for a stream that makes no sense.
        """
        kind = type(message)
        if kind is Insert or kind is Update or kind is Delete:
            events = self._changed_row(kind, message, lsn)
            self._done_with_message()
            return events
        return self._other(message, lsn)

    def _done_with_message(self) -> None:
        self._messages_done += 1
        if self._messages_done == self._published_messages:
            assert self._begun_before is not None
            assert self._begun_before.part is not None
            self._seq = self._begun_before.part.seq
        self._seq_done = self._seq

    def _changed_row(self, kind: type, message: Any, lsn: int) -> Sequence[Event]:
        """The events of a message of this ``kind``, one about a row. Raises as ``feed``."""
        try:
            published = self._relations[message.relation_id]
        except KeyError:
            raise LockstepError("the stream has a row of a relation that it didn't describe") from None
        if published is None:
            return ()
        if not self.in_transaction:
            raise LockstepError("the stream has a row outside of a transaction")
        seq = self._seq
        try:
            if type(published) is _PassedOver:
                return self._pass_over(published.published, message)
            if type(published) is OutboxRoute:
                return self._routed(published, message)
            assert isinstance(published, PublishedTable)
            if kind is Insert:
                return self._insert(published, message, lsn)
            if kind is Update:
                return self._update(published, message, lsn)
            return self._delete(published, message, lsn)
        except _Incomplete as incomplete:
            self._seq = seq
            if self._is_being_copied(incomplete.published):
                self._leave_unread(incomplete.published, message)
            else:
                self._stop_following(incomplete)
            return self._pass_over(incomplete.published, message)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            # Not UTF-8, another number of values, or a key that wasn't sent. None of these may show the value, so
            # the cause isn't chained.
            raise UnsupportedChange(
                f"a row of {_name_of(published)} can't be encoded ({type(error).__name__})",
                hint="if the database's encoding is SQL_ASCII: its text must be valid UTF-8; else please report it."
                " Nothing was skipped",
            ) from None

    def ordinary(
        self, frame: Frame, receive: Callable[[], Frame | None], *, rows_max: int, bytes_max: int
    ) -> OrdinaryRows | None:
        """The events of a frame and those that follow, as far as compiled code encodes them; None for any other frame.

        Ordinary rows are inserted, or updated without an old image, and nothing but their own values decides over their
        events. ``feed`` takes all others, and gives the same for these. ``receive`` gives the frames that follow, as
        long as they are here. It ends with ``rows_max`` rows or ``bytes_max`` bytes.
        """
        try:
            kind, relation_id, image = _ROW_HEAD.unpack_from(frame, WAL_DATA_OFFSET)
        except struct.error:
            return None
        if image != _NEW_IMAGE or kind not in _WRITING or not self.in_transaction:
            return None
        published = self._relations.get(relation_id)
        if type(published) is not PublishedTable or published.kernel is None or published.keys_can_swap:
            return None
        short_bytes = self._toast.short_bytes(published)
        if short_bytes < 0 or published.unrecorded is not None or self._is_repeated():
            return None
        rows, following, size = published.kernel.encode(
            frame,
            receive,
            relation=relation_id,
            updates=not published.old_rows.lacking and not self._may_be_missing(published),
            prefix=self._prefix,
            seq=self._seq + 1,
            source=self._source(published),
            time=b"%d" % self._transaction_time_ms,
            text_max=short_bytes,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
        if not rows:
            return None
        self._messages_done += len(rows)
        self._seq += len(rows)
        self._seq_done = self._seq
        self.position = (self._commit_lsn, self._seq)
        self._toast.forget_short(published, rows)
        return OrdinaryRows(published.topic, rows, size, following)

    def is_done_with(self, frame: Frame) -> bool:
        """Whether a frame has a row of one of the ``uncaptured_relations``: it needn't be decoded then, nor fed."""
        try:
            kind, relation_id, _ = _ROW_HEAD.unpack_from(frame, WAL_DATA_OFFSET)
        except struct.error:
            return False
        if relation_id not in self.uncaptured_relations or kind not in _ROW_KINDS:
            return False
        self._done_with_message()
        return True

    def _route(self, relation_id: int, route: PublishedTable | _PassedOver | OutboxRoute | None) -> None:
        """From here on rows of a relation go there."""
        self._relations[relation_id] = route
        if route is None:
            self.uncaptured_relations.add(relation_id)
        else:
            self.uncaptured_relations.discard(relation_id)
            self.has_kernels |= isinstance(route, PublishedTable) and route.kernel is not None

    def _other(self, message: Message, lsn: int) -> Sequence[Event]:
        match message:
            case Begin():
                self._begin(message)
            case Commit():
                self._commit(message)
            case Relation():
                self._described_in_stream(message)
            case Truncate():
                return tuple(self.truncate(message, lsn))
            case LogicalMessage():
                events = self._message(message)
                if self.in_transaction:
                    self._done_with_message()
                return events
            case Type() | Origin():
                pass  # types are read from the catalogue
            case StreamAbort():
                pass  # PostgreSQL 18 sends it of a subtransaction unasked; nothing of it came
            case Insert() | Update() | Delete():
                raise AssertionError("rows are handled before")
        return ()

    def _begin(self, begin: Begin) -> None:
        if self.in_transaction:
            raise LockstepError("the stream begins a transaction inside another")
        self.in_transaction = True
        self._commit_lsn = begin.commit_lsn
        self._commit_time_us = begin.commit_time_us
        self._transaction_time_ms = unix_ms(begin.commit_time_us)
        self._xid = begin.xid
        self._unfinished.add(begin.xid)
        self._seq = self._seq_done = self._messages_done = self._published_messages = 0
        before = self._begun_before
        if before is not None and before.part is not None and before.commit_lsn == begin.commit_lsn:
            self._published_messages = before.part.messages
        self._prefix = tag_prefix(self._epoch, begin.commit_lsn)
        for published in self._touched:
            published.source = b""
        self._touched.clear()
        self._moves.clear()

    def _commit(self, commit: Commit) -> None:
        if not self.in_transaction or commit.commit_lsn != self._commit_lsn:
            raise LockstepError("the stream commits a transaction that it didn't begin")
        self.in_transaction = False
        for partition, name in self._came.items():
            self._on_partition(name, partition)
        self._came.clear()
        if commit.end_lsn > self.end_lsn:
            self.end_lsn = commit.end_lsn
            self.commit_time_ms = self._transaction_time_ms
            self.last_transaction = StreamedTransaction(
                commit.commit_lsn, self._xid, commit.commit_time_us, self._only_local
            )

    def replace(self, published: PublishedTable, *, copying: bool = False) -> None:
        """Note that a table was copied here: from now on it has this shape, or is captured for the first time.

        With ``copying``, its copy begins here, and ends with ``copied``. Raises UnsupportedChange when the stream has
        described it in a shape without a key.
        """
        name, oid = published.table.name, published.table.oid
        passed_over = self._passed_over.pop(name, None)
        known_before = self._tables.get(name, passed_over)
        self._outdated.discard(name)
        if copying:
            self._copying.add(name)
        self._tables[name] = published
        self._stand_for(published, known_before)
        if oid in self._described:  # PostgreSQL describes it again only when it changes
            self._relation(self._described[oid])

    def copied(self, name: TableName) -> None:
        """The copy of a table has ended: all of its rows are on its topic."""
        self._copying.discard(name)

    def _message(self, message: LogicalMessage) -> Sequence[Event]:
        """A message with one of our prefixes. One outside of transactions comes before the one that commits there."""
        notice = self._notices.get(message.prefix)
        if notice is not None:
            notice(message.content, {**self._passed_over, **self._tables})
            return ()
        channel = self._messages
        if channel is None or message.prefix not in channel.prefixes:
            return ()  # heartbeats matter by their commit alone
        if self.in_transaction:
            if not self._counted():
                return ()
            prefix, seq, time_ms = self._prefix, self._seq, self._transaction_time_ms
            xid: int | None = self._xid
        elif (message.lsn, _OUTSIDE_SEQ) <= self._skip_to:
            return ()
        else:
            # Its own time isn't sent. Everything that committed before it has come, so its end may be confirmed.
            prefix, seq, xid = tag_prefix(self._epoch, message.lsn), _OUTSIDE_SEQ, None
            time_ms = self.commit_time_ms
            self.position = (message.lsn, seq)
            self.end_lsn = max(self.end_lsn, message.lsn)
        return (channel.event(message, prefix=prefix, seq=seq, commit_time_ms=time_ms, xid=xid),)

    def _routed(self, route: OutboxRoute, message: Message) -> Sequence[Event]:
        """An inserted row of the outbox. Rows that are deleted or changed later were delivered by then."""
        if not self._counted() or type(message) is not Insert:
            return ()
        return (route.event(message.new, tag=tag_text(self._prefix, self._seq)),)

    def _described_in_stream(self, relation: Relation) -> None:
        is_captured = self._name_by(relation) is not None
        at = (self._commit_lsn, self._messages_done)
        table = self._partitions.described(relation, is_captured=is_captured, at=at)
        if is_captured or table is None:
            self._relation(relation)
        else:
            self._route(relation.relation_id, None)  # no row comes under its own name
        published = self._relations.get(table.relation_id) if table is not None else None
        if isinstance(published, PublishedTable) and table is not None:
            self._judge_old_rows(published, table)
            self._came[relation.relation_id] = published.table.name

    def _judge_old_rows(self, published: PublishedTable, relation: Relation) -> None:
        partitions = self._partitions.of(relation.relation_id)
        swap = published.keys_can_swap
        published.old_rows = OldRows.of(published.table, relation, partitions, keys_can_swap=swap)

    def _name_by(self, relation: Relation) -> TableName | None:
        """The captured table that a relation is. One that was recreated under its name takes its topic over."""
        by_name = TableName(relation.schema, relation.name)
        is_known = by_name in self._tables or by_name in self._passed_over
        return by_name if is_known else self._of_oid.get(relation.relation_id)

    def _relation(self, relation: Relation) -> None:
        self._described[relation.relation_id] = relation
        by_name = TableName(relation.schema, relation.name)
        if self._outbox is not None and by_name == self._outbox.table:
            self._route(relation.relation_id, self._outbox.route(relation))
            return
        name = self._name_by(relation)
        if name is None:
            self._on_uncaptured(by_name)
            known_before = self._former.get(relation.relation_id) or self._uncaptured.get(by_name)
            self._route(relation.relation_id, None if known_before is None else _PassedOver(known_before))
            return
        if name in self._passed_over:
            self._route(relation.relation_id, self._described_only(relation, self._passed_over[name]))
            return
        published = self._tables[name]
        if self.in_transaction and published.table.oid not in (0, relation.relation_id):
            self._moves.empty(published.topic)  # rows of the relation that had the name aren't this one's
        before = self._relations.get(relation.relation_id)
        if self._shapes is not None:
            published = self._shapes.adopt(relation, published, self._running_xid)
            if published.unrecorded is None:  # the same shape, perhaps with another key constraint or other storage
                self._tables[name] = published
        else:
            difference = shape_difference(published.table, relation)
            if difference:
                raise UnsupportedChange(f"the shape of {name} changed: {difference}")
        self._judge_old_rows(published, relation)
        self._route(relation.relation_id, published)
        if published.keys_can_swap and self.in_transaction and isinstance(before, PublishedTable):
            was = {column.identity: index for index, column in enumerate(before.table.columns)}
            self._moves.reshape(published.topic, [was.get(column.identity) for column in published.table.columns])

    @property
    def _running_xid(self) -> int | None:
        return self._xid if self.in_transaction else None

    def _described_only(self, relation: Relation, known_table: PublishedTable) -> _PassedOver | None:
        """A table that isn't followed, as the stream describes it; None where it has lost its key."""
        if self._shapes is None:
            return _PassedOver(known_table)
        try:
            return _PassedOver(self._shapes.adopt(relation, known_table, self._running_xid))
        except UnsupportedChange:
            return None  # its copy says what is wrong

    def _stop_following(self, incomplete: _Incomplete) -> None:
        """From here to its copy a table is passed over. The next commit says so, together with what came before."""
        published = incomplete.published
        name = published.table.name
        if published.unrecorded is not None:
            self._record_shape(published, published.unrecorded)
        self._passed_over[name] = self._tables.pop(name)
        for relation_id, described in self._relations.items():
            if isinstance(described, PublishedTable) and described.table.name == name:
                self._route(relation_id, _PassedOver(described))
        if self._downstream is not None:
            self._downstream.passed_over(name, incomplete.columns)

    def _is_being_copied(self, published: PublishedTable) -> bool:
        return published.table.name in self._copying and not self._is_outdated(published)

    def _leave_unread(self, published: PublishedTable, message: Message) -> None:
        """A row of a table that is being copied can't be completed: its copy reads the row again, after this."""
        assert type(message) is Update or type(message) is Insert
        old = message.old if type(message) is Update else None
        encoder = published.encoder
        keys = [encoder.key(filled(message.new, old))]
        if old is not None:
            keys.append(encoder.key(old.fields))
        if published.unrecorded is not None:
            self._record_shape(published, published.unrecorded)
        unread = self.unread.setdefault(published.table.name, {})
        for key in keys:
            unread[key] = None
            self._toast.forget(published, key)
        if self._downstream is not None:
            self._downstream.left_unread(published.topic, keys)

    def _pass_over(self, published: PublishedTable, message: Message) -> Sequence[Event]:
        """Count the change of a row as if it were published: a restart finds the same numbers, whoever is followed."""
        self._counted()
        if type(message) is Update and message.old is not None and _moves_key(published, message):
            self._counted()
        return ()

    def distrust(self, name: TableName) -> None:
        """Rows of a table may have changed without an event: nothing that is known of them completes an update."""
        self._outdated.add(name)
        self._copying.discard(name)

    def _record_shape(self, published: PublishedTable, record: SchemaRecord) -> None:
        """The first row of a new shape is being published: from now on it is the one to compare with."""
        published.unrecorded = None
        self.new_shapes.append(SchemaRecord(record.table, self._commit_lsn, record.change, self._seq, self._epoch))
        known_before = self._tables.get(published.table.name)
        self._tables[published.table.name] = published
        self._stand_for(published, known_before)
        self._toast.shape_in_use(published)
        if record.change.rewritten:
            self.distrust(published.table.name)

    def _stand_for(self, published: PublishedTable, known_before: PublishedTable | None) -> None:
        """A name stands for one relation. The one that had it before, if it is still there, is another table now.

        On another server its number is any table's.
        """
        name, oid = published.table.name, published.table.oid
        self._former.pop(oid, None)
        for other in [other for other, its_name in self._of_oid.items() if its_name == name and other != oid]:
            del self._of_oid[other]
            if known_before is not None:
                self._former[other] = known_before
                if other in self._relations:
                    self._route(other, _PassedOver(known_before))
        self._of_oid[oid] = name

    def record(self, published: PublishedTable) -> None:
        """A table has another shape by now, and the stream, which has no row of it, is past that change."""
        if published.unrecorded is not None and not self.in_transaction:
            record = published.unrecorded
            self._commit_lsn, self._seq = self.end_lsn, 0
            self._record_shape(published, record)

    def truncate(self, message: Truncate, lsn: int) -> Iterator[Event]:
        """A delete and a tombstone for every live key of the truncated tables, all of one table with the same tag.

        ``position`` moves on only after a table's last delete: whoever goes on in the middle finds what is still live.
        Raises UnsupportedChange without a log to read the keys from, LockstepError for an unknown relation.
        """
        self._partitions.truncated(message.relation_ids)
        for relation_id in message.relation_ids:
            self._came.pop(relation_id, None)
            described = self._relations.get(relation_id)
            if isinstance(described, PublishedTable):
                self._judge_old_rows(described, self._described[relation_id])
        for relation_id in message.relation_ids:
            try:
                published = self._relations[relation_id]
            except KeyError:
                raise LockstepError("the stream truncates a relation that it didn't describe") from None
            if published is None or isinstance(published, OutboxRoute):
                continue
            if isinstance(published, _PassedOver):
                self._counted()
                continue
            if published.keys_can_swap:
                self._moves.empty(published.topic)
            if self._messages_done < self._published_messages:
                continue
            self._seq += 1
            seq = self._seq
            if (self._commit_lsn, seq) <= self._skip_to:
                continue
            if not published.table.key:
                yield published.topic, published.encoder.key(()), self._truncated(published, seq, lsn), None
            elif self._log is None:
                raise UnsupportedChange(f"TRUNCATE of {published.table.name}")
            else:
                self._commit_pending()
                self._emptied_at = self._commit_lsn
                for key in self._log.live_keys(published.topic):
                    value = event_value(
                        b"d", self._prefix, seq, _NULL, _NULL, self._source(published), lsn, self._transaction_time_ms
                    )
                    self._toast.forget(published, key)
                    yield published.topic, key, value, None
                    yield published.topic, key, None, tag_text(self._prefix, seq)
            self.position = (self._commit_lsn, seq)
        self._done_with_message()

    def _truncated(self, published: PublishedTable, seq: int, lsn: int) -> bytes:
        """An append-only table has no keys to delete: its log says that it was emptied."""
        source = self._source(published)
        return event_value(b"t", self._prefix, seq, _NULL, _NULL, source, lsn, self._transaction_time_ms)

    def _counted(self) -> bool:
        """Count a row event; False when it was published before the restart."""
        if self._messages_done < self._published_messages:
            return False
        self._seq += 1
        position = (self._commit_lsn, self._seq)
        if position <= self._skip_to:
            return False
        self.position = position
        return True

    def _source(self, published: PublishedTable) -> bytes:
        if not published.source:
            if published.unrecorded is not None:
                self._record_shape(published, published.unrecorded)
            published.source = published.encoder.source(commit_time_ms=self._transaction_time_ms, xid=self._xid)
            self._touched.append(published)
        return published.source

    def _is_repeated(self) -> bool:
        """Whether the next change was published before the restart, and what it left in the memory is there."""
        is_published = self._messages_done < self._published_messages
        return is_published or (self._commit_lsn, self._seq + 1) <= self._skip_to

    def _insert(self, published: PublishedTable, insert: Insert, lsn: int) -> Sequence[Event]:
        new = insert.new
        if UNCHANGED in new and not self._is_repeated():  # an update that made the row fulfil the publication's filter
            columns = published.table.columns
            raise _Incomplete(
                published, [column.name for column, value in zip(columns, new, strict=True) if value is UNCHANGED]
            )
        encoder = published.encoder
        if published.keys_can_swap:
            self._moves.arrive(published.topic, encoder.key(new), new)
        if not self._counted():
            return ()
        key = encoder.key(new)
        if published.toast is not None:
            self._toast.remember(published, key, new)
        return ((published.topic, key, self._value(b"c", published, encoder.row(new), _NULL, lsn), None),)

    def _update(self, published: PublishedTable, update: Update, lsn: int) -> Sequence[Event]:
        encoder = published.encoder
        old = update.old
        if published.old_rows.lacking:
            published.old_rows.require_key(published.table, old, encoder.key_positions)
        if self._may_be_missing(published) and not self._is_repeated():
            raise _Incomplete(published, ())
        new = update.new
        is_partial = UNCHANGED in new
        if is_partial:
            new = filled(new, old)
        key = encoder.key(new)
        old_key = key if old is None else encoder.key(old.fields)
        if self._is_repeated():
            row = _NULL
        elif is_partial:
            row = self._completed(published, update, new, key, old_key)
        else:
            row = encoder.row(new)
            if published.toast is not None:
                self._toast.remember(published, key, new)
                if old_key != key:
                    self._toast.forget(published, old_key)
        before = self._before(published, old)
        if old_key == key:
            if published.keys_can_swap and isinstance(old, FullImage):
                self._moves.change(published.topic, key, old.fields, new)
            if not self._counted():
                return ()
            return ((published.topic, key, self._value(b"u", published, row, before, lsn), None),)
        vacated = self._vacate(published, old_key, old, before, lsn)
        if published.keys_can_swap:
            self._moves.arrive(published.topic, key, new)
        if not self._counted():
            return vacated
        if row is _NULL:  # an earlier version published the first half and not the second
            row = self._completed(published, update, new, key, key)
        return (*vacated, (published.topic, key, self._value(b"c", published, row, _NULL, lsn), None))

    def _delete(self, published: PublishedTable, delete: Delete, lsn: int) -> Sequence[Event]:
        if published.old_rows.lacking:
            published.old_rows.require_key(published.table, delete.old, published.encoder.key_positions)
        if self._may_be_missing(published) and not self._is_repeated():
            raise _Incomplete(published, ())
        key = published.encoder.key(delete.old.fields)
        if published.toast is not None and not self._is_repeated():
            self._toast.forget(published, key)
        return self._vacate(published, key, delete.old, self._before(published, delete.old), lsn)

    def _may_be_missing(self, published: PublishedTable) -> bool:
        """Whether the copy may lack a row that is changed now."""
        return not published.table.key and self._commit_lsn < self._handoff

    def _vacate(
        self, published: PublishedTable, key: bytes, old: KeyImage | FullImage | None, before: bytes, lsn: int
    ) -> Sequence[Event]:
        """A row leaves a key, which then is free, unless another row of a table whose keys can swap is there."""
        rest = None
        if published.keys_can_swap and isinstance(old, FullImage):
            rest = self._moves.vacate(published.topic, key, old.fields)
        row = None
        if rest is KeyMoves.UNKNOWN and not self._is_repeated():
            row = self._row_that_stays(published, key)  # before the change counts: it commits what was sent so far
        elif isinstance(rest, tuple):
            row = published.encoder.row(rest)
        if not self._counted():
            return ()
        if row is not None:  # its own event may not be the newest of the key
            return ((published.topic, key, self._value(b"u", published, row, _NULL, lsn), None),)
        return self._deleted(published, key, before, lsn)

    def _row_that_stays(self, published: PublishedTable, key: bytes) -> bytes | None:
        """The row that had this key before the transaction, and has it still."""
        if self._log is None:
            raise UnsupportedChange(f"rows of {published.table.name} changed places within one statement")
        self._commit_pending()
        return self._log.row_before(published.topic, key, self._prefix)

    def _deleted(self, published: PublishedTable, key: bytes, before: bytes, lsn: int) -> tuple[Event, ...]:
        """The delete, and the tombstone that lets compaction forget the key. Both have the same tag."""
        value = event_value(
            b"d", self._prefix, self._seq, before, _NULL, self._source(published), lsn, self._transaction_time_ms
        )
        if not published.table.key:
            return ((published.topic, key, value, None),)  # its topic isn't compacted
        return (
            (published.topic, key, value, None),
            (published.topic, key, None, tag_text(self._prefix, self._seq)),
        )

    def _value(self, op: bytes, published: PublishedTable, after: bytes, before: bytes, lsn: int) -> bytes:
        """``after`` is the row; null: it was left out of the topic, and is again."""
        op = b"x" if after == _NULL else op
        return event_value(
            op, self._prefix, self._seq, before, after, self._source(published), lsn, self._transaction_time_ms
        )

    def _before(self, published: PublishedTable, old: KeyImage | FullImage | None) -> bytes:
        """What the replica identity delivers of the old row: nothing, its key, or all of it."""
        if old is None:
            return _NULL
        whole = published.old_rows.whole(old)
        return published.encoder.row(whole) if whole is not None else published.encoder.key(old.fields)

    def _completed(self, published: PublishedTable, update: Update, new: Fields, key: bytes, old_key: bytes) -> bytes:
        """The JSON of a row without its unchanged large values, completed from the memory, else from the topic.

        Null for one that was left out of the topic, where these aren't known: it may be as large as before. Raises
        _Incomplete where neither has them: the row was never published, or not under this key.
        """
        indexes = [index for index, value in enumerate(new) if value is UNCHANGED]
        if indexes and self._is_outdated(published):
            raise _Incomplete(published, [published.table.columns[index].name for index in indexes])
        large_values = self._toast.known(published, old_key, indexes)
        if (
            len(large_values) < len(indexes)
            and not self._toast.is_left_out(published, old_key)
            and self._toast.remembers(published)
            and published.table.name not in self._copying
        ):
            self._commit_pending()
            if self._downstream is not None:
                self._downstream.reload_toast(published, self.position)
            large_values = self._toast.known(published, old_key, indexes)
        table = published.table
        unknown = [table.columns[index].name for index in indexes if index not in large_values]
        if unknown and self._toast.is_left_out(published, old_key):
            self._toast.forget(published, old_key)
            self._toast.leave_out(published, key)
            return _NULL
        if unknown:
            raise _Incomplete(published, unknown)
        if published.toast is not None:
            unchanged = [index for index, value in enumerate(update.new) if value is UNCHANGED]
            self._toast.remember(published, key, new, large_values, unchanged)
            if old_key != key:
                self._toast.forget(published, old_key)
        return published.encoder.row_with(new, large_values) if large_values else published.encoder.row(new)

    def _is_outdated(self, published: PublishedTable) -> bool:
        rewritten = published.unrecorded is not None and bool(published.unrecorded.change.rewritten)
        return rewritten or published.table.name in self._outdated

    def remember(self, published: PublishedTable, key: bytes, fields: Fields) -> None:
        """A row was read as of this point of the stream: keep what a later update may leave out."""
        self._toast.remember_read(published, key, fields)

    def forget(self, published: PublishedTable, key: bytes) -> None:
        """Nothing is known of a row any more: an update that leaves values out has them read from its topic."""
        self._toast.forget(published, key)


def _moves_key(published: PublishedTable, update: Update) -> bool:
    """Whether an update with an old image changes the row's key; not where a key can't be encoded."""
    assert update.old is not None
    try:
        return published.encoder.key(filled(update.new, update.old)) != published.encoder.key(update.old.fields)
    except (LockstepError, ValueError, TypeError, IndexError, AttributeError):
        return False


def _name_of(published: PublishedTable | _PassedOver | OutboxRoute) -> TableName:
    if isinstance(published, OutboxRoute):
        return published.channel.table
    return (published.published if isinstance(published, _PassedOver) else published).table.name
