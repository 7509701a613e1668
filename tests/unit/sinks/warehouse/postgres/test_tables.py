"""sinks.warehouse.postgres.tables: types, DDL and lines of COPY"""

import pytest

from cdc.model.append_only import stored_table
from cdc.model.errors import LockstepError
from cdc.model.event import TableEvents
from cdc.model.table import Column
from sinks.columns.shape import Shape
from sinks.warehouse.postgres.tables import Rows, UnknownColumn, check_table, column_type, create_table_sql
from sinks.warehouse.stored_table import StoredTable
from tests.builders import column, delete, table, tag, upsert


@pytest.mark.parametrize(
    ("of", "sql"),
    [
        (column("c", "int8"), "int8"),
        (column("c", "numeric", type_name="numeric(10,2)"), "numeric"),
        (column("c", "text", type_name="order_status"), "text"),
        (column("c", "varchar", type_name="character varying(5)"), "text"),
        (column("c", "char"), "text"),
        (column("c", "bit"), "varbit"),
        (column("c", "money"), "text"),
        (column("c", "int4", is_array=True), "int4[]"),
        (column("c", "box", is_array=True), "text[]"),
    ],
)
def test_column_type(of: Column, sql: str) -> None:
    assert column_type(of) == sql


def test_create_table() -> None:
    of = table(column("id", "int8"), column('odd "name"'), key=("id",))
    assert create_table_sql('"shop_g1"."orders"', StoredTable(Shape.of(of), "orders")) == (
        'create table if not exists "shop_g1"."orders" (\n'
        '  "id" int8,\n'
        '  "odd ""name""" text,\n'
        '  "_tag" char(28) collate "C" not null,\n'
        '  "_deleted" boolean not null,\n'
        '  primary key ("id")\n'
        ")"
    )


@pytest.mark.parametrize("name", ["_tag", "_deleted"])
def test_a_column_with_a_name_of_ours_is_refused(name: str) -> None:
    with pytest.raises(LockstepError, match=name):
        check_table(StoredTable(Shape.of(table(column("id"), column(name))), "orders"))


def test_a_table_with_too_many_columns_for_ours_is_refused() -> None:
    shape = Shape.of(table(*(column(f"c{number}") for number in range(1_598)), key=("c0",)))
    check_table(StoredTable(shape, "orders"))
    for held in (StoredTable(shape, "orders", has_history=True), StoredTable(shape, "orders", has_synced_at=True)):
        with pytest.raises(LockstepError, match=r"has 1,598 columns, .* room for 1,597 beside"):
            check_table(held)


def test_lines_have_null_where_a_row_has_nothing() -> None:
    events = [upsert({"id": 1, "note": "a\tb"}, 1), upsert({"id": 2}, 1), delete({"id": 3}, 2)]
    blocks = Rows(Shape.of(table())).blocks(TableEvents.of(table().name, events))
    lines = [f"1\ta\\tb\t{tag(1)}\tf\n", f"2\t\\N\t{tag(1)}\tf\n", f"3\t\\N\t{tag(2)}\tt\n"]
    assert b"".join(blocks).decode() == "".join(lines)


def test_a_column_that_the_table_lacks_is_reported() -> None:
    events = TableEvents.of(table().name, [upsert({"id": 1, "other": "a"}, 1)])
    with pytest.raises(UnknownColumn) as raised:
        list(Rows(Shape.of(table())).blocks(events))
    assert raised.value.column == "other"


def test_an_append_only_table_has_an_index_of_what_emptied_it() -> None:
    log = stored_table(table(column("note"), key=()))
    assert create_table_sql("s", StoredTable(Shape.of(log), "log")).splitlines()[-2:] == [
        ");",
        'create index on s ("_tag") where "_operation" = \'truncate\'',
    ]
