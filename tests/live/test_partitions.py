"""Partitions that differ from their table, and those that come and go between two looks at the catalogue."""

from collections.abc import Iterable, Sequence

import pytest

from cdc.model.errors import UnsupportedChange
from migrations.source import ddl_messages_sql
from tests.captured import StartCapture
from tests.databases import Database

pytestmark = pytest.mark.live


def _while_it_runs_and_is_away(
    names: Iterable[str], *, often: Sequence[str], often_away: Sequence[str]
) -> pytest.MarkDecorator:
    """Each name with ``stopped`` False and True. Those that aren't named again are soak."""
    return pytest.mark.parametrize(
        ("name", "stopped"),
        [
            pytest.param(name, stopped, marks=() if name in chosen else pytest.mark.soak, id=f"{name}, {when}")
            for stopped, when, chosen in ((False, "while it runs", often), (True, "while it is away", often_away))
            for name in names
        ],
    )


_PARTS = (
    "create table m (id int primary key, n int, big text) partition by range (id)",
    "create table m_1 partition of m for values from (0) to (100)",
    "alter table m_1 alter big set storage external",
    "insert into m select n, 0, repeat('x' || n, 5000) from generate_series(1, 3) n",
)
_FULL = ("alter table m replica identity full", "alter table m_1 replica identity full")


# The partition's replica identity decides which old values the stream has, whatever the table's is.


def test_a_partition_with_less_of_its_old_rows_than_its_table_is_published_whole(
    database: Database, capture: StartCapture
) -> None:
    """``replica identity full`` of a partitioned table doesn't reach its partitions."""
    database.execute(*_PARTS)
    captured = capture("public.m")
    database.execute(_FULL[0], "update m set n = n + 1", "update m set id = id + 50 where id < 3", "update m set n = 9")
    captured.wait_quiet()
    captured.assert_equal()
    assert captured.copied_rows("public.m") == 3
    befores = [event.parsed["before"] for event in captured.events("public.m") if event.op in ("u", "d")]
    assert {tuple(before) for before in befores if before is not None} == {("id",)}
    captured.stop()
    captured.start()
    database.execute("update m set n = n + 1")
    captured.assert_equal()
    assert captured.copied_rows("public.m") == 3


def test_a_partition_that_comes_with_less_of_its_old_rows_is_published_whole(
    database: Database, capture: StartCapture
) -> None:
    database.execute(*_PARTS, *_FULL)
    captured = capture("public.m")
    database.execute(
        "create table m_2 partition of m for values from (100) to (200)",
        "alter table m_2 alter big set storage external",
        "insert into m select n, 0, repeat('y' || n, 5000) from generate_series(101, 103) n",
        "update m set n = 1",
        "update m set id = id + 40 where id in (1, 101)",
        "update m set n = 2",
        "delete from m where id in (2, 102)",
    )
    captured.wait_quiet()
    captured.assert_equal()
    befores = {
        event.key: tuple(event.parsed["before"] or ())
        for event in captured.events("public.m")
        if event.op in ("u", "d")
    }
    assert befores[b'{"id":2}'] == ("id", "n", "big")
    assert befores[b'{"id":102}'] == ("id",)


_BY_CODE = (
    "create table p (id int, r text not null, code text not null, v text, primary key (id, r)) partition by list (r)",
    "create table p_a partition of p for values in ('a')",
    "create table p_b partition of p for values in ('b')",
    "create unique index p_b_code on p_b (code)",
    "insert into p values (1, 'b', 'c1', 'v'), (2, 'a', 'c2', 'v')",
)
_MORE_CHANGES = ("update p set code = 'x'", "delete from p")


@pytest.mark.parametrize(
    "change", ["update p set id = 7", *(pytest.param(more, marks=pytest.mark.soak) for more in _MORE_CHANGES)]
)
def test_a_partition_whose_old_rows_lack_the_key_stops_capture_and_is_named(
    database: Database, capture: StartCapture, change: str
) -> None:
    database.execute(*_BY_CODE)
    captured = capture("public.p")
    database.execute("alter table p_b replica identity using index p_b_code", f"{change} where r = 'b'")
    error = captured.wait_error()
    assert isinstance(error, UnsupportedChange)
    assert "public.p_b doesn't deliver the key of public.p (id, r)" in error.message
    assert 'alter table "public"."p_b" replica identity full' in (error.hint or "")
    assert captured.rows("public.p").keys() == {b'{"id":1,"r":"b"}', b'{"id":2,"r":"a"}'}


def test_a_partition_whose_old_rows_will_lack_the_key_is_told_before_one_changes(
    database: Database, capture: StartCapture
) -> None:
    database.execute(*_BY_CODE)
    captured = capture("public.p")
    database.execute("alter table p_b replica identity using index p_b_code")
    captured.wait_for("partitions have another replica identity than the table: public.p_b")
    database.execute("alter table p_b replica identity default", "update p set id = 7 where r = 'b'")
    captured.assert_equal()


# Partitions that nobody looked at while they existed.

_ROWS = (
    "create table p (id int primary key, v text) partition by range (id)",
    "create table p_1 partition of p for values from (0) to (100)",
    "insert into p select n, 'x' from generate_series(1, 5) n",
)
_COMES = "create table p_2 partition of p for values from (100) to (200)"
_FILLED = "insert into p select n, 'y' from generate_series(101, 104) n"
_ATTACHED = (
    "create table p_2 (id int primary key, v text)",
    "insert into p_2 select n, 'before' from generate_series(101, 104) n",
    "alter table p attach partition p_2 for values from (100) to (200)",
    "update p set v = 'written' where id > 101",
)
_GOES = {
    "dropped": (_COMES, _FILLED, "drop table p_2"),
    "detached": (_COMES, _FILLED, "alter table p detach partition p_2"),
    "attached, written and detached": (*_ATTACHED, "alter table p detach partition p_2"),
    "in one transaction": ("; ".join(("begin", _COMES, _FILLED, "drop table p_2", "commit")),),
    "emptied": (_COMES, _FILLED, "truncate p_2"),
    "emptied and filled": (_COMES, _FILLED, "truncate p_2", "insert into p values (150, 'z')"),
    "attached and emptied": (*_ATTACHED, "delete from p_2 where id = 101", "truncate p_2"),
    "attached again": (
        _COMES,
        _FILLED,
        "alter table p detach partition p_2",
        "delete from p_2 where id < 103",
        "alter table p attach partition p_2 for values from (100) to (200)",
    ),
}


@_while_it_runs_and_is_away(_GOES, often=("dropped",), often_away=("in one transaction",))
def test_a_partition_that_comes_is_written_and_goes_leaves_no_row(
    database: Database, capture: StartCapture, name: str, stopped: bool
) -> None:
    database.execute(*_ROWS)
    captured = capture("public.p")
    if stopped:
        captured.stop()
    database.execute(*_GOES[name])
    if stopped:
        captured.start()
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_a_partition_that_goes_after_its_rows_were_published_is_known_to_the_next_process(
    database: Database, capture: StartCapture
) -> None:
    database.execute(*_ROWS)
    captured = capture("public.p")
    captured.stop()
    captured.configure(heartbeat_interval_s=600.0)
    captured.start()
    database.execute(_COMES, _FILLED)
    captured.settle()
    captured.stop()
    database.execute("drop table p_2")
    captured.configure(heartbeat_interval_s=0.15)
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


def test_an_event_trigger_has_a_partition_looked_at_when_it_comes(database: Database, capture: StartCapture) -> None:
    database.execute(*_ROWS, ddl_messages_sql())
    captured = capture("public.p")
    captured.stop()
    captured.configure(heartbeat_interval_s=600.0)
    captured.start()
    database.execute(*_GOES["in one transaction"])
    captured.wait_for("a partition came, was written and went")
    captured.wait_for("copying public.p")
    captured.assert_equal()
    database.execute("drop schema lockstep cascade")


def test_a_partition_that_is_created_needs_no_copy(database: Database, capture: StartCapture) -> None:
    database.execute(*_ROWS)
    captured = capture("public.p")
    database.execute(
        _COMES,
        _FILLED,
        "create table p_3 partition of p for values from (200) to (300) partition by range (id)",
        "create table p_31 partition of p_3 default",
        "insert into p values (205, 'z')",
    )
    captured.wait_quiet()
    captured.assert_equal()
    assert captured.copied_rows("public.p") == 5
    database.execute("truncate p_2", "drop table p_3")
    captured.wait_quiet()
    captured.assert_equal()


def test_a_partition_that_was_filled_in_the_transaction_that_attached_it_is_copied(
    database: Database, capture: StartCapture
) -> None:
    """Neither the transaction nor the file says that it wasn't created as a partition."""
    database.execute(*_ROWS)
    captured = capture("public.p")
    database.execute("; ".join(("begin", *_ATTACHED[:3], "commit")))
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_an_append_only_table_has_each_row_of_a_new_partition_once(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create table log (day int, v text) partition by range (day)",
        "create table log_1 partition of log for values from (0) to (100)",
        "insert into log select n, 'x' from generate_series(1, 5) n",
    )
    captured = capture("public.log", source="[source.options.'public.log']\nappend_only = true")
    database.execute(
        "create table log_2 partition of log for values from (100) to (200)",
        "insert into log select n, 'y' from generate_series(101, 104) n",
    )
    captured.wait_quiet()
    database.execute("create table log_4 (day int, v text)")  # as by people who create partitions in advance
    database.execute("alter table log attach partition log_4 for values from (300) to (400)")
    captured.wait_quiet()
    assert [event.op for event in captured.events("public.log")] == ["r"] * 5 + ["c"] * 4
    database.execute(
        "create table log_3 (day int, v text)",
        "insert into log_3 select n, 'before' from generate_series(201, 204) n",
        "alter table log attach partition log_3 for values from (200) to (300)",
        "insert into log values (205, 'after')",
    )
    captured.wait_quiet()
    events = captured.events("public.log")
    last = max(place for place, event in enumerate(events) if event.op == "t")
    days = sorted(event.after["day"] for event in events[last + 1 :])
    assert days == [1, 2, 3, 4, 5, 101, 102, 103, 104, 201, 202, 203, 204, 205]


@pytest.mark.soak
def test_a_partition_that_is_unlogged_is_told_and_copied_when_it_is_logged(
    database: Database, capture: StartCapture
) -> None:
    database.execute(*_ROWS)
    captured = capture("public.p")
    database.execute(
        "create unlogged table p_2 (id int primary key, v text)",
        "alter table p attach partition p_2 for values from (100) to (200)",
        _FILLED,
    )
    captured.wait_for("public.p has unlogged partitions: public.p_2")
    captured.wait_quiet()
    database.execute("delete from p where id < 103", "alter table p_2 set logged")
    captured.wait_for("rows may have changed without an event: it had been so that it has unlogged partitions")
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_a_partition_that_is_a_foreign_table_is_told(database: Database, capture: StartCapture) -> None:
    database.execute("create table p (id int, v text) partition by range (id)", "alter table p replica identity full")
    captured = capture("public.p", source="[source.options.'public.p']\nappend_only = true")
    database.execute(
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table p_2 partition of p for values from (100) to (200) server s",
    )
    captured.wait_for("public.p has foreign tables as partitions: public.p_2")


@pytest.mark.soak
def test_a_configured_key_that_is_not_unique_for_a_while_is_told_and_copied(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create table t (id int primary key, code int not null)",
        "create unique index t_code on t (code)",
        "alter table t replica identity full",
        "insert into t values (1, 10), (2, 20)",
    )
    captured = capture("public.t", source="[source.options.'public.t']\nkey = ['code']")
    database.execute("drop index t_code", "insert into t values (3, 10)", "delete from t where id = 3")
    captured.wait_for("public.t no unique index covers exactly the configured key code")
    database.execute("create unique index t_code on t (code)")
    captured.wait_for("copying public.t")
    captured.assert_equal()
    captured.stop()
    database.execute("drop index t_code", "insert into t values (3, 10)", "delete from t where id = 3")
    database.execute("create unique index t_code on t (code)")
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


# Columns that come, and files that move.

_DROPPED = (
    "alter table {0} add column region text default 'eu' not null",
    "alter table {0} alter column region drop default",
)
_ADDED = {
    "its default is dropped": (*_DROPPED,),
    "it has a default": ("alter table {0} add column region text default 'eu'",),
    "it has no value": ("alter table {0} add column region text",),
    "its default comes later": (
        "alter table {0} add column region text",
        "alter table {0} alter column region set default 'eu'",
    ),
}


@_while_it_runs_and_is_away(_ADDED, often=("its default is dropped",), often_away=("it has a default",))
def test_a_column_that_comes_to_a_partitioned_table_has_its_value_without_a_copy(
    database: Database, capture: StartCapture, name: str, stopped: bool
) -> None:
    database.execute(*_ROWS)
    captured = capture("public.p")
    if stopped:
        captured.stop()
    statements = (statement.format("p") for statement in _ADDED[name])
    database.execute(f"begin; {'; '.join(statements)}; commit", "insert into p values (6, 'z', 'us')")
    if stopped:
        captured.start()
    captured.wait_quiet()
    captured.assert_equal()
    assert captured.copied_rows("public.p") == 5


_REWRITTEN = {
    "vacuum full": ("alter table t add n text", *_DROPPED, "vacuum full t"),
    "cluster": (*_DROPPED, "cluster t using t_pkey"),
    "an expression that is dropped": (
        "alter table t add region text generated always as (v || '!') stored",
        "alter table t alter column region drop expression",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "vacuum full" else pytest.mark.soak) for name in _REWRITTEN]
)
def test_a_column_whose_value_the_catalogue_has_forgotten_has_the_table_copied(
    database: Database, capture: StartCapture, name: str
) -> None:
    database.execute("create table t (id int primary key, v text)", "insert into t values (1, 'x')")
    captured = capture("public.t")
    captured.stop()
    database.execute(*(statement.format("t") for statement in _REWRITTEN[name]))
    database.execute("insert into t (id, v, region) values (2, 'y', 'us')")
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()


@pytest.mark.soak
def test_a_generated_column_that_was_not_sent_is_copied_when_its_expression_is_dropped(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create table t (id int primary key, v text, region text generated always as (v || '!') stored)",
        "insert into t values (1, 'x')",
    )
    captured = capture("public.t")
    database.execute("alter table t alter column region drop expression", "insert into t values (2, 'y', 'us')")
    captured.wait_quiet()
    captured.assert_equal()
