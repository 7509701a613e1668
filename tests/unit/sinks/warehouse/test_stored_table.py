"""sinks.warehouse.stored_table; its behaviour is in tests/contract"""

from sinks.columns.shape import Shape
from sinks.warehouse.stored_table import StoredTable
from tests.builders import table


def test_a_table_comes_back_as_it_was_kept() -> None:
    held = StoredTable(Shape.of(table()), 'Odd "100%" name', has_history=True, has_synced_at=True)
    assert StoredTable.from_json(held.to_json()) == held
    assert held.relations == {
        'Odd "100%" name': "live rows of public.orders",
        'Odd "100%" name_history': "history of public.orders",
    }
