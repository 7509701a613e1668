"""Slot, snapshot and catalogue against a real server."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.event_format.decode import tag_of
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import ReplicaIdentity, TableName
from cdc.model.tag import Tag
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.slot import (
    drop_slot,
    emit_heartbeat,
    end_other_reader,
    find_slot,
)
from cdc.protocol.pgoutput import Begin, Commit, Insert, LogicalMessage, Message
from cdc.protocol.walsender import status_update
from snapshot.table_reader import SnapshotReader
from tests.copy_lines import snapshot_rows
from tests.databases import PUBLICATION, Database, until
from tests.history import assembler, events, state

pytestmark = pytest.mark.live

T = TableName("public", "t")


@pytest.fixture
def published_table(database: Database) -> Database:
    """A database with a published table ``t (id, v)``."""
    database.execute("create table t (id int primary key, v text)")
    database.publish_all()
    return database


def of_type(messages: list[tuple[int, Message]], kind: type) -> list[Any]:
    return [message for _, message in messages if isinstance(message, kind)]


def test_a_new_slot_starts_at_its_consistent_point(published_table: Database) -> None:
    name, point = published_table.create_slot()
    slot = find_slot(published_table.connection, name)
    assert slot is not None
    assert (slot.plugin, slot.database, slot.active_pid, slot.confirmed) == (
        "pgoutput",
        published_table.name,
        None,
        point,
    )


def test_a_slot_that_is_dropped_is_gone(published_table: Database) -> None:
    name, _ = published_table.create_slot()
    drop_slot(published_table.connection, name)
    assert find_slot(published_table.connection, name) is None


def test_what_is_confirmed_moves_the_slot(published_table: Database) -> None:
    name, point = published_table.create_slot()
    published_table.execute("insert into t values (1, 'x')")
    end = of_type(published_table.stream(name, point), Commit)[0].end_lsn
    with ReplicationConnection(published_table.source()) as connection:
        connection.start(name, publication=PUBLICATION, at=point)
        connection.send(status_update(received=end, confirmed=end, applied=end, unix_time_us=0))
        until(lambda: find_slot(published_table.connection, name).confirmed == end)  # type: ignore[union-attr]


def test_a_stream_can_be_read_again_until_it_is_confirmed(published_table: Database) -> None:
    name, point = published_table.create_slot()
    published_table.execute("insert into t values (1, 'x')")
    first = published_table.stream(name, point)
    assert published_table.stream(name, point)[: len(first)] == first


def test_a_stream_from_the_end_of_a_transaction_starts_after_it(published_table: Database) -> None:
    name, point = published_table.create_slot()
    published_table.execute("insert into t values (1, 'x')", "insert into t values (2, 'y')")
    end = of_type(published_table.stream(name, point), Commit)[0].end_lsn
    assert [row.new[0] for row in of_type(published_table.stream(name, end), Insert)] == [b"2"]


def test_begin_has_the_lsn_of_its_commit(published_table: Database) -> None:
    name, point = published_table.create_slot()
    published_table.execute("insert into t values (1, 'x')")
    messages = published_table.stream(name, point)
    assert [begin.commit_lsn for begin in of_type(messages, Begin)] == [
        commit.commit_lsn for commit in of_type(messages, Commit)
    ]


def test_rows_written_while_the_publication_lacks_their_table_never_come(database: Database) -> None:
    # The server says nothing about it, so naming the publication isn't enough: it must be looked at.
    database.execute(
        "create table t (id int primary key, v varchar(20))", f"create publication {PUBLICATION} for table t"
    )
    name, point = database.create_slot()
    database.execute(
        f"alter publication {PUBLICATION} drop table t",
        "insert into t values (1, 'lost')",
        f"alter publication {PUBLICATION} add table t",
        "insert into t values (2, 'seen')",
    )
    assert [row.new[1] for row in of_type(database.stream(name, point), Insert)] == [b"seen"]


def test_a_heartbeat_comes_as_a_commit_before_the_position_that_it_returned(published_table: Database) -> None:
    name, point = published_table.create_slot()
    after = emit_heartbeat(published_table.connection)
    messages = published_table.stream(name, point)
    assert of_type(messages, LogicalMessage)[0].prefix == "lockstep.heartbeat"
    assert of_type(messages, Commit)[0].end_lsn <= after


@pytest.mark.soak
def test_a_role_that_may_not_write_messages_is_told_what_to_grant(published_table: Database) -> None:
    published_table.execute(
        "do $$ begin execute format('revoke execute on function %s from public',"
        " (select max(oid)::regprocedure from pg_proc where proname = 'pg_logical_emit_message'"
        " and 'bytea'::regtype = any(proargtypes))); end $$"
    )
    with (
        connect(published_table.source(user=published_table.role()), application="test") as refused,
        pytest.raises(LockstepError, match="our role may not write logical messages") as caught,
    ):
        emit_heartbeat(refused)
    assert "grant execute" in str(caught.value.hint)


@pytest.mark.soak
def test_a_reader_of_the_slot_can_be_ended(published_table: Database) -> None:
    name, point = published_table.create_slot()
    with ReplicationConnection(published_table.source()) as other:
        other.start(name, publication=PUBLICATION, at=point)
        slot = until(
            lambda: (slot_now := find_slot(published_table.connection, name)) and slot_now.active_pid and slot_now
        )
        end_other_reader(published_table.connection, slot)
        with pytest.raises(Unavailable):
            until(lambda: other.wait(0.05) or other.receive() == b"never")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"port": "1"}, Unavailable),
        ({"dbname": "no_such_database"}, LockstepError),
        ({"user": "no_such_role"}, LockstepError),
    ],
)
def test_a_server_that_is_away_is_told_from_one_that_refuses(
    database: Database, change: dict[str, str], error: type[LockstepError]
) -> None:
    source = database.source().model_copy(update={"dsn": make_conninfo(database.dsn, **change)})
    with pytest.raises(LockstepError) as caught:
        connect(source, application="test")
    assert type(caught.value) is error


def test_options_of_the_dsn_do_not_unpin_the_session(database: Database) -> None:
    dsn = make_conninfo(database.dsn, options="-c TimeZone=Asia/Kathmandu -c statement_timeout=12345 -c work_mem=5MB")
    source = database.source().model_copy(update={"dsn": dsn})
    with closing(connect(source, application="test")) as connection:
        settings = connection.execute(
            "select current_setting('TimeZone'), current_setting('statement_timeout'), current_setting('work_mem')"
        ).fetchone()
    assert settings == ("UTC", "0", "5MB")


class InFlight:
    """A transaction that has written, while a thread creates a slot, which has to wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.writer = psycopg.connect(database.dsn)
        self.name = database.slot_name()
        self.connection = ReplicationConnection(database.source())
        self.waited: list[float] = []
        self._created: list[Any] = []
        self._thread = threading.Thread(target=self._create)

    def _create(self) -> None:
        self._created.append(self.connection.create_slot(self.name, temporary=False, while_waiting=self.waited.append))

    def start(self) -> None:
        """Create the slot, and return once it waits for the writer."""
        self._thread.start()
        self.wait_for(self.writer)

    def wait_for(self, writer: psycopg.Connection[Any]) -> None:
        """Return once the creation waits for a writer's transaction."""
        row = writer.execute("select pg_current_xact_id()::xid::text").fetchone()
        waiting = (
            "select 1 from pg_locks join pg_replication_slots on pid = active_pid"
            " where locktype = 'transactionid' and not granted and slot_name = %s and transactionid::text = %s"
        )
        assert row is not None
        until(lambda: self._database.connection.execute(waiting, (self.name, row[0])).fetchone())

    def created(self) -> Any:
        self._thread.join(300)
        return self._created[0]

    def close(self) -> None:
        self.writer.close()
        if self._thread.ident is not None:
            self._thread.join(300)
        self.connection.close()


@pytest.fixture
def in_flight(published_table: Database) -> Iterator[InFlight]:
    created = InFlight(published_table)
    yield created
    created.close()


def test_a_transaction_in_flight_while_the_slot_is_created_is_in_the_stream_and_not_in_the_snapshot(
    published_table: Database, in_flight: InFlight
) -> None:
    published_table.execute("insert into t values (1, 'before')")
    # The slot first waits for transactions that are writing, then for those that began to write in the meantime. Only a
    # transaction that begins after that and is still open when the slot exists spans its consistent point.
    first = in_flight.writer
    first.execute("insert into t values (2, 'first')")
    in_flight.start()
    with psycopg.connect(published_table.dsn) as second, psycopg.connect(published_table.dsn) as across:
        second.execute("insert into t values (3, 'second')")
        first.commit()
        in_flight.wait_for(second)
        across.execute("insert into t values (4, 'across')")
        second.commit()
        slot = in_flight.created()
        across.commit()
    shape = published_table.shape(T)
    with SnapshotReader(published_table.source(T), slot.snapshot_name) as reader:
        copied = sorted(row[0] for row in snapshot_rows(reader, shape))  # type: ignore[type-var]
    in_flight.connection.close()
    point = slot.consistent_point
    follower = assembler(shape, at=state(commit_lsn=point, end_lsn=point))
    messages = published_table.stream(in_flight.name, point)
    published = events(follower, messages)
    assert copied == [b"1", b"2", b"3"]
    assert [key for _, key, _, _ in published] == [b'{"id":4}']
    assert tag_of(published[0][2] or b"").decode() >= str(Tag(1, point, 1))


def test_the_snapshot_shows_nothing_that_commits_after_the_slot(published_table: Database) -> None:
    with ReplicationConnection(published_table.source()) as holder:
        slot = holder.create_slot(published_table.slot_name(), temporary=True)
        published_table.execute("insert into t values (1, 'after')")
        with SnapshotReader(published_table.source(), slot.snapshot_name) as reader:
            assert list(snapshot_rows(reader, published_table.shape(T))) == []


def test_the_snapshot_reads_columns_in_the_order_of_the_shape(database: Database) -> None:
    database.execute(
        """create table "Odd "" one" (a int, gone int, "B %" text, c text, primary key (c, a))""",
        """alter table "Odd "" one" drop column gone""",
        """insert into "Odd "" one" values (1, E'x\\ty', 'z')""",
    )
    shape = database.shape(TableName("public", 'Odd " one'))
    with ReplicationConnection(database.source()) as holder:
        slot = holder.create_slot(database.slot_name(), temporary=True)
        with SnapshotReader(database.source(), slot.snapshot_name) as reader:
            assert list(snapshot_rows(reader, shape)) == [(b"1", b"x\ty", b"z")]


def test_a_key_is_read_in_its_own_order(database: Database) -> None:
    database.execute("create table t (a int, b int, c int, primary key (c, a) include (b))")
    assert database.shape(T).key == ("c", "a")


def test_a_shape_has_the_columns_that_the_publication_sends(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, secret text, shown text, doubled int generated always as (id * 2) stored)",
        f"create publication {PUBLICATION} for table t (id, shown)",
    )
    shape = load_tables(database.connection, [T], PUBLICATION)[T]
    assert [column.name for column in shape.columns] == ["id", "shown"]


def test_a_generated_column_that_is_not_published_is_not_in_the_shape(database: Database) -> None:
    database.execute("create table t (id int primary key, doubled int generated always as (id * 2) stored)")
    database.publish_all()
    shape = load_tables(database.connection, [T], PUBLICATION)[T]
    assert [column.name for column in shape.columns] == ["id"]


def test_the_stream_describes_the_shape_that_the_catalogue_has(database: Database) -> None:
    database.execute(
        "create domain positive as int check (value > 0)",
        "create type mood as enum ('calm')",
        "create table t (id int, gone int, v varchar(20), p positive[], m mood, n numeric(10,2),"
        " doubled int generated always as (id * 2) stored, primary key (v, id))",
        "alter table t drop column gone",
    )
    database.publish_all()
    slot, start = database.create_slot()
    shape = load_tables(database.connection, [T], PUBLICATION)[T]
    database.execute("insert into t values (1, 'x', '{1}', 'calm', 1)")
    follower = assembler(shape, at=state(commit_lsn=start, end_lsn=start))
    (event,) = events(follower, database.stream(slot, start))
    assert event[1] == b'{"v":"x","id":1}'


def test_the_identity_of_a_table_is_read_from_the_catalogue(database: Database) -> None:
    database.execute("create table t (id int primary key)", "alter table t replica identity full")
    assert database.shape(T).replica_identity is ReplicaIdentity.FULL
