"""sinks.wrappers.projection"""

import pytest

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.wrappers.projection import Projection, parse_column
from tests.builders import ORDERS, column, delete, table, upsert

CUSTOMERS = table(
    column("id", "int8"), column("email"), column("note"), column("tenant"),
    name=TableName("public", "customers"), key=("tenant", "id"),
)  # fmt: skip
ROW = {"id": 1, "email": "a@b", "note": "n", "tenant": "t"}


@pytest.mark.parametrize("text", ["", "email", "customers.email", "a.b.c.d", "public..email", 'public.t."email'])
def test_anything_else_is_no_column(text: str) -> None:
    with pytest.raises(ValueError, match="not a column"):
        parse_column(text)


def test_other_tables_and_deletions_pass_as_they_are() -> None:
    projection = Projection.parse(["public.customers.email"])
    other, gone = upsert({"id": 1, "note": "a"}, 1), delete({"tenant": "t", "id": 1}, 1, of=CUSTOMERS)
    others, deletions = TableEvents.of(other.table, [other]), TableEvents.of(gone.table, [gone])
    assert projection.events(others) is others
    assert list(projection.events(deletions)) == [gone]
    assert projection.table(table()) == table()
    assert projection.row(ORDERS, ROW) is ROW


def test_nothing_left_out_is_false_and_changes_nothing() -> None:
    events = TableEvents.of(CUSTOMERS.name, [upsert(ROW, 1, of=CUSTOMERS)])
    assert not Projection()
    assert Projection.parse([]) == Projection()
    assert Projection().events(events) is events
    assert Projection().table(CUSTOMERS) is CUSTOMERS


def test_key_columns_cannot_be_left_out() -> None:
    projection = Projection.parse(["public.customers.tenant", "public.customers.id", "public.customers.email"])
    assert projection.key_problems([table(), CUSTOMERS]) == [
        "exclude: public.customers.tenant is part of the table's key",
        "exclude: public.customers.id is part of the table's key",
    ]


def test_columns_that_do_not_exist_are_named() -> None:
    projection = Projection.parse(['public.customers."E mail"', "public.customers.email", "public.nowhere.a"])
    assert projection.unknown_problems([table(), CUSTOMERS]) == [
        'exclude: table public.customers has no column "E mail"',
        "exclude: this sink has no table public.nowhere",
    ]
