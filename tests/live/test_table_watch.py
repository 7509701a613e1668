"""The catalogue's facts about a table are recorded as of a place in the stream, not earlier."""

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from cdc.capture.confirmation import KeepAlive
from cdc.model.table import TableName
from cdc.postgres.slot import wal_end
from cdc.protocol.control_records import CaptureState, SchemaRecord
from cdc.stream.catalogue_shapes import CatalogueShapes
from cdc.stream.table_publication import PublishedTables
from cdc.stream.table_watch import TableWatch
from cdc.stream.visible_commits import VisibleCommits
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.history import assembler

pytestmark = pytest.mark.live

Inspect = Callable[[CaptureState], list[SchemaRecord]]


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    """Stopped after its snapshot."""
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = capture("public.t")
    captured.settle()
    captured.stop()
    return captured


@pytest.fixture
def inspect(database: Database, captured: Captured) -> Inspect:
    """Looks at the tables like a capture at this state; returns the shapes that are recorded so far."""
    pipeline, sql = captured.config.as_pipeline(), database.connection
    published = PublishedTables(pipeline, sql, sql.info.dbname)
    visible, recorded = VisibleCommits(sql, KeepAlive()), captured.state().memberships
    shapes = CatalogueShapes(sql, pipeline, published.of, captured.said.append, visible, recorded.get)
    watch = TableWatch(pipeline, sql, captured.said.append, shapes={}, was_published=set())
    follower = assembler(captured.schemas("public.t")[-1].table)

    def look(state: CaptureState) -> list[SchemaRecord]:
        watch.inspect(state, follower, shapes)
        return follower.relations.new_shapes

    return look


def test_an_altered_table_is_recorded_when_the_stream_is_past_it(
    database: Database, captured: Captured, inspect: Inspect
) -> None:
    state = captured.state()
    database.execute("alter table t add d int default 7")
    assert inspect(state) == []
    assert inspect(state) == []
    (record,) = inspect(replace(state, end_lsn=wal_end(database.connection)))
    assert record.change.defaults == {"d": 7}


def test_a_table_that_is_altered_again_is_recorded_when_the_stream_is_past_that_too(
    database: Database, captured: Captured, inspect: Inspect
) -> None:
    state = captured.state()
    database.execute("alter table t add d int default 7")
    assert inspect(state) == []
    passed = replace(state, end_lsn=wal_end(database.connection))
    # The stream still has this row, in the shape before the second change.
    database.execute("insert into t values (2, 2)", "alter table t rename d to z")
    assert inspect(passed) == []
    assert inspect(passed) == []
    (record,) = inspect(replace(state, end_lsn=wal_end(database.connection)))
    assert record.change.defaults == {"z": 7}


def test_a_table_that_is_dropped_under_the_look_is_looked_at_again(
    captured: Captured, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL fails if a relation vanishes between two steps of one query, which is too short for a test."""

    def fail(*_: object) -> None:
        raise psycopg.errors.InternalError_("could not open relation with OID 16384")

    with monkeypatch.context() as patched:
        patched.setattr("cdc.stream.table_watch.memberships", fail)
        assert inspect(captured.state()) == []
    assert inspect(captured.state()) == []
    captured.start()
    captured.assert_equal()


def test_a_table_that_has_another_name_and_is_altered_is_recorded_too(
    database: Database, captured: Captured, inspect: Inspect
) -> None:
    state = captured.state()
    database.execute("alter table t rename to renamed", "alter table renamed add d int default 7")
    assert inspect(state) == []
    (record,) = inspect(replace(state, end_lsn=wal_end(database.connection)))
    assert (record.table.name, record.change.defaults) == (TableName("public", "t"), {"d": 7})
