"""pgoutput messages, protocol version 1 with logical messages: bytes in, frozen dataclasses out. Layouts: PostgreSQL
documentation, "Logical Replication Message Formats". The decoder has no state: ``cdc.capture.relations`` knows which
relation an id means."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn
from cdc.model.table import ReplicaIdentity
from cdc.protocol.cursor import Cursor


class Unchanged(Enum):
    """The type of UNCHANGED, which isn't a value, and above all not NULL."""

    ONLY = "unchanged"


UNCHANGED: Final = Unchanged.ONLY
"""Stands for a TOASTed value that the statement didn't touch: the server doesn't send it."""

Field = bytes | None | Literal[Unchanged.ONLY]
"""A column's value: PostgreSQL's text of it, NULL, or not sent."""

Fields = tuple[Field, ...]
"""One row's values, in the order of the relation's columns."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts. ``commit_lsn`` is already that of its commit record; times are microseconds since 2000."""

    commit_lsn: Lsn
    commit_time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete. ``end_lsn`` is its only position that may be confirmed."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replicated into this server from ``name``."""

    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """``in_identity``: the column is part of the replica identity (with FULL, every column is)."""

    name: str
    type_oid: int
    type_modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's shape from here on in the stream. Sent before its first row and after every change of the shape."""

    relation_id: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """Precedes a Relation that uses a type which isn't built in."""

    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class KeyImage:
    """The old values of the replica identity's columns; the others are None, which means nothing."""

    fields: Fields


@dataclass(frozen=True, slots=True)
class FullImage:
    """The whole old row (REPLICA IDENTITY FULL)."""

    fields: Fields


@dataclass(frozen=True, slots=True)
class Insert:
    relation_id: int
    new: Fields


@dataclass(frozen=True, slots=True)
class Update:
    """``old`` is None unless the identity changed (KeyImage) or the replica identity is FULL."""

    relation_id: int
    old: KeyImage | FullImage | None
    new: Fields


@dataclass(frozen=True, slots=True)
class Delete:
    relation_id: int
    old: KeyImage | FullImage


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """Written by ``pg_logical_emit_message``. ``lsn`` is where the message's record ends."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A subtransaction was rolled back, or the whole transaction: then ``subxid`` is ``xid``."""

    xid: int
    subxid: int


Message = Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage | StreamAbort

_uint16_at = struct.Struct("!H").unpack_from
_int32_at = struct.Struct("!i").unpack_from
_uint32_at = struct.Struct("!I").unpack_from

_NULL = ord("n")
_TOAST_UNCHANGED = ord("u")
_TEXT = ord("t")
_NEW = ord("N")
_KEY = ord("K")
_OLD = ord("O")


def _fields(message: bytes, position: int) -> tuple[Fields, int]:
    """Read a TupleData; returns its values and the position after it. The only tuned loop of the decoder: it runs for
    every column of every row, so it reads the bytes directly. A slice past the end is short instead of an error; the
    comparison at the bottom catches that."""
    try:
        (count,) = _uint16_at(message, position)
        start, position = position, position + 2
        fields: list[Field] = []
        append = fields.append
        for _ in range(count):
            kind = message[position]
            if kind == _TEXT:
                (length,) = _int32_at(message, position + 1)
                if length < 0:
                    raise MalformedMessage("negative length of a value", position=position, message=message)
                position += 5
                append(message[position : position + length])
                position += length
            elif kind == _NULL:
                append(None)
                position += 1
            elif kind == _TOAST_UNCHANGED:
                append(UNCHANGED)
                position += 1
            else:
                raise MalformedMessage(f"unknown kind of value {kind:#04x}", position=position, message=message)
    except (struct.error, IndexError):
        raise MalformedMessage("row ends too early", position=position, message=message) from None
    if position > len(message):
        raise MalformedMessage("row ends too early", position=start, message=message)
    return tuple(fields), position


def _finished(message: bytes, position: int) -> None:
    if position != len(message):
        raise MalformedMessage(f"{len(message) - position} bytes left over", position=position, message=message)


def _relation_id(message: bytes, start: int) -> int:
    try:
        return int(_uint32_at(message, start)[0])
    except struct.error:
        raise MalformedMessage("relation id expected", position=start, message=message) from None


def _kind(message: bytes, position: int) -> int:
    if position >= len(message):
        raise MalformedMessage("row image expected", position=position, message=message)
    return message[position]


def _insert(message: bytes, start: int) -> Insert:
    relation_id = _relation_id(message, start)
    if _kind(message, start + 4) != _NEW:
        raise MalformedMessage("new row expected", position=start + 4, message=message)
    new, position = _fields(message, start + 5)
    _finished(message, position)
    return Insert(relation_id, new)


def _old_image(message: bytes, kind: int, position: int) -> tuple[KeyImage | FullImage, int]:
    fields, position = _fields(message, position)
    return (KeyImage(fields) if kind == _KEY else FullImage(fields)), position


def _update(message: bytes, start: int) -> Update:
    relation_id = _relation_id(message, start)
    position = start + 4
    kind = _kind(message, position)
    old: KeyImage | FullImage | None = None
    if kind in (_KEY, _OLD):
        old, position = _old_image(message, kind, position + 1)
        kind = _kind(message, position)
    if kind != _NEW:
        raise MalformedMessage("new row expected", position=position, message=message)
    new, position = _fields(message, position + 1)
    _finished(message, position)
    return Update(relation_id, old, new)


def _delete(message: bytes, start: int) -> Delete:
    relation_id = _relation_id(message, start)
    kind = _kind(message, start + 4)
    if kind not in (_KEY, _OLD):
        raise MalformedMessage("old row or key expected", position=start + 4, message=message)
    old, position = _old_image(message, kind, start + 5)
    _finished(message, position)
    return Delete(relation_id, old)


def _begin(message: bytes, start: int) -> Begin:
    cursor = Cursor(message, start)
    begin = Begin(Lsn(cursor.uint64()), cursor.int64(), cursor.uint32())
    cursor.finish()
    return begin


def _commit(message: bytes, start: int) -> Commit:
    cursor = Cursor(message, start)
    flags = cursor.uint8()
    if flags:
        raise cursor.malformed(f"unknown commit flags {flags:#04x}")
    commit = Commit(Lsn(cursor.uint64()), Lsn(cursor.uint64()), cursor.int64())
    cursor.finish()
    return commit


def _origin(message: bytes, start: int) -> Origin:
    cursor = Cursor(message, start)
    origin = Origin(Lsn(cursor.uint64()), cursor.string())
    cursor.finish()
    return origin


def _relation(message: bytes, start: int) -> Relation:
    cursor = Cursor(message, start)
    relation_id, schema, name = cursor.uint32(), cursor.string(), cursor.string()
    identity_position = cursor.position
    try:
        identity = ReplicaIdentity(chr(cursor.uint8()))
    except ValueError:
        raise MalformedMessage("unknown replica identity", position=identity_position, message=message) from None
    columns = []
    for _ in range(cursor.uint16()):
        flags = cursor.uint8()
        if flags not in (0, 1):
            raise cursor.malformed(f"unknown column flags {flags:#04x}")
        columns.append(RelationColumn(cursor.string(), cursor.uint32(), cursor.int32(), in_identity=flags == 1))
    cursor.finish()
    # The schema pg_catalog is sent as an empty name.
    return Relation(relation_id, schema or "pg_catalog", name, identity, tuple(columns))


def _type(message: bytes, start: int) -> Type:
    cursor = Cursor(message, start)
    decoded = Type(cursor.uint32(), cursor.string() or "pg_catalog", cursor.string())
    cursor.finish()
    return decoded


def _truncate(message: bytes, start: int) -> Truncate:
    cursor = Cursor(message, start)
    count, options = cursor.uint32(), cursor.uint8()
    if options > 3:
        raise cursor.malformed(f"unknown truncate options {options:#04x}")
    if count * 4 > len(message):
        raise cursor.malformed(f"{count} relations expected")
    relation_ids = tuple(cursor.uint32() for _ in range(count))
    cursor.finish()
    return Truncate(relation_ids, cascade=bool(options & 1), restart_identity=bool(options & 2))


def _logical_message(message: bytes, start: int) -> LogicalMessage:
    cursor = Cursor(message, start)
    flags = cursor.uint8()
    if flags not in (0, 1):
        raise cursor.malformed(f"unknown message flags {flags:#04x}")
    lsn, prefix = Lsn(cursor.uint64()), cursor.string()
    content = cursor.take(cursor.uint32())
    cursor.finish()
    return LogicalMessage(flags == 1, lsn, prefix, content)


def _stream_abort(message: bytes, start: int) -> StreamAbort:
    cursor = Cursor(message, start)
    abort = StreamAbort(cursor.uint32(), cursor.uint32())
    cursor.finish()
    return abort


_READERS: dict[int, Callable[[bytes, int], Message]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _logical_message,
    ord("A"): _stream_abort,
}


def decode(message: bytes, start: int = 0) -> Message:
    """One pgoutput message, from byte ``start`` to the end. Raises MalformedMessage, and nothing else."""
    if start >= len(message):
        raise MalformedMessage("empty message", position=start, message=message)
    reader = _READERS.get(message[start])
    if reader is None:
        raise MalformedMessage(f"unknown message type {message[start]:#04x}", position=start, message=message)
    return reader(message, start + 1)
