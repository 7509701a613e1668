"""What capture asks the catalogue when the stream describes a table: little, however many tables and partitions."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.capture.confirmation import KeepAlive
from cdc.capture.published_table import PublishedTable
from cdc.model.table import TableName
from cdc.postgres.memberships import memberships
from cdc.protocol.pgoutput import Relation
from cdc.stream.catalogue_shapes import CatalogueShapes
from cdc.stream.table_publication import PublishedTables
from cdc.stream.visible_commits import VisibleCommits
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database

pytestmark = pytest.mark.live

_XID = "select pg_current_xact_id()::text::int8 & 4294967295"


class _Counting:
    """A connection that counts its queries, and the rows of the answers."""

    def __init__(self, database: Database) -> None:
        self._connection = database.connection
        self.info = database.connection.info
        self.queries = self.rows = 0

    def execute(self, *arguments: Any) -> Any:
        answer = self._connection.execute(*arguments)
        self.queries += 1
        self.rows += answer.rowcount
        return answer

    def since_last(self) -> tuple[int, int]:
        """(queries, rows) since the last call."""
        counted = self.queries, self.rows
        self.queries = self.rows = 0
        return counted


class _Described:
    """A captured table that the stream describes again and again."""

    def __init__(self, database: Database, endpoints: Endpoints, directory: Path, name: TableName) -> None:
        pipeline = Captured(database, endpoints.kafka_bootstrap, directory, [str(name)]).config.as_pipeline()
        database.execute(
            f"create publication {pipeline.publication} for table {name.sql} with (publish_via_partition_root = true)"
        )
        self.database = database
        self.asked = _Counting(database)
        self.said: list[str] = []
        tables = PublishedTables(pipeline, self.asked, database.name)  # type: ignore[arg-type]  # it does what is used
        recorded = memberships(database.connection, pipeline.publication, [name])[name].to_text()
        self._shapes = CatalogueShapes(
            self.asked,  # type: ignore[arg-type]
            pipeline,
            tables.of,
            self.said.append,
            VisibleCommits(self.asked, KeepAlive()),  # type: ignore[arg-type]
            membership_of=lambda _: recorded,
        )
        relation = self._shapes.current_relation(name)
        assert relation is not None
        self._relation: Relation = relation
        self.published: PublishedTable = tables.of(database.shape(name))
        self._shapes.adopt(relation, self.published)
        self.asked.since_last()

    def describe(self, xid: int) -> PublishedTable:
        """As the stream does in this transaction."""
        self.published = self._shapes.adopt(self._relation, self.published, xid)
        return self.published


def _xid_after(database: Database, *statements: str) -> int:
    database.execute("begin", *statements)
    xid = _xid(database)
    database.execute("commit")
    return xid


def _xid(database: Database) -> int:
    xid: int = database.value(_XID)
    return xid


@pytest.mark.soak
def test_one_answer_is_for_all_partitions_whose_transactions_were_seen_then(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute(
        "create table p (id int primary key, a text) partition by range (id)",
        "create table p1 partition of p for values from (0) to (10)",
        "create table p2 partition of p for values from (10) to (20)",
    )
    described = _Described(database, endpoints, tmp_path, TableName("public", "p"))
    early = _xid_after(database)
    writing = _xid_after(database, "insert into p values (1, 'x')")
    first = described.describe(early)
    assert described.asked.since_last()[0]
    assert described.describe(early) is first
    assert described.describe(writing) is first
    assert described.asked.since_last() == (0, 0)
    changed = described.describe(_xid_after(database, "truncate p1"))
    assert changed.unrecorded is not None
    assert "a partition went, was emptied or was rewritten" in changed.unrecorded.change.rewritten


def test_what_an_unseen_transaction_has_altered_is_waited_for_and_nothing_else(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute("create table t (id int primary key)", "create table u (id int primary key)")
    t, u = (database.shape(TableName("public", name)).oid for name in "tu")
    waited: list[str] = []
    keep_alive = KeepAlive()
    with psycopg.connect(database.dsn) as writing:

        def end() -> None:
            waited.append("")
            writing.commit()

        keep_alive.add(end)
        visible = VisibleCommits(database.connection, keep_alive)
        writing.execute("insert into u values (1)")
        writing.execute("savepoint s")
        writing.execute("alter table t add a int")
        row = writing.execute(_XID).fetchone()
        assert row is not None
        xid = row[0]
        assert not visible.wait_if_altered(xid, u, TableName("public", "u")).sees(xid)
        assert not waited
        assert visible.wait_if_altered(xid, t, TableName("public", "t")).sees(xid)
        assert waited
