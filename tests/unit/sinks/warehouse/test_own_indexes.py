"""sinks.warehouse.own_indexes: what may be declared, and its DDL; what a server makes of it is in tests/contract"""

from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from cdc.model.table import TableName
from sinks.warehouse.own_indexes import OwnIndex
from sinks.warehouse.settings import WarehouseSettings
from tests.builders import column, table


def _settings(indexes: Any, url: str = "postgresql://me@host/dwh", **more: Any) -> WarehouseSettings:
    return WarehouseSettings(url=SecretStr(url), indexes=indexes, **more)


def test_ddl_of_columns_and_of_an_expression() -> None:
    of_columns = OwnIndex(columns=("customer", 'odd "name"'), where="state = 'open'")
    name = of_columns.name("orders")
    assert name.startswith("lockstep_index_")
    assert name.endswith("_orders")
    assert of_columns.sql("orders", '"g1"."orders"') == (
        f'create index if not exists "{name}" on "g1"."orders" using btree ("customer", "odd ""name""") '
        "where state = 'open'"
    )
    of_expression = OwnIndex(expression="doc jsonb_path_ops", method="gin")
    assert of_expression.sql("orders", "t").endswith(" on t using gin (doc jsonb_path_ops)")


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({}, "columns or an expression"),
        ({"columns": ["a"], "expression": "lower(a)"}, "columns or an expression"),
        ({"columns": [""]}, "at least 1 character"),
        ({"columns": ["a"], "method": "btree; drop"}, "match pattern"),
        ({"column": "a"}, "column"),
    ],
)
def test_what_is_no_index_is_refused(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        _settings({"public.orders": [declared]})


def test_indexes_are_of_tables_of_the_sink_and_of_their_columns() -> None:
    with pytest.raises(ValidationError, match=r"indexes has tables that aren't among tables: public\.other"):
        _settings({"public.other": [{"columns": ["a"]}]}, tables=["public.orders"])
    with pytest.raises(ValidationError, match="orders"):
        _settings({"orders": [{"columns": ["a"]}]})
    settings = _settings({"public.orders": [{"columns": ["id", "nota"]}], "public.lost": [{"columns": ["a"]}]})
    told = ["indexes: this sink has no table public.lost", "indexes: public.orders has no column 'nota'"]
    assert settings.problems_at_work([table()]) == told
    assert settings.problems_with([table()]) == told
    lost = table(column("a"), name=TableName("public", "lost"), key=("a",))
    mended = _settings({"public.orders": [{"columns": ["note"]}], "public.lost": [{"columns": ["a"]}]})
    assert mended.problems_with([table(), lost]) == []


def test_arrays_have_no_index_in_a_duckdb_file() -> None:
    grid = table(column("id", "int8"), column("grid", "int4", is_array=True))
    declared = {"public.orders": [{"columns": ["id", "grid"]}]}
    told = ["indexes: public.orders has an array in column 'grid', and DuckDB has no indexes on arrays"]
    of_file = WarehouseSettings.model_validate({"url": "duckdb:////tmp/dwh.duckdb", "indexes": declared})
    assert of_file.problems_at_work([grid]) == of_file.problems_with([grid]) == told
    assert _settings(declared).problems_with([grid]) == []


def test_another_declaration_or_table_has_another_name_that_fits() -> None:
    declared = [
        OwnIndex(columns=("a",)),
        OwnIndex(columns=("b",)),
        OwnIndex(columns=("a",), where="b"),
        OwnIndex(columns=("a",), method="hash"),
    ]
    names = [index.name(relation) for index in declared for relation in ("x" * 63, "é" * 31)]
    assert len(set(names)) == 8
    assert max(len(name.encode()) for name in names) <= 63
