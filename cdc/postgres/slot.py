"""The replication slot and other facts of the source, read over an ordinary connection."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson
import psycopg

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn, parse_lsn
from cdc.postgres.connection import connection_error
from cdc.protocol.record_fields import FORMAT
from cdc.protocol.visibility import SourceSnapshot

HEARTBEAT_PREFIX = "lockstep.heartbeat"
"""Prefix of the messages that advance an idle database's slot and the watermark."""

_NAME_MAX: Final = 63

_AT_WORK: Final = 1280527188
"""The first number of our advisory locks: "LSCT" in ASCII, to avoid those of others."""

_STANDING_BY: Final = _AT_WORK + 1
"""The same for captures that wait for their turn."""

_SESSIONS: Final = """
select l.pid from pg_locks l
where l.locktype = 'advisory' and l.granted and l.classid = {kind}
  and l.objid::int8 = hashtext(%s)::int8 & 4294967295 and l.objsubid = 2
  and l.database = (select oid from pg_database where datname = current_database())
"""

CAPTURE_SESSIONS: Final = _SESSIONS.format(kind=_AT_WORK)
"""SQL: the server processes of working captures. Its parameter is their slot."""

_TEMPORARY_END: Final = 9

SLOT_SESSIONS: Final = f"""
select s.active_pid from pg_replication_slots s, (select %s::text as name) own
where s.slot_name = own.name
   or s.temporary and left(s.slot_name, -{_TEMPORARY_END}) = left(own.name, {_NAME_MAX - _TEMPORARY_END})
"""
"""SQL: the walsenders that read or create the slot given as parameter, or one of its ``temporary_slot_name``."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of ``pg_replication_slots``. ``confirmed`` is None while the slot isn't consistent yet."""

    name: str
    plugin: str
    database: str
    active_pid: int | None
    confirmed: Lsn | None
    wal_status: str | None


def find_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    row = connection.execute(
        "select slot_name, plugin, database, active_pid, confirmed_flush_lsn::text, wal_status"
        " from pg_replication_slots where slot_name = %s",
        (name,),
    ).fetchone()
    if row is None:
        return None
    return Slot(row[0], row[1], row[2], row[3], parse_lsn(row[4]) if row[4] else None, row[5])


def is_standby(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server replays the WAL of another one, and can't be written to."""
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])


def system_identifier(connection: psycopg.Connection[Any]) -> str | None:
    """Unique per cluster, except for copies of its files. None if our role may not read it."""
    try:
        row = connection.execute("select system_identifier::text from pg_control_system()").fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    return row[0] if row else None


def temporary_slot_name(slot: str) -> str:
    """A new name each time: the server may still be busy ending the last one."""
    return f"{slot[: _NAME_MAX - _TEMPORARY_END]}_{uuid.uuid4().hex[: _TEMPORARY_END - 1]}"


def drop_slot(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute("select pg_drop_replication_slot(%s)", (name,))


def announce_capture(connection: psycopg.Connection[Any], slot: str) -> None:
    """Show others, while this connection lives, that a capture of this slot is at work."""
    connection.execute("select pg_advisory_lock_shared(%s, hashtext(%s))", (_AT_WORK, slot))


def announce_standby(connection: psycopg.Connection[Any], slot: str) -> None:
    """Show others, while this connection lives, that a capture of this slot waits for its turn."""
    connection.execute("select pg_advisory_lock_shared(%s, hashtext(%s))", (_STANDING_BY, slot))


def has_standby(connection: psycopg.Connection[Any], slot: str) -> bool:
    row = connection.execute(f"select exists ({_SESSIONS.format(kind=_STANDING_BY)})", (slot,)).fetchone()
    return row is not None and bool(row[0])


@dataclass(frozen=True, slots=True)
class CaptureSession:
    """The session of a working capture. ``silent_s`` is the time since its last query, by the server's clock; None if
    our role may not see that."""

    silent_s: float | None


def find_capture(connection: psycopg.Connection[Any], slot: str) -> CaptureSession | None:
    """The working capture of this slot, in its first snapshot, a copy or the stream."""
    row = connection.execute(
        "select count(*), min(case when a.state = 'active' then 0"
        " else extract(epoch from clock_timestamp() - a.state_change) end)::float8"
        f" from ({CAPTURE_SESSIONS}) l left join pg_stat_activity a on a.pid = l.pid",
        (slot,),
    ).fetchone()
    return CaptureSession(row[1]) if row is not None and row[0] else None


def is_captured(connection: psycopg.Connection[Any], slot: str) -> bool:
    return find_capture(connection, slot) is not None


def require_own_slot(slot: Slot, database: str) -> None:
    """Raises LockstepError if capture can't have created this slot for this database."""
    drop = f"if nobody needs it, select pg_drop_replication_slot('{slot.name}');"
    if slot.plugin != "pgoutput":
        raise LockstepError(
            f"slot {slot.name} isn't ours: its plugin is {slot.plugin}",
            hint=f"the pipeline's progress is recorded under this name, so the other slot has to go: {drop}",
        )
    if slot.database != database:
        raise LockstepError(  # it may be the pipeline's own, and the address wrong
            f"slot {slot.name} is of database {slot.database}, and source.dsn leads to {database}",
            hint=f"correct source.dsn; if the pipeline is to go on in {database}, the slot has to go: {drop}",
        )


def end_other_reader(connection: psycopg.Connection[Any], slot: Slot) -> None:
    """End the connection that still reads the slot: its process is fenced in Kafka already and can't publish. Raises
    LockstepError if our role may not do that."""
    try:
        connection.execute("select pg_terminate_backend(%s)", (slot.active_pid,))
    except psycopg.errors.InsufficientPrivilege as error:
        raise LockstepError(
            f"slot {slot.name} is read by another connection (pid {slot.active_pid}) that our role may not end",
            hint=f"stop that process, or run: select pg_terminate_backend({slot.active_pid});",
        ) from error


def emit_heartbeat(connection: psycopg.Connection[Any]) -> Lsn:
    """Write a transactional message, hence a commit that comes through the stream. Returns an LSN after it. Raises as
    ``emit_messages``."""
    return emit_messages(connection, HEARTBEAT_PREFIX, [orjson.dumps({"format": FORMAT})])


def emit_messages(connection: psycopg.Connection[Any], prefix: str, contents: Iterable[bytes]) -> Lsn:
    """Write logical messages in a transaction of their own. Returns an LSN after its commit. They are flushed even if
    synchronous_commit is off: the walsender sends only what is on disk. No standby is awaited, since the caller may be
    capture's only thread. Raises LockstepError if PostgreSQL refuses, Unavailable if it can't be reached."""
    try:
        with connection.transaction():
            connection.execute("set local synchronous_commit = local")
            for content in contents:
                connection.execute("select pg_logical_emit_message(true, %s, %s::bytea)", (prefix, content))
        return wal_end(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise LockstepError(
            "our role may not write logical messages",
            hint="let a superuser run: grant execute on function pg_logical_emit_message(boolean, text, bytea, boolean)"
            " to the role (without the last argument before PostgreSQL 17)",
        ) from error
    except psycopg.Error as error:
        raise connection_error(error) from error


def emit_functions(connection: psycopg.Connection[Any]) -> list[str]:
    """The functions that write logical messages, as SQL names them. Their arguments differ between versions."""
    rows = connection.execute(
        "select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'pg_catalog' and p.proname = 'pg_logical_emit_message' order by 1"
    ).fetchall()
    return [row[0] for row in rows]


def wal_end(connection: psycopg.Connection[Any]) -> Lsn:
    """Where the WAL ends now: at or after the end of everything that this connection has committed."""
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def source_time_ms(connection: psycopg.Connection[Any]) -> int:
    """The server's clock in milliseconds since 1970. Commit times are by this clock, and ours may differ."""
    row = connection.execute("select (extract(epoch from clock_timestamp()) * 1000)::bigint").fetchone()
    assert row is not None
    time_ms: int = row[0]
    return time_ms


def current_snapshot(connection: psycopg.Connection[Any]) -> SourceSnapshot:
    row = connection.execute("select pg_current_snapshot()::text").fetchone()
    assert row is not None
    return SourceSnapshot.parse(row[0])


def sender_timeout_s(connection: psycopg.Connection[Any]) -> float:
    """After how many silent seconds the server drops us (``wal_sender_timeout``); infinite if never."""
    row = connection.execute("select setting::bigint from pg_settings where name = 'wal_sender_timeout'").fetchone()
    milliseconds = row[0] if row else 0
    return milliseconds / 1000 if milliseconds else float("inf")
