"""Tables that a warehouse can't hold because of their names, or the names or number of their columns (pure)."""

from collections.abc import Iterable

from cdc.model.append_only import is_append_only
from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape
from sinks.warehouse.names import WarehouseNames
from sinks.warehouse.stored_table import StoredTable


def new_table(table: Table, names: WarehouseNames, *, has_synced_at: bool) -> StoredTable:
    """A new table as the generation will store it."""
    has_history = names.has_history(table.name) and not is_append_only(table)  # it has all events anyway
    return StoredTable(Shape.of(table), names.of(table.name), has_history, has_synced_at)


def unfit_tables(
    tables: Iterable[StoredTable], names: WarehouseNames, *, is_file: bool
) -> dict[TableName, LockstepError]:
    """Those of these tables that can't be stored, each with its error. Of two with the same name, the later one."""
    if is_file:
        from sinks.warehouse.duckdb.tables import check_columns as check
    else:
        from sinks.warehouse.postgres.tables import check_table as check
    taken: dict[str, str] = {}
    unfit: dict[TableName, LockstepError] = {}
    for held in tables:
        name = held.shape.table.name
        try:
            check(held)
        except LockstepError as error:
            unfit[name] = error
            continue
        if problems := names.take(held.relations, taken):
            unfit[name] = LockstepError(
                f"table {name} can't have its name in the warehouse: {'; '.join(problems)}",
                hint='give it another one, names = { "schema.table" = "other" } of this sink, or leave it out of its '
                "tables",
            )
    return unfit
