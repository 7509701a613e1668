"""Turns messages of the stream into events: which relation, which tag, which key. The same WAL gives the same events.

It never waits and does no I/O: it asks the loop for what only the catalogue, a topic or a store can say
(``cdc.capture.questions``). ``relations`` knows which table a row belongs to, ``progress`` what was published before a
restart, and ``rows`` which events a row's change becomes.
"""

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from cdc.capture.outbox import OutboxRoute
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import Events, Notice, Steps
from cdc.capture.relations import CountedOnly, Route
from cdc.capture.row_changes import OrdinaryRows, RowChanges
from cdc.event_format.messages import MessageChannel
from cdc.model.errors import LockstepError, UnsupportedChange
from cdc.model.table import TableName
from cdc.model.tag import tag_prefix, tag_text
from cdc.protocol.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Update,
)
from cdc.protocol.visibility import UnfinishedTransactions
from cdc.protocol.walsender import WAL_DATA_OFFSET, Frame

_ROW_HEAD: Final = struct.Struct("!BIB")
"""The start of a row's message: its kind, the relation, and which image of the row comes first."""
_INSERT, _UPDATE, _NEW_IMAGE = b"IUN"
_WRITING: Final = (_INSERT, _UPDATE)
_ROW_KINDS: Final = b"IUD"

_OUTSIDE_SEQ = 0
"""The ``seq`` of a message outside of transactions: a transaction may commit at the LSN at which the message ends."""

_UNENCODABLE: Final = (ValueError, TypeError, IndexError, AttributeError)
"""Not UTF-8, a wrong number of values, or a key that wasn't sent."""


class Assembler:
    """Follows one stream. ``messages`` are published. Those with a prefix in ``notices`` are for capture itself and
    never published. ``unfinished`` gets the xids of all transactions."""

    def __init__(
        self,
        rows: RowChanges,
        *,
        messages: MessageChannel | None = None,
        notices: Collection[str] = (),
        unfinished: UnfinishedTransactions | None = None,
    ) -> None:
        self.rows = rows
        self.relations = rows.relations
        self.progress = rows.progress
        self._handlers: Mapping[type, Callable[[PublishedTable, Any, int], Events | Steps]] = {
            Insert: rows.insert,
            Update: rows.update,
            Delete: rows.delete,
        }
        self._messages = messages
        self._notices = notices
        self._unfinished = unfinished or UnfinishedTransactions()

    def feed(self, message: Message, lsn: int) -> Events | Steps:
        """The events of one message, or the steps to them; ``lsn`` is where it starts in the WAL. Raises
        UnsupportedChange for what can't be published exactly and LockstepError for an inconsistent stream."""
        if type(message) in self._handlers:
            return self._changed_row(message, lsn)  # type: ignore[arg-type]  # by its kind
        match message:
            case Begin():
                self._begin(message)
            case Commit():
                self._commit(message)
            case Relation():
                return self._described(message)
            case Truncate():
                return self._truncated(message, lsn)
            case LogicalMessage():
                return self._message(message)
            case _:
                pass  # types are read from the catalogue; PostgreSQL 18 sends the end of a subtransaction unasked
        return ()

    def ordinary(
        self, frame: Frame, receive: Callable[[], Frame | None], *, rows_max: int, bytes_max: int
    ) -> OrdinaryRows | None:
        """The events of a frame and of those that follow, as far as compiled code encodes them; None for any other
        frame.

        Ordinary rows are inserted, or updated without an old image, and their events depend on nothing but their own
        values. ``feed`` accepts all other frames, and gives the same result for these. ``receive`` returns the next
        frames that have arrived. Stops at ``rows_max`` rows or ``bytes_max`` bytes.
        """
        try:
            kind, relation_id, image = _ROW_HEAD.unpack_from(frame, WAL_DATA_OFFSET)
        except struct.error:
            return None
        if image != _NEW_IMAGE or kind not in _WRITING or not self.progress.in_transaction:
            return None
        published = self.relations.followed(relation_id)
        if published is None:
            return None
        return self.rows.ordinary(
            published, frame, receive, relation_id=relation_id, rows_max=rows_max, bytes_max=bytes_max
        )

    def is_done_with(self, frame: Frame) -> bool:
        """Whether a frame has a row of a relation that isn't captured, which needs no decoding and no ``feed``."""
        try:
            kind, relation_id, _ = _ROW_HEAD.unpack_from(frame, WAL_DATA_OFFSET)
        except struct.error:
            return False
        if relation_id not in self.relations.uncaptured_ids or kind not in _ROW_KINDS:
            return False
        self.progress.done_with()
        return True

    def _changed_row(self, change: Insert | Update | Delete, lsn: int) -> Events | Steps:
        route, kind = self.relations.route(change.relation_id), type(change)
        if route is not None and not self.progress.in_transaction:
            raise LockstepError("the stream has a row outside of a transaction")
        outcome: Events | Steps = ()
        try:
            if type(route) is PublishedTable:
                outcome = self._handlers[kind](route, change, lsn)
            elif type(route) is CountedOnly:
                outcome = self.rows.pass_over(route.published, change)
            # Rows of the outbox that are changed or deleted later were delivered before.
            elif type(route) is OutboxRoute and self.progress.counted() and isinstance(change, Insert):
                outcome = (route.event(change.new, tag=tag_text(self.rows.envelopes.prefix, self.progress.seq)),)
        except _UNENCODABLE as error:
            raise _unencodable(route, error) from None
        if type(outcome) is not tuple:
            return self._to_the_end(outcome, route)  # type: ignore[arg-type]  # it is no tuple
        self.progress.done_with()
        return outcome

    def _to_the_end(self, steps: Steps, route: Route) -> Steps:
        """These steps; after them, the message counts as done."""
        try:
            yield from steps
        except _UNENCODABLE as error:
            raise _unencodable(route, error) from None
        self.progress.done_with()

    def _begin(self, begin: Begin) -> None:
        if self.progress.in_transaction:
            raise LockstepError("the stream begins a transaction inside another")
        self._unfinished.add(begin.xid)
        self.progress.begin(begin)
        self.rows.begin(begin)

    def _commit(self, commit: Commit) -> None:
        if not self.progress.in_transaction or commit.commit_lsn != self.progress.commit_lsn:
            raise LockstepError("the stream commits a transaction that it didn't begin")
        self.relations.end_transaction(is_new=not self.progress.comes_again)
        self.progress.commit(commit)

    def _described(self, relation: Relation) -> Steps:
        relations, relation_id = self.relations, relation.relation_id
        known, before = relations.named(relation), relations.followed(relation_id)
        yield from relations.describe(relation, self.progress.xid, self.progress.place)
        if self.progress.in_transaction and known is not None:
            self.rows.reshaped(relation_id, known, before)

    def _truncated(self, truncate: Truncate, lsn: int) -> Steps:
        self.relations.truncated(truncate.relation_ids)
        for relation_id in truncate.relation_ids:
            route = self.relations.route(relation_id)
            if isinstance(route, CountedOnly):
                self.progress.counted()
            elif isinstance(route, PublishedTable):
                yield from self.rows.empty(route, lsn)
        self.progress.done_with()

    def _message(self, message: LogicalMessage) -> Events | Steps:
        """A message with one of our prefixes. Outside of transactions, it sorts before the transaction that commits
        there."""
        if message.prefix in self._notices:
            return self._noticed(message)
        events: Events = ()
        channel, progress, envelopes = self._messages, self.progress, self.rows.envelopes
        if channel is not None and message.prefix in channel.prefixes:  # heartbeats matter only by their commit
            prefix, time_ms = envelopes.prefix, envelopes.time_ms
            if progress.in_transaction:
                is_new = progress.counted()
            else:
                prefix, time_ms = (
                    tag_prefix(envelopes.epoch, message.lsn),
                    progress.commit_time_ms,
                )  # the message's own time isn't sent
                is_new = progress.counted_outside(message.lsn, _OUTSIDE_SEQ)
            if is_new:
                seq = progress.position[1]
                events = (channel.event(message, prefix=prefix, seq=seq, commit_time_ms=time_ms, xid=progress.xid),)
        if progress.in_transaction:
            progress.done_with()
        return events

    def _noticed(self, message: LogicalMessage) -> Steps:
        yield Notice(message.prefix, message.content)
        if self.progress.in_transaction:
            self.progress.done_with()


def _unencodable(route: Route, error: Exception) -> UnsupportedChange:
    """The error never shows a value, so it isn't chained."""
    return UnsupportedChange(
        f"a row of {_name_of(route)} can't be encoded ({type(error).__name__})",
        hint="if the database's encoding is SQL_ASCII: its text must be valid UTF-8; else please report it."
        " Nothing was skipped",
    )


def _name_of(route: Route) -> TableName:
    assert route is not None, "nothing of it is encoded"
    if isinstance(route, OutboxRoute):
        return route.channel.table
    return (route.published if isinstance(route, CountedOnly) else route).table.name
