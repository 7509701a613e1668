"""Findings about the server: version, settings, encoding, and whether it is the server that the DSN seems to name."""

from typing import Any, Final

import psycopg

from cdc.model.finding import Finding, error, ok, warning
from cdc.model.table import sql_identifier
from cdc.postgres.connection import PINNED_SETTINGS
from cdc.postgres.versions import GENERATED_COLUMNS, OLDEST_SUPPORTED

_TIMEOUT_MIN_MS = 10_000
"""A pause of a few seconds - a slow Kafka commit, a paused virtual machine - must not end the stream."""

_DECODING_MEMORY_MIN_KB = 1024

_RELOAD = "select pg_reload_conf();"


def setting(connection: psycopg.Connection[Any], name: str) -> str:
    """A setting in the server's own words; empty if this version doesn't have it."""
    row = connection.execute("select current_setting(%s, true)", (name,)).fetchone()
    return row[0] if row and row[0] is not None else ""


def _number(connection: psycopg.Connection[Any], name: str) -> int | None:
    """A setting in its base unit; None if this version doesn't have it."""
    row = connection.execute("select setting::bigint from pg_settings where name = %s", (name,)).fetchone()
    return row[0] if row else None


def server_findings(connection: psycopg.Connection[Any]) -> list[Finding]:
    return [
        version_finding(connection.info.server_version),
        _wal_level(setting(connection, "wal_level")),
        *standby_findings(connection),
        *_encoding(connection),
        *_limits(connection),
        *_session(connection),
        *_proxy(connection),
    ]


def version_finding(version: int) -> Finding:
    if version < OLDEST_SUPPORTED:
        return error(
            "server version",
            f"PostgreSQL {version // 10000} is too old",
            "messages in the logical stream, which move idle slots on, exist from version 14",
            "upgrade the server to 14 or newer",
        )
    return ok("server version", f"PostgreSQL {version // 10000}.{version % 10000}")


def _wal_level(level: str) -> Finding:
    if level == "logical":
        return ok("wal_level", "logical")
    return error(
        "wal_level",
        f"wal_level is {level}",
        "the WAL doesn't hold what logical decoding needs",
        "alter system set wal_level = logical;  -- then restart the server",
    )


def standby_findings(connection: psycopg.Connection[Any]) -> list[Finding]:
    """An error if the server replays another one's WAL, for ever or until it is promoted."""
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    if not row or not row[0]:
        return []
    return [
        error(
            "server role",
            "the server is a standby",
            "slot, snapshot and heartbeat need the primary",
            "point source.dsn at the primary; with several hosts add target_session_attrs=read-write to it",
        )
    ]


def _encoding(connection: psycopg.Connection[Any]) -> list[Finding]:
    encoding = setting(connection, "server_encoding")
    if encoding == "SQL_ASCII":
        return [
            warning(
                "encoding",
                "the database has SQL_ASCII, which says nothing about its text",
                "PostgreSQL passes any bytes on; a value that isn't UTF-8 stops capture rather than be published wrong",
                "convert the database to UTF8 with dump and restore; until then keep values that aren't UTF-8 out",
            )
        ]
    converted = "" if encoding == "UTF8" else ", converted to UTF-8 by PostgreSQL"
    return [ok("encoding", f"{encoding}{converted}")]


def _limits(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Settings by which a slot or the stream can be lost."""
    findings = []
    kept_mb = _number(connection, "max_slot_wal_keep_size")
    if kept_mb is not None and kept_mb >= 0:
        findings.append(
            warning(
                "max_slot_wal_keep_size",
                f"is {setting(connection, 'max_slot_wal_keep_size')}",
                "when capture is further behind than that, PostgreSQL removes WAL that the slot needs: the slot is"
                " lost, and everything has to be copied again",
                "alter system set max_slot_wal_keep_size = -1;\n"
                f"{_RELOAD}  -- if the pipeline matters more than the source's disk; else watch `lockstep lag`",
            )
        )
    elif kept_mb is not None:
        findings.append(
            ok(
                "max_slot_wal_keep_size",
                "has no limit",
                "while capture is down or behind, the slot keeps WAL until the source's disk is full: where the source"
                " matters more than the pipeline, set a limit",
            )
        )
    if connection.info.server_version >= GENERATED_COLUMNS and (
        _number(connection, "idle_replication_slot_timeout") or 0
    ):
        findings.append(
            warning(
                "idle_replication_slot_timeout",
                f"is {setting(connection, 'idle_replication_slot_timeout')}",
                "when capture is down, or its first copy is paused, for longer than that, PostgreSQL invalidates its"
                " slot, and everything has to be copied again",
                f"alter system set idle_replication_slot_timeout = 0;\n{_RELOAD}",
            )
        )
    alter_prefix = _for_our_role(connection)
    timeout_ms = _number(connection, "wal_sender_timeout") or 0
    if 0 < timeout_ms < _TIMEOUT_MIN_MS:
        findings.append(
            warning(
                "wal_sender_timeout",
                f"is {setting(connection, 'wal_sender_timeout')}",
                "a short pause of capture or of the network ends the stream, and it starts again and again",
                f"{alter_prefix} set wal_sender_timeout = '60s';",
            )
        )
    memory_kb = _number(connection, "logical_decoding_work_mem") or 0
    if memory_kb < _DECODING_MEMORY_MIN_KB:
        findings.append(
            warning(
                "logical_decoding_work_mem",
                f"is {setting(connection, 'logical_decoding_work_mem')}",
                "nearly every transaction is written to disk before it is decoded",
                f"{alter_prefix} set logical_decoding_work_mem = '64MB';",
            )
        )
    return findings


def _for_our_role(connection: psycopg.Connection[Any]) -> str:
    """SQL that applies a setting to us alone: it overrides the role's, the database's and the server's."""
    row = connection.execute("select current_user, current_database()").fetchone()
    assert row is not None
    return f"alter role {sql_identifier(row[0])} in database {sql_identifier(row[1])}"


_NOT_COMPARED: Final = ("client_encoding", "lock_timeout")
"""The client sets the encoding itself; capture sets a lock timeout of its own after connecting."""


def _session(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Settings that our connection requested and didn't get."""
    others = [
        f"{name} = {actual}"
        for name, wanted in PINNED_SETTINGS.items()
        if name not in _NOT_COMPARED and (actual := setting(connection, name)).lower() not in _same(wanted)
    ]
    if not others:
        return []
    return [
        error(
            "session settings",
            f"the server ignores settings of the connection: {', '.join(others)}",
            "the same value would be published with another text; poolers drop the settings of a connection",
            "point source.dsn at PostgreSQL itself, not at a pooler (PgBouncer: ignore_startup_parameters)",
        )
    ]


def _same(wanted: str) -> tuple[str, ...]:
    """How the server may show this setting: DateStyle also shows an order."""
    return tuple(text.lower() for text in (wanted, *(f"{wanted}, {order}" for order in ("MDY", "DMY", "YMD"))))


def _proxy(connection: psycopg.Connection[Any]) -> list[Finding]:
    """A pooler answers for many server processes, so it can't return the pid of the one that will run our query."""
    pids = {connection.info.backend_pid}
    for _ in range(3):
        row = connection.execute("select pg_backend_pid()").fetchone()
        pids.add(row[0] if row else 0)
    if len(pids) == 1:
        return []
    return [
        warning(
            "connection",
            "a pooler or proxy is between us and PostgreSQL",
            "the replication stream, the exported snapshot and session settings belong to one server process; most"
            " poolers pass none of them through",
            "point source.dsn at PostgreSQL itself",
        )
    ]
