"""Findings about the replication slot and the room for it."""

from typing import Any

import psycopg

from cdc.model.finding import Finding, error, ok, warning
from cdc.model.printable import visible
from cdc.model.table import sql_literal
from cdc.postgres.preflight.server import setting
from cdc.postgres.replication import APPLICATION
from cdc.postgres.slot import Slot, find_slot
from cdc.postgres.versions import INVALIDATION_REASONS

_OTHER_NAME = "choose another pipeline.name, by which the slot is called, or drop the slot if nobody else needs it"
_RECOVER = "run: lockstep recover"


def slot_findings(connection: psycopg.Connection[Any], name: str) -> list[Finding]:
    slot = find_slot(connection, name)
    if slot is None:
        return _room(connection) + _prepared(connection)
    return [_usable(connection, slot)]


def _usable(connection: psycopg.Connection[Any], slot: Slot) -> Finding:
    subject = f"slot {slot.name}"
    if slot.plugin != "pgoutput":
        return error(subject, f"uses the plugin {slot.plugin}", "capture reads pgoutput", _OTHER_NAME)
    if slot.database != connection.info.dbname:
        return error(subject, f"belongs to the database {slot.database}", "a slot decodes one database", _OTHER_NAME)
    if slot.wal_status == "lost":
        return error(
            subject,
            f"is lost: {_why_lost(connection, slot.name)}",
            "changes are missing, so the stream can't go on",
            _RECOVER,
        )
    if slot.active_pid is not None and (reader := _reader(connection, slot.active_pid)) is not None:
        if reader != APPLICATION:
            return error(
                subject,
                f"is read by {reader or 'another client'} (pid {slot.active_pid})",
                "two readers of one slot lose changes: each misses those that the other confirms",
                _OTHER_NAME,
            )
        return ok(subject, f"exists; a capture reads it (pid {slot.active_pid})")
    if slot.wal_status == "unreserved":
        return warning(
            subject,
            "is about to be lost: the WAL that it needs is beyond max_slot_wal_keep_size",
            "PostgreSQL removes that WAL at the next checkpoint",
            "start capture now, or: alter system set max_slot_wal_keep_size = -1; select pg_reload_conf();",
        )
    return ok(subject, "exists")


def _reader(connection: psycopg.Connection[Any], pid: int) -> str | None:
    """The name of the application that reads a slot; None if it has left by now."""
    row = connection.execute(
        "select coalesce(application_name, '') from pg_stat_activity where pid = %s", (pid,)
    ).fetchone()
    return row[0] if row else None


def _why_lost(connection: psycopg.Connection[Any], name: str) -> str:
    reason = None
    if connection.info.server_version >= INVALIDATION_REASONS:
        row = connection.execute(
            "select invalidation_reason from pg_replication_slots where slot_name = %s", (name,)
        ).fetchone()
        reason = row[0] if row else None
    reasons = {
        "idle_timeout": "no process read it for longer than idle_replication_slot_timeout",
        "wal_level_insufficient": "wal_level was lowered",
        "rows_removed": "rows that it needs were removed",
    }
    return reasons.get(reason or "", "WAL that it needs was removed (max_slot_wal_keep_size)")


def _room(connection: psycopg.Connection[Any]) -> list[Finding]:
    findings = []
    for view, name, what, needed in (
        ("pg_replication_slots", "max_replication_slots", "replication slots", 2),
        ("pg_stat_replication", "max_wal_senders", "WAL senders", 2),
    ):
        row = connection.execute(f"select count(*) from {view}").fetchone()
        used, limit = (row[0] if row else 0), int(setting(connection, name) or 0)
        findings.append(room_finding(what, name, used=used, limit=limit, needed=needed))
    return findings


def room_finding(what: str, name: str, *, used: int, limit: int, needed: int) -> Finding:
    """``name`` is the setting that holds the limit."""
    if limit - used >= needed:
        return ok(what, f"{limit - used} of {limit} are free")
    return error(
        what,
        f"{used} of {limit} are in use, {needed} are needed",
        "one for the stream, and one while an interrupted snapshot is resumed",
        f"alter system set {name} = {limit + 4};  -- then restart the server",
    )


def _prepared(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Prepared transactions, which don't end with a session: a new slot waits for them."""
    rows = connection.execute(
        "select gid, database, prepared::text from pg_prepared_xacts order by prepared"
    ).fetchall()
    if not rows:
        return []
    gid, database, prepared_since = rows[0]
    return [
        warning(
            "prepared transactions",
            f"{len(rows)} are open, the oldest since {prepared_since}",
            "a new slot waits until every transaction that has written is over; capture can't start before",
            f"commit prepared {sql_literal(gid)};"
            f"  -- or rollback prepared, in database {visible(database)}: its application knows which",
        )
    ]
