"""Tables change shape while they are captured: the run goes on, and a new reader gets the source's rows."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.captured import StartCapture
from tests.databases import Database

pytestmark = pytest.mark.live

SETUP = (
    "create type mood as enum ('calm', 'angry')",
    "create table t (id int primary key, a text, b int, c varchar(10))",
    "insert into t select n, 'a' || n, n * 10, 'c' || n from generate_series(1, 5) n",
)


# Run in the middle, one transaction per string. Rows are written before and after as well.
# tests/conformance/cases/schema_changes.py has more, without a restart of capture.
CHANGES = {
    "add with a default of text": ("alter table t add d text default 'it''s \"7\", {x}'",),
    "add with a default of an array": ("alter table t add d int[] default '{1,2}'",),
    "add with the time as default": ("alter table t add d timestamptz default now()",),
    "add with a volatile default": ("alter table t add d float8 default random()",),
    "add a generated column": ("alter table t add d int generated always as (b * 2) stored",),
    "drop and add the same with a default": ("alter table t drop c, add c varchar(10) default 'new'",),
    "swap two names": (
        "begin; alter table t rename a to x; alter table t rename c to a; alter table t rename x to c; commit",
    ),
    "change a type": ("alter table t alter b type numeric(12,2)",),
    "rewrite without another type": ("alter table t alter a type text using upper(a)",),
    "a wider key": ("alter table t drop constraint t_pkey, add primary key (id, b)",),
    "replica identity full": ("alter table t replica identity full",),
    "replica identity by index": (
        "create unique index t_index on t (id) include (b)",
        "alter table t replica identity using index t_index",
    ),
    "rolled back": ("begin; alter table t add d int; update t set a = 'never'; rollback",),
    "recreated": (
        "begin; drop table t; create table t (a text, id int primary key, b int, other date);"
        " insert into t (id, a) values (3, 'again'), (77, 'new'); alter publication {publication} add table t; commit",
    ),
    "in a savepoint that is rolled back": (
        "begin; insert into t (id, a, b) values (21, 'p', 1); savepoint s; alter table t add d int default 5;"
        " insert into t (id, a, b) values (22, 'q', 2); rollback to s; insert into t (id, a, b) values (23, 'r', 3);"
        " commit",
    ),
}  # fmt: skip


# Others show the same, except what a type or an order adds.
SELDOM = {
    "add with a volatile default",
    "rewrite without another type",
    "in a savepoint that is rolled back",
    "add with a default of text",
    "add with a default of an array",
    "add with the time as default",
    "drop and add the same with a default",
    "change a type",
    "replica identity full",
    "rolled back",
    "a wider key",
    "replica identity by index",
    "both in one transaction",
    "and no row before another replica identity",
}


def _at_each_change(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.soak) if name in SELDOM else name for name in names]


@pytest.mark.parametrize("name", _at_each_change(CHANGES))
def test_a_change_of_the_shape_is_followed(database: Database, capture: StartCapture, name: str) -> None:
    database.execute(*SETUP)
    captured = capture("public.t")
    database.execute("insert into t values (11, 'before', 1, 'x')", "update t set a = 'changed' where id = 1")
    captured.settle()
    database.execute(*(text.replace("{publication}", captured.config.publication) for text in CHANGES[name]))
    database.execute("update t set id = id + 1000 where id = 2", "delete from t where id = 4", "update t set b = b")
    captured.wait_quiet()
    captured.assert_equal()
    captured.stop()
    captured.start()
    captured.assert_equal()


# Older rows aren't written again, so only the recorded shapes say what they have in an added column.
ADDED = {
    "then another replica identity": (
        "alter table t add d int default 7",
        "insert into t (id) values (11)",
        "alter table t replica identity full",
        "insert into t (id) values (12)",
    ),
    "both in one transaction": (
        "begin; alter table t add d int default 7; insert into t (id) values (11); alter table t replica identity full;"
        " insert into t (id) values (12); commit",
    ),
    "then an earlier shape again": (
        "alter table t add d int default 7",
        "insert into t (id) values (11)",
        "alter table t add e int",
        "insert into t (id) values (12)",
        "alter table t drop e",
        "insert into t (id) values (13)",
    ),
    "and no row before another replica identity": (
        "alter table t add d int default 7",
        "alter table t replica identity full",
        "insert into t (id) values (12)",
    ),
}


@pytest.mark.parametrize("name", _at_each_change(ADDED))
def test_the_default_of_an_added_column_is_kept(database: Database, capture: StartCapture, name: str) -> None:
    database.execute(*SETUP)
    captured = capture("public.t")
    for statement in ADDED[name]:
        database.execute(statement)
        captured.settle()
    captured.wait_quiet()
    assert {row["d"] for row in captured.rows("public.t").values()} == {7}
    captured.stop()
    captured.start()
    captured.assert_equal()


@pytest.mark.soak
def test_a_default_with_commas_is_kept_whole(database: Database, capture: StartCapture) -> None:
    """In an array, boxes are separated by semicolons, so their own commas aren't quoted."""
    database.execute(*SETUP)
    captured = capture("public.t")
    database.execute("alter table t add d box default '(1,1),(0,0)'", "insert into t values (11, 'after')")
    captured.wait_quiet()
    assert {row["d"] for row in captured.rows("public.t").values()} == {"(1,1),(0,0)"}


@pytest.mark.parametrize("name", ["renamed", "s.t"])
def test_a_table_that_is_renamed_or_moved_keeps_its_topic(database: Database, capture: StartCapture, name: str) -> None:
    database.execute(*SETUP, "create schema s")
    captured = capture("public.t")
    database.execute(
        "begin; insert into t values (11, 'before'); alter table t rename to renamed;"
        " insert into renamed values (12, 'x'); commit"
        if name == "renamed"
        else "begin; insert into t values (11, 'before'); alter table t set schema s;"
        " insert into s.t values (12, 'x'); commit"
    )
    database.execute(f"update {name} set a = 'after' where id = 3", f"alter table {name} add d int default 5")
    captured.wait_for("is named")
    captured.settle()
    captured.stop()
    captured.start()
    database.execute(f"insert into {name} values (13, 'y')", f"delete from {name} where id = 4")
    captured.settle()
    rows = captured.rows("public.t")
    expected = captured.source_rows(name if "." in name else f"public.{name}")
    assert rows == expected
    back = "alter table renamed rename to t" if name == "renamed" else "alter table s.t set schema public"
    database.execute(back, "insert into t values (14, 'z')")
    captured.wait_quiet()
    captured.assert_equal()
