"""WAL without a server: pgoutput messages, the frames around them, and a history that is sent as a walsender sends it.

The layouts are written here a second time, from PostgreSQL's documentation, so that the decoder is checked against a
second reading of it.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdc.model.lsn import Lsn
from cdc.model.table import Table
from cdc.protocol.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Field,
    Fields,
    FullImage,
    Insert,
    KeyImage,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    StreamAbort,
    Truncate,
    Type,
    Update,
)

RELATION_ID = 16385
HANDOFF = 0x100_0000
COMMIT_TIME_US = 800_000_000_000_000
"""An instant in May 2025, in microseconds since 2000."""

COMMIT_TIME_MS = COMMIT_TIME_US // 1000 + 946_684_800_000


def relation(table: Table, relation_id: int = RELATION_ID) -> Relation:
    columns = tuple(
        RelationColumn(column.name, column.type_oid, column.type_modifier, in_identity=column.name in table.key)
        for column in table.columns
    )
    return Relation(relation_id, table.name.schema, table.name.name, table.replica_identity, columns)


def insert(*new: Field, of: int = RELATION_ID) -> Insert:
    return Insert(of, new)


def update(*new: Field, key: Fields | None = None, full: Fields | None = None, of: int = RELATION_ID) -> Update:
    """A changed row, with the old key or the old row if the replica identity sends one."""
    old = KeyImage(key) if key is not None else FullImage(full) if full is not None else None
    return Update(of, old, new)


def delete(*key: Field, of: int = RELATION_ID) -> Delete:
    """A deleted row, known by its key; the other columns are None."""
    return Delete(of, KeyImage(key))


@dataclass(frozen=True)
class Transaction:
    """What one commit wrote. ``commit_lsn`` is where its commit record starts, ``end_lsn`` where that ends."""

    commit_lsn: Lsn
    end_lsn: Lsn
    xid: int
    body: tuple[Message, ...]

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Its messages from begin to commit, each with the LSN of its frame."""
        start = self.commit_lsn - 8 * (len(self.body) + 1)
        yield start, Begin(self.commit_lsn, COMMIT_TIME_US, self.xid)
        for index, message in enumerate(self.body):
            yield start + 8 * index, message
        yield self.commit_lsn, Commit(self.commit_lsn, self.end_lsn, COMMIT_TIME_US)


class History:
    """Committed transactions, in the order of their commits, after the handoff."""

    def __init__(self, *bodies: Sequence[Message], first_commit_lsn: int = HANDOFF + 0x1000) -> None:
        """One body per transaction; the first commits at ``first_commit_lsn``."""
        self.transactions: list[Transaction] = []
        commit_lsn = first_commit_lsn
        for number, body in enumerate(bodies):
            self.transactions.append(Transaction(Lsn(commit_lsn), Lsn(commit_lsn + 0x30), 700 + number, tuple(body)))
            commit_lsn += 0x1000

    def messages(self, *described: Relation, at: int = 0) -> list[tuple[int, Message]]:
        """What a walsender sends from ``at``: whole transactions that commit there or later. Each relation is described
        before its first row."""
        sent = []
        known: set[int] = set()
        for transaction in self.transactions:
            if transaction.commit_lsn < at:
                continue
            for lsn, message in transaction.messages():
                if isinstance(message, Insert | Update | Delete) and message.relation_id not in known:
                    known.add(message.relation_id)
                    sent += [(0, shape) for shape in described if shape.relation_id == message.relation_id]
                sent.append((lsn, message))
        return sent


def _text(value: str) -> bytes:
    return value.encode() + b"\0"


def _row(fields: Fields) -> bytes:
    kinds = [
        b"n" if field is None else b"u" if field is UNCHANGED else b"t" + struct.pack("!i", len(field)) + field
        for field in fields
    ]
    return struct.pack("!H", len(fields)) + b"".join(kinds)


def _old(image: KeyImage | FullImage) -> bytes:
    return (b"K" if isinstance(image, KeyImage) else b"O") + _row(image.fields)


def encode(message: Message) -> bytes:
    match message:
        case Begin(commit_lsn, time, xid):
            return b"B" + struct.pack("!QqI", commit_lsn, time, xid)
        case Commit(commit_lsn, end_lsn, time):
            return b"C\0" + struct.pack("!QQq", commit_lsn, end_lsn, time)
        case Origin(lsn, name):
            return b"O" + struct.pack("!Q", lsn) + _text(name)
        case Relation(relation_id, schema, name, identity, columns):
            head = b"R" + struct.pack("!I", relation_id) + _text(schema) + _text(name) + identity.encode()
            return head + struct.pack("!H", len(columns)) + b"".join(map(_column, columns))
        case Type(oid, schema, name):
            return b"Y" + struct.pack("!I", oid) + _text(schema) + _text(name)
        case Insert(relation_id, new):
            return b"I" + struct.pack("!I", relation_id) + b"N" + _row(new)
        case Update(relation_id, old, new):
            return b"U" + struct.pack("!I", relation_id) + (_old(old) if old else b"") + b"N" + _row(new)
        case Delete(relation_id, old):
            return b"D" + struct.pack("!I", relation_id) + _old(old)
        case Truncate(relation_ids, cascade, restart_identity):
            options = cascade | restart_identity << 1
            return b"T" + struct.pack(f"!IB{len(relation_ids)}I", len(relation_ids), options, *relation_ids)
        case LogicalMessage(transactional, lsn, prefix, content):
            head = b"M" + struct.pack("!BQ", transactional, lsn) + _text(prefix)
            return head + struct.pack("!I", len(content)) + content
        case StreamAbort(xid, subxid):
            return b"A" + struct.pack("!II", xid, subxid)


def _column(column: RelationColumn) -> bytes:
    numbers = struct.pack("!Ii", column.type_oid, column.type_modifier)
    return bytes([column.in_identity]) + _text(column.name) + numbers


def data_frame(message: Message, lsn: int = 0) -> bytes:
    """A message as it comes over the wire: an XLogData frame."""
    return b"w" + struct.pack("!QQq", lsn, lsn, COMMIT_TIME_US) + encode(message)


def keepalive_frame(wal_end: int, *, reply_requested: bool = False) -> bytes:
    return b"k" + struct.pack("!QqB", wal_end, COMMIT_TIME_US, reply_requested)


def with_identity(shape: Relation, identity: str) -> Relation:
    return replace(shape, replica_identity=type(shape.replica_identity)(identity))
