"""Renames columns between the source and a destination, in both directions (pure)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cdc.model.event import JsonValue, RowEvent, TableEvents
from cdc.model.table import Table, TableName
from sinks.contract import StoredRow
from sinks.wrappers.projection import column_text, unknown_columns

Names = Mapping[str, str]


@dataclass(frozen=True)
class Renaming:
    """``names``: table -> column at the source -> column here. False if there are none."""

    names: Mapping[TableName, Names] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names)

    @cached_property
    def _back(self) -> dict[TableName, dict[str, str]]:
        return {table: {here: there for there, here in names.items()} for table, names in self.names.items()}

    def table(self, table: Table) -> Table:
        names = self.names.get(table.name)
        if not names:
            return table
        columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in table.columns)
        return replace(table, columns=columns, key=tuple(names.get(name, name) for name in table.key))

    def row(self, table: TableName, row: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """A row, or a key, with its names here."""
        return _renamed(row, self.names.get(table))

    def events(self, events: TableEvents) -> TableEvents:
        names = self.names.get(events.table)
        if not names:
            return events
        return TableEvents.of(events.table, [_renamed_event(event, names) for event in events])

    def back_row(self, table: TableName, row: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """The inverse of ``row``."""
        return _renamed(row, self._back.get(table))

    def back(self, table: TableName, stored: StoredRow) -> StoredRow:
        names = self._back.get(table)
        if not names:
            return stored
        return StoredRow(
            _renamed(stored.key, names),
            _renamed(stored.row, names),
            stored.tag,
            tuple(names.get(name, name) for name in stored.lacks),
        )

    def unknown_problems(self, tables: Collection[Table]) -> list[str]:
        """Names of no column of these tables, which are as the sink sees them."""
        known = {table.name: [column.name for column in table.columns] for table in tables}
        return unknown_columns("rename", self.names, known)

    def clash_problems(self, tables: Collection[Table]) -> list[str]:
        """Names that two columns of these tables would share."""
        problems: list[str] = []
        for table in tables:
            names = self.names.get(table.name, {})
            kept = {column.name for column in table.columns} - set(names)
            problems += [
                f"rename: {column_text(table.name, there)} can't have the name {here!r}, which is another column's name"
                for there, here in sorted(names.items())
                if here in kept
            ]
        return problems


def _renamed(row: Mapping[str, JsonValue], names: Names | None) -> Mapping[str, JsonValue]:
    return {names.get(name, name): value for name, value in row.items()} if names else row


def _renamed_event(event: RowEvent, names: Names) -> RowEvent:
    row = None if event.row is None else _renamed(event.row, names)
    return replace(event, key=_renamed(event.key, names), row=row)
