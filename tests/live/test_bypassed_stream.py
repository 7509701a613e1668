"""Changes that the stream shows in part or not at all: tables that join or leave, partitions, filters, publications."""

import threading
from functools import partial

import psycopg
import pytest

from snapshot import in_stream
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.threads import beside

pytestmark = pytest.mark.live


_PARTITIONED = (
    "create table m (id int, day date, a text, primary key (id, day)) partition by range (day)",
    "create table m_1 partition of m for values from ('2026-01-01') to ('2026-02-01')",
    # Other columns at other places, as attached partitions have them.
    "create table m_2 (a text, gone int, day date not null, id int not null, primary key (id, day))",
    "alter table m_2 drop gone",
    "alter table m attach partition m_2 for values from ('2026-02-01') to ('2026-03-01')",
    "create table m_default partition of m default",
    "insert into m select n, date '2026-01-01' + n, 'r' || n from generate_series(1, 100) n",
)


@pytest.mark.parametrize("attached_first", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_partition_that_comes_with_a_column_has_the_whole_table_copied(
    database: Database, capture: StartCapture, attached_first: bool
) -> None:
    """A copy of only the partition would leave the other rows without the new column's value."""
    database.execute(*_PARTITIONED)
    captured = capture("public.m")
    statements = [
        "create table more (like m including all)",
        "alter table m attach partition more for values from ('2026-05-01') to ('2026-06-01')",
        "insert into more values (70, '2026-05-05', 'attached')",
    ]
    column = "alter table m add came float8 default random()"
    captured.stop()
    database.execute(*([*statements, column] if attached_first else [column, *statements]))
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_a_copy_begins_though_some_transaction_always_writes(
    database: Database, capture: StartCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deferrable key needs a slot, which is made when the present writers' transactions have ended. The stream stops
    for it a little longer each time."""
    monkeypatch.setattr(in_stream, "SLOT_PATIENCE_S", 0.05)
    database.execute("create table busy (id serial)", "create table a (id int primary key)")
    captured = capture("public.a", publication="table a")
    database.execute(
        "create table b (id int primary key deferrable)",
        "insert into b values (1)",
        "alter publication p add table b",
    )
    captured.settle()
    captured.stop()
    captured.configure(tables=("public.a", "public.b"))

    def write(number: int, over: threading.Event) -> None:
        over.wait(0.25 * number)
        with psycopg.connect(database.dsn) as connection:
            while not over.is_set():
                connection.execute("insert into busy default values")
                over.wait(0.7)
                connection.commit()

    with beside(*(partial(write, number) for number in range(3))):
        captured.start()
        captured.wait_for("a copy waits for writing transactions to end: process")
        captured.wait_for("copying public.b")
    captured.assert_equal()


@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_table_that_left_the_publication_is_copied_again_when_it_is_back(
    database: Database, capture: StartCapture, restarted: bool
) -> None:
    database.execute("create table t (id int primary key, a text)", "create table u (id int primary key, a text)")
    database.execute("insert into t select n, 'x' from generate_series(1, 20) n", "insert into u select * from t")
    captured = capture("public.t", "public.u")
    publication = captured.config.publication
    database.execute(f"alter publication {publication} drop table t")
    captured.wait_for("not in publication")
    database.execute(
        "delete from t where id = 1", "update t set a = 'unseen' where id = 2", "insert into u values (77, 'y')"
    )
    captured.settle()
    if restarted:
        captured.stop()
        captured.start()
    database.execute("insert into t values (30, 'unseen')", f"alter publication {publication} add table t")
    captured.wait_quiet()
    database.execute("update t set a = 'seen' where id = 3")
    captured.assert_equal()


def _filtered_rows(captured: Captured) -> dict[bytes, dict[str, object]]:
    captured.settle()
    return captured.rows("public.t")


def test_a_row_filter_holds_for_copy_and_stream(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create table t (id int primary key, a int)",
        "alter table t replica identity full",
        "insert into t select n, n from generate_series(1, 10) n",
    )
    captured = capture("public.t", publication="table t where (a > 5)")
    database.execute(
        "update t set a = 1 where id = 6",  # leaves
        "update t set a = 60 where id = 2",  # comes
        "update t set a = 70 where id = 7",  # stays
        "delete from t where id = 3",  # never seen
        "delete from t where id = 8",
        "insert into t values (20, 20), (21, 0)",
    )
    ids = sorted(row["id"] for row in _filtered_rows(captured).values())
    assert ids == [2, 7, 9, 10, 20]
    database.execute("alter publication p set table t where (a > 9)")
    captured.wait_quiet()
    assert sorted(row["id"] for row in _filtered_rows(captured).values()) == [2, 7, 10, 20]


def test_a_row_that_comes_by_an_update_without_its_large_value_is_copied(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create table t (id int primary key, large text)",
        "alter table t alter large set storage external",
        "insert into t select n, repeat('x' || n, 3000) from generate_series(1, 10) n",
    )
    captured = capture("public.t", publication="table t where (id > 5)")
    database.execute("update t set id = 20 where id = 1", "insert into t values (21, 'y')")
    captured.wait_quiet()
    rows = {row["id"]: row["large"] for row in _filtered_rows(captured).values()}
    assert sorted(rows) == [6, 7, 8, 9, 10, 20, 21]
    assert rows[20] == "x1" * 3000


def test_a_column_list_holds_for_copy_and_stream(database: Database, capture: StartCapture) -> None:
    database.execute(
        'create table t (id int primary key, secret text, "B\'" int)',
        "insert into t values (1, 'hidden', 5)",
    )
    captured = capture("public.t", publication='table t (id, "B\'")')
    database.execute("insert into t values (2, 'hidden', 6)", "update t set secret = 'still hidden' where id = 1")
    captured.assert_equal()
    assert all(b"hidden" not in (event.value or b"") for event in captured.events("public.t"))
    assert [event.op for event in captured.events("public.t") if event.key == b'{"id":1}'] == ["r", "u"]
    database.execute("alter publication p set table t (id, secret)")
    captured.wait_quiet()
    captured.assert_equal()


def test_generated_columns_come_once_their_publication_has_them(database: Database, capture: StartCapture) -> None:
    database.execute("create table t (id int primary key, a int, b int generated always as (a * 2) stored)")
    database.execute("insert into t values (1, 1)")
    captured = capture("public.t", publication="table t")
    captured.assert_equal()
    assert [row.get("b") for row in captured.rows("public.t").values()] == [None]
    database.execute("alter publication p set (publish_generated_columns = stored)", "insert into t values (2, 2)")
    captured.wait_quiet()
    captured.assert_equal()
    assert {row["b"] for row in captured.rows("public.t").values()} == {2, 4}


@pytest.mark.soak
def test_origin_none_leaves_out_what_was_replicated_here(database: Database, capture: StartCapture) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.t", source="origin = 'none'")
    origin = f"origin_{database.name}"
    database.execute(f"select pg_replication_origin_create('{origin}')")
    try:
        database.execute(
            "insert into t values (1)",
            f"select pg_replication_origin_session_setup('{origin}')",
            "insert into t values (2)",
            "select pg_replication_origin_session_reset()",
            "insert into t values (3)",
        )
        captured.settle()
        assert set(captured.rows("public.t")) == {b'{"id":1}', b'{"id":3}'}
    finally:
        database.execute(f"select pg_replication_origin_drop('{origin}')")
