"""Frames of the streaming replication protocol around pgoutput messages, and our replies. Layouts: PostgreSQL
documentation, "Streaming Replication Protocol"."""

import struct
from dataclasses import dataclass

from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn

Frame = bytes | memoryview
"""One frame as received. A memoryview is libpq's own memory: copying it would cost as much as encoding its row."""

XLOG_DATA = ord("w")
KEEPALIVE = ord("k")

WAL_DATA_OFFSET = 25
"""Where the payload of an XLogData frame starts."""

_XLOG_DATA = struct.Struct("!QQq")
_KEEPALIVE = struct.Struct("!QqB")
_STATUS = struct.Struct("!cQQQqB")

POSTGRES_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970 to 2000, PostgreSQL's time zero."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """``wal_end``: the server has nothing more to send before this position. It doesn't say what we received."""

    wal_end: Lsn
    reply_requested: bool


def wal_start(frame: Frame) -> Lsn:
    """The position of an XLogData frame's payload in the WAL. Raises MalformedMessage."""
    if len(frame) < WAL_DATA_OFFSET:
        raise MalformedMessage("XLogData frame is too short", position=0, message=bytes(frame))
    return Lsn(_XLOG_DATA.unpack_from(frame, 1)[0])


def parse_keepalive(frame: bytes) -> Keepalive:
    """A whole keepalive frame. Raises MalformedMessage."""
    if len(frame) != 1 + _KEEPALIVE.size or frame[0] != KEEPALIVE:
        raise MalformedMessage("keepalive frame of the wrong size", position=0, message=frame)
    wal_end, _, reply = _KEEPALIVE.unpack_from(frame, 1)
    return Keepalive(Lsn(wal_end), bool(reply))


def status_update(*, received: Lsn, confirmed: Lsn, applied: Lsn, unix_time_us: int) -> bytes:
    """The standby status update: ``confirmed`` lets the server forget older WAL, and the others may grow freely.

    Everybody can read them in ``pg_stat_replication``, as ``write_lsn``, ``flush_lsn`` and ``replay_lsn``.
    """
    return _STATUS.pack(b"r", received, confirmed, applied, unix_time_us - POSTGRES_EPOCH_US, 0)


def unix_ms(postgres_time_us: int) -> int:
    """Microseconds since 2000, as PostgreSQL sends times -> milliseconds since 1970, rounded down."""
    return (postgres_time_us + POSTGRES_EPOCH_US) // 1000
