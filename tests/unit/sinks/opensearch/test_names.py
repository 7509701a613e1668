"""sinks.opensearch.names"""

from itertools import combinations

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.opensearch.names import alias_name, fence_of, name_problems, own_indexes, writer_alias


def test_different_tables_have_different_indexes_and_no_index_looks_like_another_ones_generation() -> None:
    parts = ["orders", "Orders", "orders_g1", "orders_g1_w", "a.b", "a", "b", "ü", "~4f", "a b", "_", "-", "*"]
    names = [alias_name("shop", TableName(schema_name, other)) for schema_name in parts for other in parts]
    indexes = [index for name in names for index in (name, f"{name}_g1", f"{name}_g1_W")]
    assert all(first != other for first, other in combinations(indexes, 2))
    assert all(not set(index) & set('\\/*?"<>| ,#:') for index in indexes)
    assert all(name == name.lower() for name in names)


def test_a_name_that_is_too_long_is_an_error() -> None:
    with pytest.raises(LockstepError, match="longer than OpenSearch allows"):
        alias_name("shop", TableName("Ü" * 31, "Ü" * 31))
    longest = TableName("views", "v" * (255 - len("shop.views._g0000000000_W")))
    assert alias_name("shop", longest).endswith("v")
    with pytest.raises(LockstepError, match="longer than OpenSearch allows"):
        alias_name("shop", longest, is_fenced=True)


def test_a_table_has_the_name_that_was_chosen() -> None:
    orders = TableName("public", "orders")
    assert alias_name("shop", orders, {orders: "all-orders"}) == "shop.all-orders"
    assert alias_name("shop", TableName("public", "items"), {orders: "all-orders"}) == "shop.public.items"


def test_all_names_that_cannot_be_are_reported() -> None:
    names = {
        "a.a": "x",
        "a.b": "x",
        "a.c": "X",
        "a.d": "orders_g1",
        "a.e": "lockstep_bookkeeping",
        "a.f": "a.b",
        "a.g": "ok_1",
    }
    problems = name_problems(names)
    assert [problem.split()[0] for problem in problems] == [
        "a.a",
        "'X'",
        "'orders_g1'",
        "'lockstep_bookkeeping'",
        "'a.b'",
    ]
    assert problems[0] == "a.a and a.b both have the name 'x'"


def test_indexes_of_ours_have_a_generation_and_a_writing_alias() -> None:
    aliases = {
        "s.orders_g1": ["s.orders_g1_W", "s.orders"],
        "s.orders_g2": ["s.orders_g2_W"],
        "s.orders_g3": ["s.orders"],
        "s.x": ["s.x_W"],
    }
    facts = [(index.name, index.alias, index.generation, index.is_live) for index in own_indexes(aliases)]
    assert facts == [("s.orders_g1", "s.orders", 1, True), ("s.orders_g2", "s.orders", 2, False)]


def test_a_writer_with_a_fence_has_an_alias_of_its_own() -> None:
    assert [writer_alias("s.orders_g1", fence) for fence in (0, 7)] == ["s.orders_g1_W", "s.orders_g1_W7"]
    aliases = ["s.orders_g1_W", "s.orders_g1_W7", "s.orders_g1_W7a", "s.orders", "s.orders_g11_W8"]
    assert [fence_of("s.orders_g1", alias) for alias in aliases] == [0, 7, 0, 0, 0]
