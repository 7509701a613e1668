"""What capture asks the catalogue when the stream describes a table: little, however many tables and partitions."""

from pathlib import Path
from typing import Any

import pytest

from cdc.capture.published_table import PublishedTable
from cdc.model.table import TableName
from cdc.postgres.memberships import memberships
from cdc.postgres.slot import wal_end
from cdc.protocol.pgoutput import Relation
from cdc.stream.catalogue_shapes import CatalogueShapes
from cdc.stream.table_publication import PublishedTables
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database

pytestmark = pytest.mark.live

_QUERIES_MAX = 6
_ROWS_MAX = 12
"""One of most answers, and one for each column."""


class _Counting:
    """A connection that counts what it is asked, and the rows of the answers."""

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
        """(queries, rows) since this was asked last."""
        counted = self.queries, self.rows
        self.queries = self.rows = 0
        return counted


class _Described:
    """A captured table as the stream describes it again and again."""

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
            membership_of=lambda _: recorded,
        )
        relation = self._shapes.current_relation(name)
        assert relation is not None
        self._relation: Relation = relation
        self.published: PublishedTable = tables.of(database.shape(name))
        self._shapes.adopt(relation, self.published)
        self.asked.since_last()

    def describe(self, commit_lsn: int) -> PublishedTable:
        self.published = self._shapes.adopt(self._relation, self.published, commit_lsn)
        return self.published


def test_a_table_is_asked_about_alone(database: Database, endpoints: Endpoints, tmp_path: Path) -> None:
    database.execute("create type mood as enum ('fine')", "create table t (id int primary key, a text, b mood)")
    described = _Described(database, endpoints, tmp_path, TableName("public", "t"))
    for _ in range(2):
        described.describe(wal_end(database.connection))
        queries, rows = described.asked.since_last()
        assert 0 < queries <= _QUERIES_MAX
        assert rows <= _ROWS_MAX


def test_one_answer_is_for_all_partitions_whose_transactions_were_committed_then(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute(
        "create table p (id int primary key, a text) partition by range (id)",
        "create table p1 partition of p for values from (0) to (10)",
        "create table p2 partition of p for values from (10) to (20)",
    )
    described = _Described(database, endpoints, tmp_path, TableName("public", "p"))
    early = wal_end(database.connection)
    database.execute("insert into p values (1, 'x')")
    first = described.describe(early)
    assert described.asked.since_last()[0]
    assert described.describe(early) is first
    assert described.asked.since_last() == (0, 0)
    database.execute("truncate p1")
    changed = described.describe(wal_end(database.connection))
    assert changed.unrecorded is not None
    assert "a partition went, was emptied or was rewritten" in changed.unrecorded.change.rewritten
