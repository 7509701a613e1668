"""sinks.warehouse.tables: of which tables what was deleted long ago is removed for good."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.table import TableName
from sinks.warehouse.tables import WarehouseTables
from tests.builders import table

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


class _Tables(WarehouseTables):
    """Two tables with rows and histories. ``asked`` are those of which something is removed."""

    def __init__(self) -> None:
        self.asked: list[TableName] = []
        held = {
            name: SimpleNamespace(shape=SimpleNamespace(table=table(name=name)), has_history=True)
            for name in (ORDERS, ITEMS)
        }
        self.bookkeeping = cast("Any", SimpleNamespace(tables=lambda: held))
        self.dialect = cast("Any", SimpleNamespace(purge=self._removed, trim_history=self._removed))
        self._settings = cast("Any", SimpleNamespace(purge_deleted_after_days=1.0, keep_history_days=1.0))

    def _removed(self, held: Any, **_: object) -> tuple[int, str]:
        self.asked.append(held.shape.table.name)
        return 0, ""


@pytest.mark.parametrize(("whole", "expected"), [(None, [ITEMS, ORDERS]), ({ORDERS}, [ORDERS]), (set(), [])])
def test_nothing_goes_of_a_table_of_which_events_are_still_to_come_and_others_go_on(
    whole: Collection[TableName] | None, expected: list[TableName]
) -> None:
    """Else a table that has left capture for good would keep what was deleted of all others."""
    purged, trimmed = _Tables(), _Tables()
    purged.purge("f", whole)
    trimmed.trim_histories("f", whole, 0, now_ms=0)
    assert (purged.asked, trimmed.asked) == (expected, expected)
