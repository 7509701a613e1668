"""Rows read under a snapshot: what happens while none comes, and what PostgreSQL refuses for good."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.postgres.memberships import memberships
from cdc.postgres.replication import ReplicationConnection
from snapshot.table_reader import SnapshotReader, UnreadableKey
from stack.stack import Endpoints
from tests.captured import Captured
from tests.copy_lines import snapshot_rows
from tests.databases import PUBLICATION, Database

pytestmark = pytest.mark.live


@pytest.fixture
def reader(database: Database) -> Iterator[SnapshotReader]:
    database.execute("create table t (id int primary key)", "insert into t values (1), (2)")
    with ReplicationConnection(database.source()) as holder:
        slot = holder.create_slot(database.slot_name(), temporary=True)
        with SnapshotReader(database.source(), slot.snapshot_name) as opened:
            yield opened


@pytest.mark.parametrize(
    "statements",
    [
        ("alter table t rename to u",),
        ("alter table t rename to u", "create sequence t"),
        ("create schema s", "alter table t set schema s"),
        ("drop table t",),
    ],
)
def test_a_table_that_loses_its_name_while_the_copy_begins_is_copied_later(
    database: Database, reader: SnapshotReader, statements: Sequence[str]
) -> None:
    database.publish_all()
    names = [TableName("public", "t")]
    found = memberships(database.connection, PUBLICATION, names)
    database.execute(*statements)
    with pytest.raises(Unavailable, match="while the copy began"):
        reader.lock_unchanged(found, PUBLICATION, database.connection)


def test_an_error_of_one_question_leaves_the_snapshot_usable(database: Database, reader: SnapshotReader) -> None:
    shape = database.shape(TableName("public", "t"))
    with pytest.raises(UnreadableKey, match="InvalidTextRepresentation"):
        reader.find(shape, [("x",)])
    assert [key.has_row for key in reader.find(shape, [("1",), ("3",)])] == [True, False]
    assert list(snapshot_rows(reader, shape)) == [(b"1",), (b"2",)]


def test_a_table_that_may_not_be_read_is_named(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    shape, role = database.shape(TableName("public", "t")), database.role()
    with ReplicationConnection(database.source()) as holder:
        slot = holder.create_slot(database.slot_name(), temporary=True)
        with (
            SnapshotReader(database.source(user=role), slot.snapshot_name) as opened,
            pytest.raises(LockstepError, match=r"public\.t can't be read: .*permission denied"),
        ):
            list(snapshot_rows(opened, shape))


_INVALID = b"insert into t values (2, E'\\xff')"


@pytest.fixture
def ascii_captured(endpoints: Endpoints, tmp_path: Path) -> Iterator[Captured]:
    """A capture of a database whose text is any bytes, not started."""
    database = Database(endpoints.source_dsn, options="encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'")
    try:
        database.execute("create table t (id int primary key, a text)", "insert into t values (1, 'x')")
        with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"]) as captured:
            yield captured
    finally:
        database.drop()


@pytest.mark.parametrize("running", [True, False], ids=["in the stream", "in a copy"])
def test_text_that_is_not_utf_8_ends_capture_with_the_reason(ascii_captured: Captured, running: bool) -> None:
    if running:
        ascii_captured.start()
    ascii_captured.database.connection.execute(_INVALID)
    if not running:
        ascii_captured.begin()
    error = ascii_captured.wait_error()
    assert isinstance(error, LockstepError)
    assert not isinstance(error, Unavailable)
    assert "SQL_ASCII" in (error.hint or "")
    assert "ff" not in error.message
