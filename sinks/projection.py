"""Columns that a sink leaves out: what of a table, an event and a row the destination gets to see (pure)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from pydantic import AfterValidator

from cdc.model.event import JsonValue, TableEvents
from cdc.model.table import Table, TableName, quote_identifier

_PART = r'(?:"(?:[^"]|"")+"|[^".]+)'
_COLUMN = re.compile(rf"(?P<table>{_PART}\.{_PART})\.(?P<column>{_PART})")
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")


def parse_column(text: str) -> tuple[TableName, str]:
    """``schema.table.column`` with optional double quotes around each part. Raises ValueError for anything else."""
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(
            f'not a column: {text!r} (schema.table.column expected, odd names in double quotes: s."A b".c)'
        )
    column = match["column"]
    return TableName.parse(match["table"]), column[1:-1].replace('""', '"') if column.startswith('"') else column


def column_text(table: TableName, column: str) -> str:
    """As people write it; ``parse_column`` reads it."""
    return f"{table}.{column if _PLAIN.fullmatch(column) else quote_identifier(column)}"


def parse_columns(texts: Iterable[str]) -> dict[TableName, frozenset[str]]:
    """Columns by table. Raises ValueError that names every text which is no column."""
    columns: dict[TableName, set[str]] = {}
    problems = []
    for text in texts:
        try:
            table, column = parse_column(text)
        except ValueError as error:
            problems.append(str(error))
        else:
            columns.setdefault(table, set()).add(column)
    if problems:
        raise ValueError("; ".join(problems))
    return {table: frozenset(names) for table, names in columns.items()}


def _are_columns(texts: tuple[str, ...]) -> tuple[str, ...]:
    parse_columns(texts)
    return texts


Excluded = Annotated[tuple[str, ...], AfterValidator(_are_columns)]
"""The setting: columns as ``schema.table.column``."""


@dataclass(frozen=True)
class Projection:
    """Which columns of which tables are left out. False when there are none; then it gives everything back as it came."""

    excluded: Mapping[TableName, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """From the setting. Raises ValueError."""
        return cls(parse_columns(texts))

    def __bool__(self) -> bool:
        return bool(self.excluded)

    def table(self, table: Table) -> Table:
        """The table as the destination knows it."""
        excluded = self.excluded.get(table.name)
        if excluded is None:
            return table
        return replace(table, columns=tuple(column for column in table.columns if column.name not in excluded))

    def row(self, table: TableName, row: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """A row of the table without the columns that are left out."""
        excluded = self.excluded.get(table)
        return row if excluded is None else {name: row[name] for name in row if name not in excluded}

    def events(self, events: TableEvents) -> TableEvents:
        """A table's events as the destination gets them. A deletion has the key only, and a key is never left out."""
        excluded = self.excluded.get(events.table)
        if excluded is None:
            return events
        return TableEvents.of(
            events.table,
            [event if event.row is None else replace(event, row=self.row(event.table, event.row)) for event in events],
        )

    def key_problems(self, tables: Iterable[Table]) -> list[str]:
        """Columns that can't be left out, since a row is found by them."""
        return [
            f"exclude: {column_text(table.name, name)} is part of the table's key"
            for table in tables
            for name in table.key
            if name in self.excluded.get(table.name, ())
        ]

    def unknown_problems(self, tables: Iterable[Table]) -> list[str]:
        """What names no column of these tables: a slip of the pen here would let a column through."""
        known = {table.name: {column.name for column in table.columns} for table in tables}
        problems = []
        for table, names in sorted(self.excluded.items()):
            if table not in known:
                problems.append(f"exclude: this sink has no table {table}")
            else:
                problems += [
                    f"exclude: table {table} has no column {column_text(table, name).removeprefix(f'{table}.')}"
                    for name in sorted(names - known[table])
                ]
        return problems
