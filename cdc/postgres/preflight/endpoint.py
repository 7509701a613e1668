"""Findings about the way to the server: why it refuses us, and whether every connection reaches the same server."""

import re
from collections.abc import Sequence
from typing import Any

import psycopg

from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, error, ok
from cdc.model.table import sql_identifier
from cdc.postgres.connection import connect
from cdc.postgres.dsn import parse_dsn
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import system_identifier
from cdc.postgres.versions import ORIGINS

_APPLICATION = "lockstep doctor"
_PLAIN_CONNECTIONS = 2
"""Additional plain connections. They reveal a balancer that takes turns, but not a sticky one."""

_NO_SENDER = re.compile("permission denied to start WAL sender|to start walsender")

_POOLER = "point source.dsn at PostgreSQL itself, not at a pooler"


def endpoint_findings(connection: psycopg.Connection[Any], source: SourceSettings) -> list[Finding]:
    """Opens a replication connection and others besides ``connection``; touches no slot. A refused replication
    connection is a finding. Raises as ``connect`` if another connection fails."""
    return origin_findings(source.origin, connection.info.server_version) + _one_server(connection, source)


def origin_findings(origin: str, version: int) -> list[Finding]:
    if origin == "any" or version >= ORIGINS:
        return []
    return [
        error(
            "source.origin",
            f"is {origin}, which PostgreSQL {version // 10000} doesn't know",
            "the server refuses to start the stream",
            "take source.origin out of lockstep.toml, or upgrade the server to 16 or newer",
        )
    ]


def _one_server(connection: psycopg.Connection[Any], source: SourceSettings) -> list[Finding]:
    first = _server(connection)
    others = []
    for _ in range(_PLAIN_CONNECTIONS):
        with connect(source, application=_APPLICATION) as other:
            others.append(_server(other))
    try:
        replication = connect(source, application=_APPLICATION, replication=True)
    except LockstepError as refused:
        same = _same_server(first, others)
        # A missing REPLICATION is a finding of its own.
        return same if _NO_SENDER.search(refused.message) else [*same, refusal(refused.message, source)]
    with replication:
        others.append(_server(replication))
        identified = replication.execute("IDENTIFY_SYSTEM").fetchone()
    identity = system_identifier(connection)
    if identity and identified and identified[0] != identity:
        return [_elsewhere(f"system identifier {identity} and {identified[0]}")]
    return _same_server(first, others) or [
        ok("replication connection", f"works; system identifier {identified[0] if identified else 'unknown'}")
    ]


def _server(connection: psycopg.Connection[Any]) -> str:
    """Differs between servers, and anybody may read it: the start time, to the microsecond."""
    row = connection.execute("select pg_postmaster_start_time()::text").fetchone()
    return row[0] if row else ""


def _same_server(first: str, others: Sequence[str]) -> list[Finding]:
    started = sorted({first, *others})
    return [_elsewhere(f"servers started {' and '.join(started)}")] if len(started) > 1 else []


def _elsewhere(difference: str) -> Finding:
    return error(
        "connection",
        f"connections reach different servers: {difference}",
        "slot, snapshot and stream must be of one server; a load balancer is in between, or source.dsn names"
        " several hosts",
        "point source.dsn at the primary itself; with several hosts add target_session_attrs=read-write to it",
    )


def refusal(text: str, source: SourceSettings, *, subject: str = "replication connection") -> Finding:
    """The finding about a refused connection, with the server's or intermediary's answer, and the fix."""
    given = parse_dsn(source.dsn)
    user, database = str(given.get("user", "")), str(given.get("dbname", given.get("user", "")))
    why = "nothing works without it"
    match = re.search(
        r"(?:no pg_hba\.conf entry|pg_hba\.conf rejects connection) for (replication connection from )?"
        r'host "([^"]+)", user "([^"]+)"'
        r'(?:, database "([^"]+)")?',
        text,
    )
    if match:
        address = match[2] + ("/128" if ":" in match[2] else "/32")
        entry_database = "replication" if match[1] else f'"{match[4] or database}"'
        return error(
            subject,
            text,
            "pg_hba.conf on the server limits who connects from where; lines for a database count for its replication"
            " connections too",
            f'add to pg_hba.conf: host {entry_database} "{match[3]}" {address} scram-sha-256\nselect pg_reload_conf();',
        )
    if "unsupported startup parameter" in text:
        return error(subject, text, "that is a pooler's answer, not PostgreSQL's", _POOLER)
    if match := re.search(r'role "(.+)" does not exist', text):
        return error(subject, text, why, f"create role {sql_identifier(match[1])} login replication;")
    if match := re.search(r'role "(.+)" is not permitted to log in', text):
        return error(subject, text, why, f"alter role {sql_identifier(match[1])} login;")
    if match := re.search(r'permission denied for database "(.+)"', text):
        return error(
            subject, text, why, f"grant connect on database {sql_identifier(match[1])} to {sql_identifier(user)};"
        )
    if re.search(r'database "(.+)" does not exist', text):
        return error(subject, text, why, "correct dbname in source.dsn")
    if "password" in text:
        return error(subject, text, why, "set $LOCKSTEP_SOURCE_PASSWORD or source.password_file")
    if "max_wal_senders" in text:
        return error(subject, text, why, "alter system set max_wal_senders = 20;  -- then restart the server")
    if "too many clients" in text or "connection slots are reserved" in text:
        return error(subject, text, why, "close other connections, or raise max_connections and restart the server")
    return error(subject, text, why, "check host and port in source.dsn, and that the server runs")
