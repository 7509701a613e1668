"""The result of a query as the table that a sink is prepared for."""

import pytest

from cdc.model.table import TableName
from tests.view_queries import column, shape
from views.result import result_table
from views.sql.reader import read_view

ORDERS = shape(
    "orders", ["id"], column("id", "int8"), column("total", "numeric(10,2)", "numeric", 1700), column("city", "text"),
    column("mood", "mood", "text", 90000), column("doc", "jsonb", "jsonb", 3802), column("tags", "text"),
)  # fmt: skip
TABLES = {ORDERS.name: ORDERS}
NAME = TableName("views", "v")


def described(sql: str, *key: str) -> dict[str, tuple[str, str, bool, int]]:
    table = result_table(read_view(sql, TABLES, key=key), TABLES, NAME)
    assert (table.name, table.key) == (NAME, key)
    return {
        column.name: (column.type_name, column.value_type, column.is_array, column.type_oid) for column in table.columns
    }


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("count(*)", ("int8", "int8", False, 20)),
        ("sum(total)", ("numeric", "numeric", False, 1700)),
        ("max(total)", ("numeric(10,2)", "numeric", False, 1700)),
        ("max(total) + 1", ("numeric", "numeric", False, 1700)),
        ("array_agg(id order by id)", ("int8", "int8", True, 1016)),
        ("jsonb_agg(id order by id)", ("jsonb", "jsonb", False, 3802)),
        ("bool_or(id > 1)", ("bool", "bool", False, 16)),
        ("string_agg(city, ',' order by city collate \"C\", id)", ("text", "text", False, 25)),
    ],
)
def test_what_the_query_computes_has_the_type_that_postgresql_gives_it(
    made: str, expected: tuple[str, str, bool, int]
) -> None:
    assert described(f"select city, {made} as x from orders group by city having city is not null", "city")["x"] == (
        expected
    )


def test_the_branches_of_a_union_keep_a_type_that_all_have() -> None:
    columns = described(
        "select 1 as part, id, total, total as other from orders union all"
        " select 2 as part, id, total, total * 2 as other from orders",
        "part", "id",
    )  # fmt: skip
    assert columns["total"][0] == "numeric(10,2)"
    assert columns["other"][0] == "numeric"
