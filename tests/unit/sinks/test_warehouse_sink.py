"""sinks.warehouse_sink: names and DDL; its behaviour is in tests/contract"""

import pytest
from pydantic import SecretStr

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import Column, TableName
from sinks.shape import Shape
from sinks.warehouse_sink import WarehouseSettings, WarehouseSink, column_type, create_table_sql, warehouse_name
from tests.builders import column, table


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


def test_the_public_schema_is_left_out_of_names() -> None:
    assert warehouse_name(TableName("public", "orders")) == "orders"
    assert warehouse_name(TableName("sales", "orders")) == "sales__orders"


def test_a_name_that_postgresql_would_cut_is_refused() -> None:
    with pytest.raises(LockstepError, match="longer than 63 bytes"):
        warehouse_name(TableName("s" * 40, "t" * 40))


def test_create_table() -> None:
    of = table(column("id", "int8"), column('odd "name"'), key=("id",))
    assert create_table_sql("shop_g1", Shape.of(of)) == (
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
        create_table_sql("s", Shape.of(table(column("id"), column(name))))


@pytest.mark.parametrize("url", ["mysql://host/db", "not an address"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        WarehouseSink("shop", WarehouseSettings(url=SecretStr(url)), 1).claim()


def test_the_schema_is_called_schema_in_the_file() -> None:
    assert WarehouseSettings.model_validate({"url": "postgresql://h/d", "schema": "dwh"}).schema_name == "dwh"
