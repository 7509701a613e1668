"""Names of tables in a real warehouse, where that was chosen."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.model.errors import LockstepError
from cdc.model.table import TableName, quote_identifier
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, table, upsert
from tests.contract.beside import generations_of

pytestmark = pytest.mark.live

ORDERS, ITEMS = table(), table(name=TableName("public", "items"))
Open = Callable[..., WarehouseSink]


@pytest.fixture
def open_sink(endpoints: Any, name: str) -> Iterator[Open]:
    opened = []

    def open_(generation: int, **names: str) -> WarehouseSink:
        chosen = {f"public.{table}": called for table, called in names.items()}
        sink = WarehouseSink(
            WarehouseTables(name, WarehouseSettings(url=SecretStr(endpoints.warehouse_url), names=chosen), generation)
        )
        opened.append(sink)
        return sink

    yield open_
    for sink in opened:
        sink.close()


def shown(warehouse: Any, name: str) -> dict[str, list[str]]:
    """What readers see: the notes by view."""
    views = warehouse.execute("select relname from pg_class where relnamespace = %s::regnamespace", (name,))
    return {
        view: [note for (note,) in warehouse.execute(f"select note from {name}.{quote_identifier(view)}")]
        for (view,) in views.fetchall()
    }


def filled(sink: WarehouseSink, generation: int) -> WarehouseSink:
    sink.prepare([ORDERS, ITEMS])
    notes = [upsert({"id": 1, "note": f"{shape.name.name} {generation}"}, 1, of=shape) for shape in (ORDERS, ITEMS)]
    assert sink.apply(batch(*notes)).applied == 2
    return sink


def test_a_switch_leads_from_any_names_to_any_others(warehouse: Any, open_sink: Open, name: str) -> None:
    first = filled(open_sink(1), 1)
    second = filled(open_sink(2, orders='Odd "100%" name', items="orders"), 2)
    third = filled(open_sink(3, orders="items", items="orders"), 3)
    steps = [
        (first, {"orders": ["orders 1"], "items": ["items 1"]}),
        (second, {'Odd "100%" name': ["orders 2"], "orders": ["items 2"]}),
        (third, {"items": ["orders 3"], "orders": ["items 3"]}),
        (first, {"orders": ["orders 1"], "items": ["items 1"]}),
    ]
    for sink, expected in steps:
        generations_of(sink).switch()
        assert shown(warehouse, name) == expected
        assert generations_of(sink).live() == generations_of(first).live()
    assert [row.row["note"] for row in second.scan(ORDERS)] == ["orders 2"]
    assert [row.row["note"] for row in second.rows(ITEMS, [{"id": 1}])] == ["items 2"]
    generations_of(second).drop()
    assert shown(warehouse, name) == {"orders": ["orders 1"], "items": ["items 1"]}


def test_a_table_keeps_its_name_while_its_generation_lives(open_sink: Open) -> None:
    filled(open_sink(1), 1)
    with pytest.raises(LockstepError, match=r"has the name 'orders' in generation 1, and names says 'o'"):
        open_sink(1, orders="o").prepare([ORDERS, ITEMS])
