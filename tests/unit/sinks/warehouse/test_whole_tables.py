"""sinks.warehouse.purging: of which tables what was deleted long ago is removed for good."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from cdc.model.table import TableName
from sinks.warehouse.names import WarehouseNames
from sinks.warehouse.purging import Purging
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.stored_table import GenerationSchema
from sinks.warehouse.unfit import new_table
from tests.builders import table

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


class _Upkeep:
    """``asked`` are the tables of which something is to be removed."""

    def __init__(self) -> None:
        self.asked: list[TableName] = []

    def purge(self, held: Any, **_: object) -> tuple[int, str]:
        self.asked.append(held.shape.table.name)
        return 0, ""

    def trim_history(self, held: Any, **_: object) -> tuple[bool, str]:
        self.asked.append(held.shape.table.name)
        return False, ""


def _purging(upkeep: _Upkeep) -> Purging:
    """Two tables with rows and histories."""
    held = {
        name: new_table(table(name=name), WarehouseNames(history=True), has_synced_at=True) for name in (ORDERS, ITEMS)
    }
    bookkeeping = cast("Any", SimpleNamespace(tables=lambda: held))
    dialect = cast("Any", SimpleNamespace(connection=SimpleNamespace(execute=None), upkeep=upkeep))
    settings = WarehouseSettings(
        url=SecretStr("postgresql://h/d"), history=True, purge_deleted_after_days=1.0, keep_history_days=1.0
    )
    return Purging(dialect, settings, GenerationSchema("shop_g1"), 1, bookkeeping)


@pytest.mark.parametrize(("whole", "expected"), [(None, [ITEMS, ORDERS]), ({ORDERS}, [ORDERS]), (set(), [])])
def test_nothing_goes_of_a_table_of_which_events_are_still_to_come_and_others_go_on(
    whole: Collection[TableName] | None, expected: list[TableName]
) -> None:
    """Else a table that has left capture for good would keep what was deleted of all others."""
    purged, trimmed = _Upkeep(), _Upkeep()
    _purging(purged).purge("f", whole)
    _purging(trimmed).trim_histories("f", whole, 0, now_ms=0)
    assert (purged.asked, trimmed.asked) == (expected, expected)
