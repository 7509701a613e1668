"""sinks.warehouse.settings"""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.model.table import TableName
from sinks.registry import definition, with_definition
from sinks.warehouse.settings import WarehouseSettings
from tests.builders import table

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def settings(**values: Any) -> WarehouseSettings:
    return WarehouseSettings.model_validate({"url": "postgresql://h/d", **values})


@pytest.mark.parametrize(
    ("history", "kept", "keeps"),
    [(False, (), False), (True, (ORDERS, ITEMS), True), (("public.items",), (ITEMS,), True), ((), (), False)],
)
def test_histories_are_kept_of_none_or_all_or_some(history: Any, kept: tuple[TableName, ...], keeps: bool) -> None:
    chosen = settings(history=history)
    assert tuple(name for name in (ORDERS, ITEMS) if chosen.warehouse_names.has_history(name)) == kept
    assert chosen.keeps_history is keeps


def test_all_problems_of_names_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as raised:
        settings(names={"public.orders": "", "public.items": "x" * 64, "nothing": "y\0"}, history=["whatever"])
    message = str(raised.value)
    for problem in ("public.orders has an empty name", "longer than 63 bytes", "NUL", "not a table name: 'whatever'"):
        assert problem in message


def test_two_things_of_one_name_are_reported() -> None:
    with pytest.raises(ValidationError) as raised:
        settings(
            tables=["public.orders", "public.items", "public.items_history"],
            names={"public.orders": "items"},
            history=["public.items"],
        )
    message = str(raised.value)
    assert "table public.items and table public.orders would both have the name 'items'" in message
    assert (
        "the history of public.items and table public.items_history would both have the name 'items_history'" in message
    )


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("duckdb:////var/lib/dwh.duckdb", "/var/lib/dwh.duckdb"),
        ("duckdb:////var/lib/d%20w.db?memory_limit=4GB", "/var/lib/d w.db"),
    ],
)
def test_a_file_is_known_by_its_address(url: str, file: str) -> None:
    assert (settings(url=url).is_file, str(settings(url=url).file)) == (True, file)
    assert not settings().is_file


@pytest.mark.parametrize(
    "url", ["duckdb:///:memory:", "duckdb://", "duckdb:///dwh.duckdb", "duckdb:////directory/", "duckdb:///md:dwh"]
)
def test_what_is_no_file_on_this_machine_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="the absolute path of a file"):
        settings(url=url)


def test_a_file_has_no_login_and_nothing_else_of_a_server() -> None:
    with pytest.raises(ValidationError, match="a DuckDB file has no login, tls: remove them"):
        settings(url="duckdb:////d/f", login={"user": "u"}, tls={})
    chosen = settings(url="duckdb:////d/f", names={"public.orders": "o"})
    assert with_definition(chosen, definition(chosen)) == chosen


def test_to_purge_it_has_to_be_known_since_when_a_row_is_deleted() -> None:
    unknown = settings(purge_deleted_after_days=0.5)
    (told,) = unknown.problems_with([table()])
    assert "set synced_at = true" in told
    assert unknown.problems_at_work([table()]) == [told]
    known = settings(purge_deleted_after_days=0.5, synced_at=True)
    assert known.problems_with([table()]) == known.problems_at_work([table()]) == []
    file = settings(url="duckdb:////tmp/dwh.duckdb", purge_deleted_after_days=1)
    assert file.problems_at_work([table()]) == [told]


def test_a_file_has_plain_indexes() -> None:
    def chosen(**index: object) -> WarehouseSettings:
        declared = {"columns": ["note"]} | index
        return settings(url="duckdb:////tmp/dwh.duckdb", indexes={"public.orders": [declared]})

    assert chosen().problems_at_work([table()]) == []
    with pytest.raises(ValidationError, match=r"indexes of public\.orders: where: DuckDB has no indexes of some rows"):
        chosen(where="id > 1")
    with pytest.raises(ValidationError, match=r"indexes of public\.orders: method: DuckDB has one kind"):
        chosen(method="gin")
    with pytest.raises(ValidationError, match=r"expression: a value that it fails for would stop a batch"):
        chosen(columns=(), expression="lower(note)")
