"""A partitioned table with more partitions than its server has locks for: copies, repairs, and what stops them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import psycopg
import pytest

from cdc.kafka.control_topics import read_state
from cdc.model.table import TableName
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.replication import ReplicationConnection
from snapshot.chunk_session import KEYS_AT_ONCE
from snapshot.table_reader import SnapshotReader, TableMoved
from stack import versions
from stack.stack import Endpoints
from tests.captured import Captured
from tests.conformance.server import source_server
from tests.databases import Database, until

pytestmark = [pytest.mark.live, pytest.mark.soak]

M = TableName("public", "m")
_FEW_LOCKS = {
    "max_locks_per_transaction": "10",
    "max_connections": "15",
    "max_wal_senders": "5",
    "max_prepared_transactions": "0",
    "max_worker_processes": "2",
    "autovacuum_worker_slots": "1",
}
"""PostgreSQL has some hundred locks more than that makes, in memory that it doesn't need otherwise."""
_DEFAULT_LOCKS = {"max_locks_per_transaction": "64", "max_connections": "100"}
_ROWS_EACH = 2
_COPYING = "copying public.m at"

_ONE_PARTITION = (
    "create table m (id int primary key) partition by range (id)",
    "create table m0 partition of m for values from (0) to (10)",
    "insert into m values (1)",
)
_TWO_PARTITIONS = (
    *_ONE_PARTITION,
    "create table m1 partition of m for values from (10) to (20)",
    "insert into m values (11)",
)


@contextmanager
def _database(directory: Path, settings: dict[str, str]) -> Iterator[Database]:
    with source_server(versions.POSTGRES_MAJOR, directory, settings=settings) as dsn:
        database = Database(dsn)
        try:
            yield database
        finally:
            database.drop()


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with source_server(versions.POSTGRES_MAJOR, tmp_path_factory.mktemp("small"), settings=_FEW_LOCKS) as dsn:
        yield dsn


@pytest.fixture
def small(small_server: str) -> Iterator[Database]:
    """A database of a server that can't lock all of the table's partitions."""
    database = Database(small_server)
    try:
        _make(database, 600)
        yield database
    finally:
        database.drop()


def _make(database: Database, partitions: int, *, group: int = 0) -> None:
    """``m`` with this many partitions, and a few rows in each. With ``group``, so many stand below a partition of their
    own: creating one takes as long as its parent has partitions."""
    parent, groups = "m", ""
    if group:
        parent = f"g' || n / {group} || '"
        groups = (
            f" if n % {group} = 0 then execute format('create table g%s partition of m for values from (%s) to (%s)"
            f" partition by range (id)', n / {group}, n * 10, (n + {group}) * 10); end if;"
        )
    database.execute(
        "create table m (id int, a text, primary key (id)) partition by range (id)",
        "create index on m (a)",
        f"do $$ begin for n in 0..{partitions - 1} loop{groups}"
        f" execute format('create table m%s partition of {parent} for values from (%s) to (%s)',"
        " n, n * 10, n * 10 + 10);"
        f" execute format('insert into m%s select n, n from generate_series(%s, %s) n', n, n * 10, n * 10"
        f" + {_ROWS_EACH - 1}); commit; end loop; end $$",
    )
    with pytest.raises(psycopg.errors.OutOfMemory, match="max_locks_per_transaction"):
        database.execute("select count(*) from m")


def _ids(captured: Captured, *, seconds: float = 60.0) -> list[int]:
    """The keys that have a row, for a reader of the topic and for a sink."""
    captured.settle(seconds=seconds)
    ids, by_tag = (
        sorted(orjson.loads(key)["id"] for key in captured.rows("public.m", by_tag=how)) for how in (False, True)
    )
    assert ids == by_tag
    return ids


def _filled(*partitions: int) -> set[int]:
    return {number * 10 + row for number in partitions for row in range(_ROWS_EACH)}


def _wait(captured: Captured, words: str, *, seconds: float, times: int = 1) -> None:
    """Wait until capture has said something this often, and no table lacks its copy."""

    def holds() -> bool:
        if captured.error is not None:
            raise captured.error
        if sum(words in line for line in captured.said) < times:
            return False
        state = read_state(captured.client, captured.name, captured.config.slot)
        return state is not None and M in state.copied

    until(holds, seconds=seconds)


def _check_everything(captured: Captured, database: Database, partitions: int, *, seconds: float = 300.0) -> None:
    """The first copy, new partitions, writers, a repair and a whole copy, each in this many seconds."""
    captured.begin()
    _wait(captured, "streaming from", seconds=seconds)
    expected = _filled(*range(partitions))
    assert set(_ids(captured, seconds=seconds)) == expected
    first = partitions * 10
    database.execute(
        "create table extra (id int not null, a text)",
        f"insert into extra values ({first}, 'came with its partition')",
        f"alter table m attach partition extra for values from ({first}) to ({first + 10})",
        f"do $$ begin for n in 0..{partitions - 1} loop"
        " execute format('insert into m values (%s, ''streamed'')', n * 10 + 5); commit; end loop; end $$",
        "delete from m where id = 0",
    )
    expected = expected - {0} | {first} | {number * 10 + 5 for number in range(partitions)}
    _wait(captured, "partitions came", seconds=seconds)
    assert set(_ids(captured, seconds=seconds)) == expected
    # From more partitions than can be locked together, with no more keys than are read at once.
    repaired = [{"id": number * 10} for number in range(KEYS_AT_ONCE)]
    request_repair(database.connection, M, repaired, slot=captured.config.slot)
    _wait(captured, f"published {KEYS_AT_ONCE - 1} rows and 1 deletes again", seconds=seconds)
    assert set(_ids(captured, seconds=seconds)) == expected
    copied = sum(_COPYING in line for line in captured.said)
    request_repair(database.connection, M, None, slot=captured.config.slot)
    _wait(captured, _COPYING, times=copied + 1, seconds=seconds)
    assert set(_ids(captured, seconds=seconds)) == expected


@pytest.mark.parametrize(
    "sections",
    ["", "[snapshot]\nworkers = 2"],
    ids=["capture alone", "workers"],
)
def test_more_partitions_than_the_server_has_locks_are_followed(
    small: Database, endpoints: Endpoints, tmp_path: Path, sections: str
) -> None:
    with Captured(small, endpoints.kafka_bootstrap, tmp_path, ["public.m"], sections=sections) as captured:
        _check_everything(captured, small, 600)


def test_ten_thousand_partitions_are_followed_with_the_locks_of_a_default_server(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    with _database(tmp_path, _DEFAULT_LOCKS) as database:
        _make(database, 10_000, group=100)
        with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.m"]) as captured:
            _check_everything(captured, database, 10_000, seconds=900.0)


@contextmanager
def _reader(database: Database, user: str | None = None) -> Iterator[SnapshotReader]:
    with ReplicationConnection(database.source()) as holder:
        slot = holder.create_slot(database.slot_name(), temporary=True)
        with SnapshotReader(database.source(user=user), slot.snapshot_name) as reader:
            yield reader


@pytest.mark.parametrize("key", ["a", "a, b", "b, list"])
def test_keys_that_are_looked_for_lock_their_own_partitions_alone(database: Database, key: str) -> None:
    database.execute(
        f"create table m (a int, b text, list int[], primary key ({key})) partition by hash ({key})",
        *(f"create table m{n} partition of m for values with (modulus 32, remainder {n})" for n in range(32)),
        "insert into m select n, n, array[n] from generate_series(1, 20) n",
    )
    shape = database.shape(M)
    values = {"a": "7", "b": "7", "list": "{7}"}
    wanted = [tuple(values[name] for name in shape.key)]
    with _reader(database) as reader:
        assert [found.has_row for found in reader.find(shape, wanted)] == [True]
        rows = reader.rows_of(shape, wanted)
        assert next(rows) == (b"7", b"7", b"{7}")
        locked = "select count(*) from pg_locks l join pg_class c on c.oid = l.relation where c.relname ~ '^m[0-9]+$'"
        assert database.value(locked) == 1
        assert list(rows) == []
        assert database.value(locked) == 0


@pytest.mark.parametrize(
    "change",
    [
        ("truncate m0", "insert into m values (1)"),
        ("alter table m0 set unlogged",),
    ],
    ids=["emptied", "rewritten"],
)
def test_no_key_of_a_partition_that_is_another_one_since_the_snapshot_is_taken_for_gone(
    database: Database, change: Sequence[str]
) -> None:
    """A rewrite gives all rows new transactions, so an old snapshot shows none of them."""
    database.execute(
        *_TWO_PARTITIONS,
    )
    shape = database.shape(M)
    with _reader(database) as reader:
        database.execute(*change)
        assert [found.has_row for found in reader.find(shape, [("11",)])] == [True]
        with pytest.raises(TableMoved, match="m0"):
            reader.find(shape, [("1",), ("11",)])
        with pytest.raises(TableMoved, match="m0"):
            list(reader.rows_of(shape, [("1",)]))
        assert [found.has_row for found in reader.find(shape, [("11",)])] == [True]
    with _reader(database) as reader:
        assert [found.has_row for found in reader.find(shape, [("1",)])] == [True]
