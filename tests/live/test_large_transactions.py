"""Large transactions that are sent while they run: what comes is what comes without that, from the same WAL."""

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from cdc.model.lsn import Lsn
from cdc.protocol.pgoutput import Begin, Commit, Delete, Insert, Message, Relation, Truncate, Type, Update, decode
from cdc.protocol.walsender import WAL_DATA_OFFSET, XLOG_DATA, wal_start
from cdc.stream.transaction_spool import SpoolSpace
from cdc.stream.whole_transactions import WholeTransactions
from tests.captured import Captured, StartCapture
from tests.databases import Database

pytestmark = pytest.mark.live

_ENOUGH = 1 << 40
_MANY = "insert into {} select i, repeat('x', 100) from generate_series({}, {}) i"
_LARGE = "(select string_agg(md5(i::text), '') from generate_series(1, 200) i)"


@pytest.fixture
def source(database: Database) -> Database:
    """A database of which a few hundred rows are a large transaction."""
    database.execute(
        f"alter database {database.name} set logical_decoding_work_mem = '64kB'",
        "create table t (id int primary key, v text)",
        "create table u (id int primary key, v text)",
        "create table wide (id int primary key, v text, large text)",
        "alter table wide alter large set storage external",
        "create type mood as enum ('calm', 'cross')",
    )
    database.publish_all()
    return database


def _frames(database: Database, slot: str, at: Lsn, directory: Path, *, in_parts: bool) -> list[tuple[int, bytes]]:
    """Every message up to a mark of our own, with its LSN. Parts are put together."""
    database.execute("select pg_logical_emit_message(true, 'test.end', '')")
    received: list[tuple[int, bytes]] = []

    with closing(database.started(slot, at, in_parts=in_parts)) as connection:
        stream = WholeTransactions(connection, SpoolSpace(directory, bytes_max=_ENOUGH)) if in_parts else connection

        def ended() -> bool:
            frame = stream.receive()
            if frame is None:
                stream.wait(0.01)
            elif frame[0] == XLOG_DATA:
                received.append((wal_start(frame), bytes(frame[WAL_DATA_OFFSET:])))
                return received[-1][1].startswith(b"M") and b"test.end" in received[-1][1]
            return False

        while not ended():
            pass
    return received


def _told(frames: list[tuple[int, bytes]]) -> Iterator[object]:
    """What the frames say: each message with its LSN, and each row with what its relation is by then."""
    relations: dict[int, Relation] = {}
    for lsn, payload in frames:
        message: Message = decode(payload)
        match message:
            case Relation():
                relations[message.relation_id] = message
            case Insert() | Update() | Delete():
                yield lsn, message, relations[message.relation_id]
            case Truncate():
                yield lsn, message, [relations[relation] for relation in message.relation_ids]
            case Type():
                pass
            case Begin() | Commit():
                yield message
            case _:
                yield lsn, message


def _compare(database: Database, slot: str, at: Lsn, directory: Path) -> list[object]:
    """What comes in parts, which has to be what comes whole."""
    assert b"S" in {payload[:1] for _, payload in database.payloads(slot, at, in_parts=True)}
    whole = list(_told(_frames(database, slot, at, directory, in_parts=False)))
    in_parts = list(_told(_frames(database, slot, at, directory, in_parts=True)))
    # Each reading has left a mark of its own at the end, which the later one reads as well.
    assert len(whole) > 3
    assert in_parts[: len(whole)] == whole
    return whole


_STATEMENTS: dict[str, tuple[str, ...]] = {
    "plain": (_MANY.format("t", 1, 2000),),
    "rows of every kind": (
        _MANY.format("t", 1, 1000),
        "update t set v = 'changed' where id <= 300",
        "update t set id = -id where id <= 300",
        "delete from t where id > 900",
        _MANY.format("u", 1, 1000),
    ),
    "a savepoint that is rolled back": (
        _MANY.format("t", 1, 1000),
        "savepoint s",
        _MANY.format("t", 2001, 4000),
        "rollback to s",
        _MANY.format("t", 1001, 1100),
    ),
    "a relation that only a rolled back savepoint described": (
        _MANY.format("t", 1, 1000),
        "savepoint s",
        _MANY.format("u", 1, 2000),
        "rollback to s",
        _MANY.format("u", 1001, 1100),
        _MANY.format("t", 1001, 1100),
    ),
    "savepoints within savepoints": (
        "savepoint a",
        _MANY.format("t", 1, 1000),
        "savepoint b",
        _MANY.format("t", 1001, 2000),
        "release b",
        "savepoint c",
        _MANY.format("u", 1, 1000),
        "rollback to a",
        _MANY.format("u", 2001, 2100),
        "savepoint d",
        _MANY.format("t", 3001, 4000),
        "release d",
    ),
    "another shape": (
        _MANY.format("t", 1, 1000),
        "alter table t add column w int default 7",
        "insert into t select i, 'x', i from generate_series(1001, 2000) i",
        "alter table t rename column v to renamed",
        "insert into t select i, 'x', i from generate_series(2001, 3000) i",
        "alter table t replica identity full",
        "update t set renamed = 'y' where id <= 500",
        "alter table t drop column w",
        "delete from t where id <= 500",
    ),
    "another shape that is rolled back": (
        _MANY.format("t", 1, 1000),
        "savepoint s",
        "alter table t rename column v to w",
        _MANY.format("t", 1001, 2000),
        "alter table t drop constraint t_pkey",
        _MANY.format("t", 2001, 3000),
        "rollback to s",
        _MANY.format("t", 3001, 4000),
    ),
    "a table that is made and dropped, one that is made": (
        "create table made (id int primary key, mood mood)",
        "insert into made select i, 'calm' from generate_series(1, 2000) i",
        "drop table made",
        "create table made (mood mood, id int primary key)",
        "insert into made select 'cross', i from generate_series(1, 2000) i",
    ),
    "truncate": (_MANY.format("t", 1, 1000), "truncate t, u", _MANY.format("t", 1, 1000), "truncate t"),
    "large values": (
        f"insert into wide select i, 'x', {_LARGE} from generate_series(1, 50) i",
        "update wide set v = 'y'",
        f"update wide set large = {_LARGE} || 'z' where id <= 20",
        "update wide set id = -id where id <= 20",
        "delete from wide where id > 40",
    ),
    "messages": (
        _MANY.format("t", 1, 1000),
        "select pg_logical_emit_message(true, 'within', 'it')",
        "select pg_logical_emit_message(false, 'beside', 'it')",
        _MANY.format("t", 1001, 2000),
        "savepoint s",
        _MANY.format("t", 2001, 3000),
        "rollback to s",
        "select pg_logical_emit_message(true, 'after the savepoint', 'it')",
        "select pg_logical_emit_message(true, 'large', repeat('x', 200000))",
    ),
}


_AT_EACH_CHANGE = ("rows of every kind", "savepoints within savepoints", "another shape", "truncate", "large values")


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(statements, id=name, marks=() if name in _AT_EACH_CHANGE else pytest.mark.soak)
        for name, statements in _STATEMENTS.items()
    ],
)
@pytest.mark.parametrize("end", ["commit", pytest.param("rollback", marks=pytest.mark.soak)])
def test_a_transaction_in_parts_is_the_same_transaction(
    source: Database, tmp_path: Path, statements: tuple[str, ...], end: str
) -> None:
    slot, at = source.create_slot()
    source.execute("insert into t values (0, 'before')", "insert into u values (0, 'before')")
    source.execute(f"begin; {'; '.join(statements)}; {end}")
    source.execute("delete from t where id = 0", "insert into u values (-1, 'after')", "truncate wide")
    source.execute(f"begin; {_MANY.format('u', 100_001, 101_000)}; commit")
    _compare(source, slot, at, tmp_path)
    assert not list(tmp_path.rglob("transaction-*"))


@pytest.mark.soak
def test_transactions_beside_each_other_come_in_the_order_of_their_commits(source: Database, tmp_path: Path) -> None:
    slot, at = source.create_slot()
    with psycopg.connect(source.dsn) as first, psycopg.connect(source.dsn) as second, psycopg.connect(source.dsn) as no:
        for number in range(5):
            for index, connection in enumerate((first, second, no)):
                start = 100_000 * index + 1000 * number
                connection.execute(_MANY.format("t", start + 1, start + 1000).encode())
                source.execute(f"insert into u values ({start}, 'beside them')")
        second.commit()
        source.execute("insert into u values (-1, 'between')")
        no.rollback()
        first.commit()
    _compare(source, slot, at, tmp_path)


@pytest.mark.soak
def test_a_transaction_that_is_sent_again_after_a_restart_is_whole(source: Database, tmp_path: Path) -> None:
    slot, at = source.create_slot()
    with psycopg.connect(source.dsn) as running:
        running.execute(_MANY.format("t", 1, 3000).encode())
        source.execute("insert into u values (1, 'beside it')")
        before = _frames(source, slot, at, tmp_path, in_parts=True)
        assert struct.pack("!I", 3000) not in b"".join(payload for _, payload in before)
        running.execute(_MANY.format("t", 3001, 6000).encode())
        running.commit()
    _compare(source, slot, at, tmp_path)


_IN_PARTS = "[capture]\nspool_transactions = true\nspool_directory = '{}'\n{}"
_TABLES = ("public.t", "public.u", "public.wide")


def _events(captured: Captured, table: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """All that came of the stream to a table's topic, but for the pipeline's name."""
    mine = f'"name":"{captured.name}"'.encode()
    return [
        (event.partition, event.key, event.value and event.value.replace(mine, b'"name":""'))
        for event in captured.events(table)
        if event.op != "r"
    ]


def _settled(source: Database, in_parts: Captured, whole: Captured) -> None:
    """Both captures of a database have published the same."""
    in_parts.assert_equal()
    whole.settle()
    for table in _TABLES:
        assert _events(in_parts, table) == _events(whole, table)


@pytest.fixture
def both(source: Database, capture: StartCapture, tmp_path: Path) -> tuple[Captured, Captured]:
    """Two captures of the same tables: large transactions in parts, and whole ones."""
    source.execute("insert into wide values (1, 'x', 'y')")
    sections = _IN_PARTS.format(tmp_path / "spool", "batch_rows = 1000")
    return capture(*_TABLES, sections=sections), capture(*_TABLES)


@pytest.mark.soak
def test_topics_hold_the_same_as_without_parts(source: Database, both: tuple[Captured, Captured]) -> None:
    with psycopg.connect(source.dsn) as other:
        for name, statements in _STATEMENTS.items():
            others = name != "truncate"  # which would wait for them
            if others:
                other.execute(_MANY.format("u", 200_001, 201_000).encode())
            source.execute("begin", *statements)
            if others:
                other.execute("delete from u where id > 200500")
            source.execute("commit")
            if others:
                other.execute("delete from u where id > 200100")
            other.commit()
            source.execute("truncate t, wide, u")
            if name == "another shape":
                source.execute("alter table t rename column renamed to v", "alter table t replica identity default")
            for captured in both:
                captured.settle()
    _settled(source, *both)


def test_a_restart_while_parts_wait_loses_and_repeats_nothing(
    source: Database, both: tuple[Captured, Captured]
) -> None:
    in_parts, whole = both
    with psycopg.connect(source.dsn) as running:
        running.execute(_MANY.format("t", 1, 3000).encode())
        source.execute("insert into u values (1, 'beside it')")
        in_parts.settle()
        in_parts.stop()
        in_parts.start()
        running.execute(_MANY.format("t", 3001, 6000).encode())
        source.execute("insert into u values (2, 'beside it')")
        running.commit()
    in_parts.stop()  # perhaps in the middle of what is given out
    in_parts.start()
    _settled(source, in_parts, whole)


def test_what_finds_no_room_on_disk_is_read_whole(source: Database, capture: StartCapture, tmp_path: Path) -> None:
    captured = capture(*_TABLES, sections=_IN_PARTS.format(tmp_path / "spool", "spool_bytes = 1048576"))
    source.execute(_MANY.format("t", 1, 20_000), "insert into u values (1, 'after it')")
    captured.assert_equal()
    assert [line for line in captured.said if "(capture.spool_bytes), so PostgreSQL is to keep them" in line]
