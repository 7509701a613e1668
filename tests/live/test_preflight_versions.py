"""Preflight on every supported server: its SQL fits each catalogue, and equal facts give equal answers."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from cdc.model.finding import Severity
from cdc.model.table import TableName
from cdc.postgres.connection import connect
from cdc.postgres.preflight import check_source
from cdc.postgres.preflight.endpoint import endpoint_findings
from cdc.postgres.preflight.slots import slot_findings
from cdc.postgres.versions import GENERATED_COLUMNS, PUBLICATION_LISTS
from migrations.source import publication_sql
from stack import versions
from tests.conformance.server import source_server
from tests.databases import PUBLICATION, Database
from tests.services import temporary_directory

pytestmark = [pytest.mark.live, pytest.mark.soak]

TABLES = tuple(
    TableName("public", name) for name in ("plain", "generated", "nokey", "parts", "unlogged", "seen", "missing")
)

SCHEMA = (
    "create table plain (id int primary key, v varchar(20))",
    "create table generated (id int primary key, v int, d int generated always as (v * 2) stored)",
    "alter table generated replica identity full",
    "create table nokey (a int not null, b text)",
    "create unique index on nokey (a)",
    "create table parts (id int primary key) partition by list (id)",
    "create table parts1 partition of parts default",
    "alter table parts1 replica identity full",
    "create unlogged table unlogged (id int primary key)",
    "create view seen as select 1 as id",
    "create table other (id int primary key)",
)

EVERYWHERE = {
    (Severity.ERROR, "table public.nokey", "has no primary key"),
    (Severity.ERROR, "table public.parts", "partitions have another replica identity than the table: public.parts1"),
    (Severity.ERROR, "table public.unlogged", "is unlogged"),
    (Severity.ERROR, "table public.seen", "is a view"),
    (Severity.ERROR, "table public.missing", "doesn't exist"),
    (
        Severity.ERROR,
        f"publication {PUBLICATION}",
        "sends changes of public.parts under the names of the partitions",
    ),
    (Severity.WARNING, f"publication {PUBLICATION}", "holds tables that aren't captured: public.other"),
}
WITH_LISTS = {
    (Severity.ERROR, f"publication {PUBLICATION}", "leaves out key columns of public.plain: id"),
    (
        Severity.WARNING,
        f"publication {PUBLICATION}",
        "filters the rows of public.plain by v, which its replica identity doesn't hold",
    ),
}
WITH_GENERATED = {
    (
        Severity.ERROR,
        "table public.generated",
        "its replica identity holds generated columns that aren't published: d",
    )
}


@pytest.fixture(params=sorted(versions.POSTGRES_OLDER))
def older(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on an older server."""
    with temporary_directory() as directory, source_server(request.param, directory) as dsn:
        database = Database(dsn)
        try:
            yield database
        finally:
            database.drop()


def assert_found(database: Database) -> None:
    version = database.connection.info.server_version
    lists = " (v) where (v <> '')" if version >= PUBLICATION_LISTS else ""
    database.execute(
        *SCHEMA, f"create publication {PUBLICATION} for table plain{lists}, generated, nokey, parts, other"
    )
    with closing(database.pinned()) as connection:
        connection.execute("set default_transaction_read_only = on")
        findings = check_source(
            connection,
            tables=TABLES,
            publication=PUBLICATION,
            slot="lockstep_free",
            create_publication=publication_sql(PUBLICATION, TABLES, version=version),
        )
    wrong = {
        (finding.severity, finding.subject, finding.what)
        for finding in findings
        if finding.severity is not Severity.OK and finding.subject.startswith(("table", "publication"))
    }
    expected = EVERYWHERE | (WITH_LISTS if version >= PUBLICATION_LISTS else set())
    assert wrong == expected | (WITH_GENERATED if version >= GENERATED_COLUMNS else set())
    with connect(database.source(), application="test") as connection:
        assert [finding.severity for finding in endpoint_findings(connection, database.source())] == [Severity.OK]


def test_the_newest_server_is_judged(database: Database) -> None:
    assert_found(database)


def test_an_older_server_is_judged_the_same(older: Database) -> None:
    assert_found(older)


def test_a_slot_is_warned_of_before_it_is_lost_and_named_after() -> None:
    # On a server of its own: the limit would cost every slot that other tests have.
    with (
        temporary_directory() as directory,
        source_server(17, directory) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("select pg_create_logical_replication_slot('held', 'pgoutput')")
        seen = [finding.what for finding in slot_findings(connection, "held")]
        connection.execute("alter system set max_slot_wal_keep_size = '1MB'")
        connection.execute("select pg_reload_conf()")
        connection.execute("create table t (v text)")
        while not seen[-1].startswith("is lost"):
            connection.execute("insert into t select repeat('x', 1000) from generate_series(1, 1000)")
            connection.execute("select pg_switch_wal()")
            seen += [finding.what.split(":")[0] for finding in slot_findings(connection, "held")]
            connection.execute("checkpoint")
            seen += [finding.what.split(":")[0] for finding in slot_findings(connection, "held")]
    assert list(dict.fromkeys(seen)) == ["exists", "is about to be lost", "is lost"]


def test_a_prepared_transaction_that_a_new_slot_would_wait_for_is_found() -> None:
    # On a server of its own: the others allow none.
    with (
        temporary_directory() as directory,
        source_server(14, directory) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):

        def subjects() -> list[str]:
            return [
                finding.subject for finding in slot_findings(connection, "new") if finding.severity is not Severity.OK
            ]

        connection.execute("create table t (v int)")
        connection.execute("begin; insert into t values (1); prepare transaction 'it''s open'")
        assert subjects() == ["prepared transactions"]
        (finding,) = [finding for finding in slot_findings(connection, "new") if finding.severity is Severity.WARNING]
        connection.execute(finding.fix.encode())
        assert subjects() == []
