"""A first copy that goes on inside of tables: what is copied again after an interruption, and what isn't.

Capture dies here before the commit of a range, like a killed process: what it sent for the range is lost.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from cdc.capture.batch_size import BatchSize
from cdc.kafka.control_topics import read_copied_ranges
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.table import TableName
from cdc.postgres.replication import ReplicationConnection
from cdc.protocol.control_records import SnapshotPhase
from snapshot.ledger import FirstSnapshot
from snapshot.ranges import Part
from snapshot.table_reader import SnapshotReader
from tests.captured import Captured, Published, StartCapture
from tests.databases import Database, until
from tests.dying_publisher import Killed, dying

pytestmark = pytest.mark.live

T = TableName("public", "t")
ROWS = 3000
FILL = f"insert into t select n, repeat('x', 100) || n from generate_series(1, {ROWS}) n"
ALONE = "[snapshot]\nworkers = 0"
WORKERS = "[snapshot]\nworkers = 2"
LOG = "[source.options.'public.t']\nappend_only = true"


@pytest.fixture
def make(capture: StartCapture) -> Callable[..., Captured]:
    """Makes a capture of these tables with small ranges, not started."""

    def of(*tables: str, sections: str = ALONE, source: str = "") -> Captured:
        return capture(
            *tables or ("public.t",),
            sections=sections,
            source=source,
            batch=BatchSize(20_000, 65_536),
            copy_batch=BatchSize(100, 1 << 20),
            start=False,
        )

    return of


def _interrupt(captured: Captured, ranges: int = 2) -> None:
    """Start it, and let it die after this many ranges."""
    captured.begin(wrap_publisher=dying(lambda commit: commit.ranges > ranges, before=True))
    with pytest.raises(Killed):
        captured.wait_for("streaming from")
    captured.stop()
    assert captured.state().phase is SnapshotPhase.COPYING
    assert len(_ranges(captured)) >= ranges


def _ranges(captured: Captured) -> list[Any]:
    return read_copied_ranges(captured.client, captured.name, captured.config.slot)


def _copied(captured: Captured, table: str = "public.t") -> list[Published]:
    return [event for event in captured.events(table) if event.value is not None and event.op == "r"]


def _points(captured: Captured) -> dict[int, set[str]]:
    """The tags of each row's copies, by id."""
    tags: dict[int, set[str]] = {}
    for event in _copied(captured):
        tags.setdefault(event.after["id"], set()).add(event.tag)
    return tags


@pytest.mark.parametrize("sections", [ALONE, WORKERS])
@pytest.mark.soak
def test_only_the_missing_ranges_are_copied(database: Database, make: Any, sections: str) -> None:
    database.execute("create table t (id int primary key, a text)", FILL)
    captured = make()
    _interrupt(captured, 3)
    before = {event.after["id"] for event in _copied(captured)}
    done = sum(copied.rows for copied in _ranges(captured))
    captured = make_again(captured, sections)
    captured.start()
    points = _points(captured)
    assert points.keys() == set(range(1, ROWS + 1))
    # Rows of the range that was under way may come again.
    assert sum(len(tags) == 1 for tags in points.values()) >= ROWS - (len(before) - done)
    assert done > 0
    assert _ranges(captured) == []
    assert captured.state().copied == {T: ROWS}
    captured.assert_equal()


def make_again(captured: Captured, sections: str) -> Captured:
    """The same pipeline with other sections."""
    captured.path.write_text(captured.path.read_text().replace(ALONE, sections))
    from lockstep.config import load

    captured.config = load(captured.path)
    return captured


def _change_rows(database: Database) -> None:
    """Rows come, change, move to blocks that were copied and to new ones, and go."""
    database.execute(
        "delete from t where id % 10 = 1",
        "vacuum t",
        f"insert into t select {ROWS} + n, 'new' from generate_series(1, 500) n",
        "update t set a = 'changed' || id where id % 10 = 2",
        f"update t set id = id + {10 * ROWS} where id % 10 = 3",
        "delete from t where id % 10 = 4",
        "vacuum t",
        f"insert into t select n, 'again' from generate_series(1, {ROWS}) n where n % 10 = 4",
        "update t set a = a || '.' where id % 10 = 2",
    )


@pytest.mark.parametrize("sections", [pytest.param(ALONE, marks=pytest.mark.soak), WORKERS])
@pytest.mark.parametrize("ranges", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_rows_that_change_while_nothing_runs(database: Database, make: Any, ranges: int, sections: str) -> None:
    database.execute("create table t (id int primary key, a text)", FILL)
    captured = make()
    _interrupt(captured, ranges)
    _change_rows(database)
    _interrupt(captured, 1)
    database.execute("update t set a = a || '!' where id % 3 = 0", "delete from t where id % 50 = 6")
    captured = make_again(captured, sections)
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


_REWRITES = {
    "vacuum full": ["delete from t where id < 1000", "vacuum full t"],
    "cluster": ["update t set a = a where id % 2 = 0", "cluster t using t_pkey"],
    "truncate": ["truncate t", "insert into t select n, 'after' from generate_series(5, 800) n"],
    "rewrite": ["alter table t alter a type varchar(300) using a || 'y'"],
    "new column": ["alter table t add b int default 7", "update t set b = 8 where id % 100 = 0"],
    "new table": ["drop table t", "create table t (id int primary key, a text)", "insert into t values (5, 'x')"],
}


@pytest.mark.parametrize("rewrite", _REWRITES)
@pytest.mark.soak
def test_a_table_that_was_rewritten_begins_again(database: Database, make: Any, rewrite: str) -> None:
    database.execute("create table t (id int primary key, a text)", FILL)
    captured = make()
    _interrupt(captured, 3)
    database.execute(*_REWRITES[rewrite])
    if rewrite == "new table":
        database.execute(f"alter publication {captured.config.publication} add table t")
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_partitions_go_on_each_by_itself(database: Database, make: Any) -> None:
    database.execute(
        "create table t (id int primary key, a text) partition by range (id)",
        *(f"create table t{n} partition of t for values from ({n * 1000}) to ({n * 1000 + 1000})" for n in range(4)),
        FILL,
        "create table bare (id int primary key) partition by range (id)",
        "create table empty (id int primary key)",
        "create table one (id int primary key)",
        "insert into one values (1)",
    )
    captured = make("public.t", "public.bare", "public.empty", "public.one")
    _interrupt(captured, 4)
    copied = {(copied.storage, copied.first): copied for copied in _ranges(captured)}
    database.execute(
        "create table t9 partition of t for values from (9000) to (9900)",
        "insert into t select n, 'x' from generate_series(9000, 9100) n",
        "vacuum full t3",
        "update t set a = 'y' where id % 100 = 5",
    )
    captured.start()
    again = [tags for tags in _points(captured).values() if len(tags) > 1]
    assert copied
    assert len(again) < ROWS / 2
    captured.wait_quiet()
    captured.assert_equal()


def test_a_partition_that_came_to_an_interrupted_copy_and_goes_before_the_stream_leaves_no_row(
    database: Database, make: Any
) -> None:
    database.execute(
        "create table t (id int primary key, a text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (5000)",
        FILL,
    )
    captured = make()
    _interrupt(captured)
    database.execute(
        "create table t2 (id int primary key, a text)",
        "insert into t2 select n, 'before' from generate_series(5001, 5010) n",
        "alter table t attach partition t2 for values from (5000) to (9000)",
    )
    captured.begin(wrap_publisher=dying(lambda commit: commit.state.phase is SnapshotPhase.DONE))
    with pytest.raises(Killed):
        captured.wait_for("streaming from")
    captured.stop()
    assert 5001 in _points(captured)
    database.execute("drop table t2")
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_a_large_value_of_a_row_that_moved_to_a_copied_range(database: Database, make: Any) -> None:
    """Its update leaves the value out, and nobody has copied it before."""
    database.execute(
        "create table t (id int primary key, n int, big text)",
        "alter table t alter big set storage external",
        "insert into t select n, 0, repeat('x', 2100) || n from generate_series(1, 1500) n",
    )
    captured = make()
    _interrupt(captured, 4)
    missing = set(range(1, 1501)) - {event.after["id"] for event in _copied(captured)}
    database.execute("delete from t where id < 100", "vacuum t")
    database.execute(f"update t set n = 1 where id in {tuple(sorted(missing)[:10])}")
    moved = database.value("select count(*) from t where n = 1 and ctid < '(1,0)'")
    assert moved > 0
    captured.start()
    captured.wait_quiet()
    assert not any("left the large values" in line for line in captured.said)
    captured.assert_equal()


# Tables without a key.


def _counts(events: list[Published]) -> Counter[int]:
    """How often each row was published since the table was last emptied."""
    counts: Counter[int] = Counter()
    for event in events:
        if event.op == "t":
            counts.clear()
        else:
            counts[event.after["id"]] += 1
    return counts


def _ids(database: Database) -> Counter[int]:
    return Counter(row[0] for row in database.connection.execute("select id from t").fetchall())


def _log(database: Database, rows: int = ROWS) -> None:
    database.execute(
        "create table t (id int, a text)",
        f"insert into t select n, repeat('x', 100) || n from generate_series(1, {rows}) n",
    )


@pytest.mark.parametrize("sections", [pytest.param(ALONE, marks=pytest.mark.soak), WORKERS])
def test_no_row_without_a_key_comes_twice(database: Database, make: Any, sections: str) -> None:
    """While others insert all the time, into blocks that were copied and into those that weren't."""
    _log(database)
    captured = make(source=LOG)
    ended = threading.Event()

    def insert() -> None:
        number = 10 * ROWS
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            while not ended.is_set():
                with connection.transaction():
                    connection.execute("insert into t values (%s, repeat('n', 50))", (number,))
                    with connection.transaction():
                        connection.execute("insert into t values (%s, 'n')", (number + 1,))
                number += 2

    inserting = threading.Thread(target=insert)
    inserting.start()
    try:
        for ranges in (2, 1, 3):
            _interrupt(captured, ranges)
        captured = make_again(captured, sections)
        captured.start()
    finally:
        ended.set()
        inserting.join()
    captured.settle()
    assert not any(event.op == "t" for event in captured.events("public.t"))
    assert _counts(captured.events("public.t")) == _ids(database)


@pytest.mark.soak
def test_rows_without_a_key_that_were_deleted_meanwhile(database: Database, make: Any) -> None:
    """No copy has them any more, and the stream has their end: the table is copied anew, behind a truncate."""
    _log(database)
    database.execute("alter table t replica identity full")
    captured = make(source=LOG)
    _interrupt(captured)
    database.execute("delete from t where id % 7 = 0", "update t set id = -id where id % 11 = 0")
    captured.start()
    captured.settle()
    assert any("was changed or deleted while the table's first copy was interrupted" in line for line in captured.said)
    assert _counts(captured.events("public.t")) == _ids(database)


@pytest.mark.parametrize("rewrite", ["vacuum full t", "alter table t add b int", "truncate t"])
@pytest.mark.soak
def test_a_table_without_a_key_that_was_rewritten_is_copied_anew(database: Database, make: Any, rewrite: str) -> None:
    _log(database)
    captured = make(source=LOG)
    _interrupt(captured)
    database.execute("insert into t values (-1, 'x')", rewrite, "insert into t values (-2, 'x')")
    captured.start()
    captured.settle()
    assert any("its copy can't go on, since the table was altered" in line for line in captured.said)
    assert _counts(captured.events("public.t")) == _ids(database)


@pytest.mark.soak
def test_an_interrupted_copy_in_the_stream_doubles_no_row_either(database: Database, make: Any) -> None:
    _log(database, rows=50)
    captured = make(source=LOG).start()
    captured.stop()
    state = captured.state()
    assert state.copied == {T: 50}
    database.execute("alter table t alter a type varchar(200) using a || 'y'")  # copies it again
    captured.start()
    captured.wait_quiet()
    assert _counts(captured.events("public.t")) == _ids(database)


@pytest.mark.soak
def test_the_first_snapshot_does_not_show_what_commits_after_it(database: Database) -> None:
    """Even of a transaction that is in the middle of it, with a part that has a number of its own."""
    database.execute("create table t (id int)", "insert into t values (1)")
    name = database.slot_name()
    with contextlib.ExitStack() as opened:
        blocking, late, waited_for = (opened.enter_context(psycopg.connect(database.dsn)) for _ in range(3))
        blocking.execute("insert into t values (2)")
        holder = opened.enter_context(ReplicationConnection(database.source()))
        made: list[Any] = []
        creating = threading.Thread(target=lambda: made.append(holder.create_slot(name, temporary=True)))
        creating.start()
        waiting = (
            "select count(*) from pg_locks join pg_replication_slots on pid = active_pid"
            " where slot_name = %s and not granted and locktype = 'transactionid'"
        )
        until(lambda: database.value(waiting, name) > 0)
        waited_for.execute("insert into t values (3)")
        blocking.commit()
        pid = waited_for.info.backend_pid
        until(lambda: database.value(f"select count(*) from pg_stat_activity where {pid} = any(pg_blocking_pids(pid))"))
        with late.transaction():
            late.execute("insert into t values (4)")
            with late.transaction():
                late.execute("insert into t values (5)")
            database.execute("insert into t values (6)")  # so the snapshot ends behind the ones before
            waited_for.commit()
            creating.join(300)
            reader = opened.enter_context(SnapshotReader(database.source(), made[0].snapshot_name))
            first = reader.snapshot()
            assert len(first.split(":")[2].split(",")) >= 2
        shown = FirstSnapshot(first, database.value("select pg_snapshot_xmax(pg_current_snapshot())::text::int8"))
        assert shown.is_exact
        rows = database.connection.execute(f"select id from t where {shown.shows()} order by id".encode()).fetchall()
        assert [row[0] for row in rows] == [1, 2, 3, 6]
        part = Part(T, "only public.t", "1.1", None, None, 1)
        lines = reader.part(database.shape(T), part)
        assert sorted(int(line) for some in lines for line in some) == [1, 2, 3, 6]


@pytest.mark.soak
def test_ranges_whose_topic_is_gone_are_copied_again(database: Database, make: Any) -> None:
    database.execute("create table t (id int primary key, a text)", FILL)
    captured = make()
    _interrupt(captured, 3)
    topic = captured.config.as_pipeline().topics()[T]
    admin = AdminClient(dict(captured.client))  # it must live until the answer is there
    admin.delete_topics([topic], operation_timeout=30)[topic].result(300)
    until(lambda: topic not in TopicAdmin(captured.client).partition_counts([topic]))
    captured.start()
    assert _points(captured).keys() == set(range(1, ROWS + 1))
    captured.assert_equal()
