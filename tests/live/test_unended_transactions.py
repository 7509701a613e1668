"""A transaction that has written and hasn't ended holds up a copy: it is named, with the statement that ends it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.model.table import TableName
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.unended_transactions import told, unended_transactions
from stack import versions
from stack.stack import Endpoints
from tests.captured import Captured
from tests.conformance.server import source_server
from tests.databases import Database
from tests.services import temporary_directory

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server_dsn() -> Iterator[str]:
    """A server that takes prepared transactions, unlike the shared one."""
    with temporary_directory() as directory, source_server(versions.POSTGRES_MAJOR, directory) as dsn:
        yield dsn


@pytest.fixture
def own(server_dsn: str) -> Iterator[Database]:
    database = Database(server_dsn)
    yield database
    for (gid,) in database.connection.execute("select quote_literal(gid) from pg_prepared_xacts").fetchall():
        database.execute(f"rollback prepared {gid}")
    database.drop()


def _written(connection: psycopg.Connection[Any]) -> int:
    """The 32-bit xid of a transaction that has begun and has written."""
    row = connection.execute("insert into t values (7) returning xmin::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def test_open_and_prepared_transactions_are_named_oldest_first(own: Database) -> None:
    own.execute("create table t (id int)")
    with psycopg.connect(own.dsn, application_name="dbt") as one, psycopg.connect(own.dsn) as other:
        prepared = _written(one)
        one.execute("prepare transaction 'it''s'")
        is_open = _written(other)
        pid = other.info.backend_pid
        sentence = told(unended_transactions(own.connection, [prepared, is_open]))
        assert f"a prepared transaction of database {own.name}" in sentence
        assert "`rollback prepared 'it''s'` there ends it; " in sentence
        assert f"process {pid} (no name) has an open transaction" in sentence
        assert sentence.endswith(f"`select pg_terminate_backend({pid})` ends it")
        assert [found.pid for found in unended_transactions(own.connection)] == [None, pid]
        assert [found.pid for found in unended_transactions(own.connection, [is_open])] == [pid]
        other.rollback()
        assert unended_transactions(own.connection, [is_open]) == []


def test_a_transaction_that_was_prepared_before_capture_began_is_what_its_copy_waits_for(
    own: Database, endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshot.waits.SAID_AFTER_S", 0.2)
    own.execute("create table t (id int primary key)", "insert into t values (1)")
    with Captured(own, endpoints.kafka_bootstrap, tmp_path, ("public.t",)) as captured:
        captured.start()
        captured.settle()
        captured.stop()
        own.execute("begin; insert into t values (2); prepare transaction 'forgotten'")
        captured.start()
        request_repair(own.connection, TableName("public", "t"), None, slot=captured.config.slot)
        captured.wait_for("public.t: a copy waits: ")
        captured.wait_for("`rollback prepared 'forgotten'` there ends it")
        own.execute("rollback prepared 'forgotten'")
        captured.wait_for("public.t is copied")
        captured.assert_equal()
