"""sinks.warehouse.settings"""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.model.table import TableName
from sinks.registry import definition, with_definition
from sinks.warehouse.settings import WarehouseSettings

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def settings(**values: Any) -> WarehouseSettings:
    return WarehouseSettings.model_validate({"url": "postgresql://h/d", **values})


def test_the_schema_is_called_schema_in_the_file() -> None:
    assert settings(schema="dwh").schema_name == "dwh"


def test_names_are_those_that_were_chosen_and_else_those_by_default() -> None:
    called = settings(names={"public.orders": "Bestellungen"}).called
    assert (called.of(ORDERS), called.of(ITEMS)) == ("Bestellungen", "items")


@pytest.mark.parametrize(
    ("history", "kept", "keeps"),
    [(False, (), False), (True, (ORDERS, ITEMS), True), (("public.items",), (ITEMS,), True), ((), (), False)],
)
def test_histories_are_kept_of_none_or_all_or_some(history: Any, kept: tuple[TableName, ...], keeps: bool) -> None:
    chosen = settings(history=history)
    assert tuple(name for name in (ORDERS, ITEMS) if chosen.called.has_history(name)) == kept
    assert chosen.keeps_history is keeps


def test_all_problems_of_names_are_told_at_once() -> None:
    with pytest.raises(ValidationError) as raised:
        settings(names={"public.orders": "", "public.items": "x" * 64, "nothing": "y\0"}, history=["whatever"])
    told = str(raised.value)
    for problem in ("public.orders has an empty name", "longer than 63 bytes", "NUL", "not a table name: 'whatever'"):
        assert problem in told


def test_names_of_what_this_sink_does_not_have_are_told_at_once() -> None:
    with pytest.raises(ValidationError) as raised:
        settings(tables=["public.orders"], names={"public.items": "things"}, history=["public.items"])
    told = str(raised.value)
    assert "names has tables that aren't among tables: public.items" in told
    assert "history has tables that aren't among tables: public.items" in told


def test_two_things_of_one_name_are_told_of() -> None:
    with pytest.raises(ValidationError) as raised:
        settings(
            tables=["public.orders", "public.items", "public.items_history"],
            names={"public.orders": "items"},
            history=["public.items"],
        )
    told = str(raised.value)
    assert "table public.items and table public.orders would both be called 'items'" in told
    assert "the history of public.items and table public.items_history would both be called 'items_history'" in told


def test_what_shapes_a_generation_comes_back_from_its_definition() -> None:
    shaping = {"names": {"public.orders": "bestellungen"}, "history": ["public.orders"]}
    built = settings(**shaping)
    assert with_definition(settings(), definition(built)) == built
    assert with_definition(settings(**shaping), {}) == settings()
