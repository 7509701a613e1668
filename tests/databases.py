"""Databases of a test's own, and what their slots stream."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import make_url

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.settings import SourceSettings
from cdc.protocol.pgoutput import Message, decode
from cdc.protocol.walsender import WAL_DATA_OFFSET, XLOG_DATA, wal_start
from stack.stack import Endpoints

PUBLICATION = "lockstep_test"
_MARK = "test.mark"
_PATIENCE_S = 300.0


def until(condition: Callable[[], Any], *, seconds: float = _PATIENCE_S, every_s: float = 0.01) -> Any:
    """Wait for something to become true, and return it. Expensive conditions are checked less often."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(every_s)
    return result


def password_of(dsn: str) -> str | None:
    """The password that libpq finds in the connection string's passfile; None without a passfile."""
    passfile = conninfo_to_dict(dsn).get("passfile")
    return None if passfile is None else Path(str(passfile)).read_text().strip().rpartition(":")[2]


def create_login(server: psycopg.Connection[Any], role: str, dsn: str, attributes: str = "login") -> None:
    """Create a role that the passfile of the server's connection string lets in."""
    server.execute(
        sql.SQL("create role {} {} password {}").format(
            sql.Identifier(role),
            sql.SQL(attributes),  # type: ignore[arg-type]  # a test's own
            sql.Literal(password_of(dsn)),
        )
    )


def url_of(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)


class Database:
    """A database that nobody else uses. Slots and roles made through it are removed with it."""

    def __init__(self, server_dsn: str, *, options: str = "") -> None:
        """``options`` are those of CREATE DATABASE."""
        self.name = f"test_{uuid.uuid4().hex[:12]}"
        self.dsn = make_conninfo(server_dsn, dbname=self.name)
        self._server_dsn = server_dsn
        self._roles: list[str] = []
        self._slots = 0
        with self._server() as server:
            server.execute(
                sql.SQL("create database {} template template0 {}").format(
                    sql.Identifier(self.name),
                    sql.SQL(options),  # type: ignore[arg-type]  # a test's own
                )
            )
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def reconnect(self) -> None:
        self.connection.close()
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def _server(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._server_dsn, autocommit=True)

    def execute(self, *statements: str) -> None:
        """Run statements as the owner, each in a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def value(self, query: str, *parameters: object) -> Any:
        row = self.connection.execute(query.encode(), parameters).fetchone()
        assert row is not None
        return row[0]

    def role(self, *, login: str = "login replication") -> str:
        """A new role, which the passfile in the server's connection string lets in."""
        name = f"{self.name}_{len(self._roles)}"
        create_login(self.connection, name, self._server_dsn, login)
        self._roles.append(name)
        return name

    def let_in(self, role: str) -> None:
        """Give a role without a password the passfile's."""
        password = sql.Literal(password_of(self._server_dsn))
        self.connection.execute(sql.SQL("alter role {} password {}").format(sql.Identifier(role), password))

    def source(self, *tables: TableName, user: str | None = None) -> SourceSettings:
        """Settings to capture its tables, as its owner or as ``user``."""
        dsn = self.dsn if user is None else make_conninfo(self.dsn, user=user)
        return SourceSettings(dsn=dsn, tables=tuple(str(table) for table in tables) or ("public.t",))

    def shape(self, name: TableName) -> Table:
        return load_tables(self.connection, [name], None)[name]

    def slot_name(self) -> str:
        self._slots += 1
        return f"{self.name}_{self._slots}"

    def publish_all(self) -> None:
        self.execute(f"create publication {PUBLICATION} for all tables")

    def create_slot(self) -> tuple[str, Lsn]:
        """A permanent slot, and where it starts."""
        name = self.slot_name()
        with ReplicationConnection(self.source()) as connection:
            return name, connection.create_slot(name, temporary=False).consistent_point

    def drop_slot(self, slot: str) -> None:
        idle = "select 1 from pg_replication_slots where slot_name = %s and not active"
        until(lambda: self.connection.execute(idle, (slot,)).fetchone())
        self.connection.execute("select pg_drop_replication_slot(%s)", (slot,))

    def stream(self, slot: str, at: Lsn, *, user: str | None = None) -> list[tuple[int, Message]]:
        """Everything committed so far, from ``at``. Confirms nothing, so it can be read again."""
        return [(lsn, decode(payload)) for lsn, payload in self.payloads(slot, at, user=user)]

    def payloads(self, slot: str, at: Lsn, *, user: str | None = None) -> list[tuple[int, bytes]]:
        """The same as the server's own bytes."""
        token = uuid.uuid4().bytes
        self.connection.execute("select pg_logical_emit_message(true, %s, %s::bytea)", (_MARK, token))
        received: list[tuple[int, bytes]] = []
        with closing(self.started(slot, at, user)) as stream:
            deadline = time.monotonic() + _PATIENCE_S
            marked = False
            while not (marked and received[-1][1].startswith(b"C")):
                frame = stream.receive()
                if frame is None:
                    assert time.monotonic() < deadline, "the stream doesn't reach its end"
                    stream.wait(0.1)
                elif frame[0] == XLOG_DATA:
                    payload = bytes(frame[WAL_DATA_OFFSET:])
                    received.append((wal_start(frame), payload))
                    marked = marked or (payload.startswith(b"M") and payload.endswith(token))
        return received

    def started(self, slot: str, at: Lsn, user: str | None = None) -> ReplicationConnection:
        """A started stream. An earlier reader that has left may still hold the slot for a moment."""

        def attempt() -> ReplicationConnection | None:
            connection = ReplicationConnection(self.source(user=user))
            try:
                connection.start(slot, publication=PUBLICATION, at=at)
            except LockstepError as error:
                connection.close()
                if "is active" in error.message:
                    return None
                raise
            return connection

        started = until(attempt)
        assert isinstance(started, ReplicationConnection)
        return started

    def pinned(self, *, user: str | None = None) -> psycopg.Connection[Any]:
        """A connection as capture and snapshot open it."""
        return connect(self.source(user=user), application="test")

    def reading(self) -> psycopg.Connection[Any]:
        """The same for statements that name tables and types as people do."""
        connection = self.pinned()
        connection.execute("set search_path = public")
        return connection

    def drop(self) -> None:
        """Remove it with its slots and roles."""
        self.connection.close()
        with self._server() as server:
            server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (self.name,))
            mine = "from pg_replication_slots where database = %s"
            until(lambda: not server.execute(f"select 1 {mine} and active", (self.name,)).fetchall())
            server.execute(f"select pg_drop_replication_slot(slot_name) {mine}", (self.name,))
            server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(self.name)))
            for role in self._roles:
                server.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.fixture
def database(endpoints: Endpoints) -> Iterator[Database]:
    created = Database(endpoints.source_dsn)
    try:
        yield created
    finally:
        created.drop()


@pytest.fixture
def warehouse_database(endpoints: Endpoints) -> Iterator[Database]:
    created = Database(endpoints.warehouse_dsn)
    try:
        yield created
    finally:
        created.drop()


@pytest.fixture(scope="module")
def shared_database(endpoints: Endpoints) -> Iterator[Database]:
    """One database for the tests of a module that only read."""
    created = Database(endpoints.source_dsn)
    try:
        yield created
    finally:
        created.drop()
