"""Names of tables in a warehouse that were chosen by a setting."""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName, quote_identifier
from sinks.contract import OpenedSink
from tests.builders import batch, table, upsert
from tests.contract.typed_stores import Store

ORDERS, ITEMS = table(), table(name=TableName("public", "items"))


def opened(store: Store, generation: int, **names: str) -> OpenedSink:
    return store.open(generation=generation, names={f"public.{table}": called for table, called in names.items()})


def shown(store: Store) -> dict[str, list[str]]:
    """What readers see: the notes by view."""
    views = store.query(f"select table_name from information_schema.tables where table_schema = '{store.name}'")
    return {
        view: [note for (note,) in store.query(f"select note from {store.name}.{quote_identifier(view)}")]
        for (view,) in views
    }


def filled(opened: OpenedSink, generation: int) -> OpenedSink:
    opened.sink.prepare([ORDERS, ITEMS])
    notes = [upsert({"id": 1, "note": f"{shape.name.name} {generation}"}, 1, of=shape) for shape in (ORDERS, ITEMS)]
    assert opened.sink.apply(batch(*notes)).applied == 2
    return opened


def test_a_switch_leads_from_any_names_to_any_others(store: Store) -> None:
    first = filled(opened(store, 1), 1)
    second = filled(opened(store, 2, orders='Odd "100%" name', items="orders"), 2)
    third = filled(opened(store, 3, orders="items", items="orders"), 3)
    steps = [
        (first, {"orders": ["orders 1"], "items": ["items 1"]}),
        (second, {'Odd "100%" name': ["orders 2"], "orders": ["items 2"]}),
        (third, {"items": ["orders 3"], "orders": ["items 3"]}),
        (first, {"orders": ["orders 1"], "items": ["items 1"]}),
    ]
    for one, expected in steps:
        one.generations.switch()
        assert shown(store) == expected
        assert one.generations.live() == first.generations.live()
    assert [row.row["note"] for row in second.sink.scan(ORDERS)] == ["orders 2"]
    assert [row.row["note"] for row in second.sink.rows(ITEMS, [{"id": 1}])] == ["items 2"]
    second.generations.drop()
    assert shown(store) == {"orders": ["orders 1"], "items": ["items 1"]}


def test_a_table_keeps_its_name_while_its_generation_lives(store: Store) -> None:
    filled(opened(store, 1), 1)
    with pytest.raises(LockstepError, match=r"has the name 'orders' in generation 1, and names says 'o'"):
        opened(store, 1, orders="o").sink.prepare([ORDERS, ITEMS])
