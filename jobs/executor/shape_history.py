"""Events of a table's earlier shapes, as rows of its newest one. Pure.

A compacted topic keeps a row's last event for as long as the row isn't changed. A log that is read from its beginning
has events of every shape that the table ever had. Columns are followed by their number at the source, whatever their
names were. A column that was added later has the value that the source gave to the rows that were there.

Where capture has copied the whole table since, events with another key or with values of another type are left out.
Where it hasn't, the values are the same in both types.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Column, Table, TableName
from cdc.protocol.control_records import SchemaRecord

ColumnOrigin = tuple[str, str | None, JsonValue]
"""A column's name, its name in the event (None: the event doesn't have it), and the value that it has without one."""

Translation = tuple[ColumnOrigin, ...]
"""How a row of an earlier shape becomes one of the newest; empty where the row fits as it is."""


@dataclass(frozen=True, slots=True)
class TableHistory:
    """One table's shapes by schema id; ``key`` is that of the newest shape.

    None are the shapes whose rows a later copy has replaced.
    """

    table: TableName
    key: tuple[str, ...]
    shapes: Mapping[str, Translation | None]

    def translate(self, event: RowEvent, schema_id: str) -> RowEvent | None:
        """The event in the newest shape; None when a later copy of the table made it void. Tombstones have no schema.

        Raises LockstepError for a shape that isn't known, which is a newer one.
        """
        if schema_id not in self.shapes and (schema_id or event.row is not None):
            raise unknown_shape(self.table)  # before its key is looked at: it may be the newer one
        if tuple(event.key) != self.key:
            return None
        if event.row is None:
            return event
        translation = self.shapes[schema_id]
        if translation is None:
            return None
        if not translation:
            return event
        row = event.row
        return replace(
            event, row={name: default if before is None else row.get(before) for name, before, default in translation}
        )


def unknown_shape(table: TableName) -> LockstepError:
    """The error for an event of a shape that came after the generation was prepared."""
    return LockstepError(
        f"table {table} has a shape that this generation was not prepared for",
        hint="restart the job: it prepares the table's newest shape before it applies rows",
    )


def newest_shapes(records: Iterable[SchemaRecord]) -> dict[TableName, Table]:
    """Every table's newest shape; ``records`` in the order of the topic."""
    return {record.table.name: record.table for record in records}


def histories(records: Iterable[SchemaRecord]) -> dict[TableName, TableHistory]:
    """The tables that had more than one shape; ``records`` in the order of the topic."""
    by_table: dict[TableName, list[SchemaRecord]] = {}
    for record in records:
        by_table.setdefault(record.table.name, []).append(record)
    return {name: _history(name, table_records) for name, table_records in by_table.items() if len(table_records) > 1}


def _history(name: TableName, records: Sequence[SchemaRecord]) -> TableHistory:
    newest = records[-1].table
    added = [
        (record.table.column(column), value) for record in records for column, value in record.change.defaults.items()
    ]
    shapes: dict[str, Translation | None] = {}
    is_copied = False
    for record in reversed(records):
        # The newest record of a shape counts.
        shapes.setdefault(record.table.schema_id, _translation(record.table, newest, added, is_copied=is_copied))
        is_copied = is_copied or bool(record.change.rewritten)
    return TableHistory(name, newest.key, shapes)


def added_values(newest: Table, records: Iterable[SchemaRecord]) -> dict[str, JsonValue]:
    """Column -> what rows from before show in it, for columns that the table got since its first shape; no nulls.

    ``records`` are the table's, in the order of the topic. Columns whose values come with a copy of the table are left
    out.
    """
    added: list[tuple[Column, JsonValue]] = []
    for record in records:
        if record.change.rewritten:
            added = []
        else:
            added += [(record.table.column(name), value) for name, value in record.change.defaults.items()]
    values: dict[str, JsonValue] = {}
    for column in newest.columns:
        for added_column, value in added:
            if _is_same(added_column, column):
                values.pop(column.name, None)  # where numbers aren't known, an earlier column of that name
                if value is not None:
                    values[column.name] = value
    return values


def _is_same(column: Column, other: Column) -> bool:
    """Whether two shapes mean one column. By number: it may have been renamed; by name where a number isn't known."""
    if column.number and other.number:
        return column.number == other.number
    return column.name == other.name


def _translation(
    old: Table, newest: Table, added: Sequence[tuple[Column, JsonValue]], *, is_copied: bool
) -> Translation | None:
    """``added`` are columns with their value in older rows; ``is_copied``: all rows have come again since."""
    if old.schema_id == newest.schema_id:
        return ()
    if old.key != newest.key:
        return None
    translation: list[ColumnOrigin] = []
    for column in newest.columns:
        column_before = next((old_column for old_column in old.columns if _is_same(old_column, column)), None)
        if column_before is None:
            # The last one: where numbers aren't known, a column that was dropped and added again has the same name.
            value = next((value for added_column, value in reversed(added) if _is_same(added_column, column)), None)
            translation.append((column.name, None, value))
        elif is_copied and (column_before.value_type, column_before.is_array) != (column.value_type, column.is_array):
            return None
        else:
            translation.append((column.name, column_before.name, None))
    if all(name == before for name, before, _ in translation) and len(translation) == len(old.columns):
        return ()
    return tuple(translation)
