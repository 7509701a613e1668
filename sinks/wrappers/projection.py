"""What a destination gets to see of tables, events and rows: columns left out, masked and computed (pure)."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Final, Self

from pydantic import AfterValidator

from cdc.model.event import JsonValue, TableEvents
from cdc.model.table import Column, Table, TableName, quote_identifier
from sinks.wrappers.masks import MaskSetting, Salt, masked

_PART = r'(?:"(?:[^"]|"")+"|[^".]+)'
_COLUMN = re.compile(rf"(?P<table>{_PART}\.{_PART})\.(?P<column>{_PART})")
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_TEXT_OID: Final = 25


def parse_column(text: str) -> tuple[TableName, str]:
    """``schema.table.column``, each part optionally in double quotes. Raises ValueError for anything else."""
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(
            f'not a column: {text!r} (schema.table.column expected, odd names in double quotes: s."A b".c)'
        )
    column = match["column"]
    return TableName.parse(match["table"]), column[1:-1].replace('""', '"') if column.startswith('"') else column


def column_text(table: TableName, column: str) -> str:
    """A column as people write it; ``parse_column`` reads it."""
    return f"{table}.{column if _PLAIN.fullmatch(column) else quote_identifier(column)}"


def parse_columns(texts: Iterable[str]) -> dict[TableName, frozenset[str]]:
    """Columns by table. Raises ValueError that names every text which isn't a column."""
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
    """What the destination gets to see of which tables, in the source's names. False if it sees all unchanged."""

    excluded: Mapping[TableName, frozenset[str]] = field(default_factory=dict)
    masks: Mapping[TableName, Mapping[str, MaskSetting]] = field(default_factory=dict)
    salt: Salt | None = None
    computed: Mapping[TableName, tuple[Column, ...]] = field(default_factory=dict)
    """Columns that rows have besides the source's own when they get here."""
    conditions: Collection[TableName] = ()
    """Tables with a condition. Rows that don't meet it are deletions when they get here."""

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """A projection that leaves out these columns and does nothing else. Raises ValueError."""
        return cls(parse_columns(texts))

    def __bool__(self) -> bool:
        return bool(self.excluded or self.masks or self.computed or self.conditions)

    @cached_property
    def evaluated(self) -> frozenset[TableName]:
        """The tables whose rows are seen only after expressions were evaluated."""
        return frozenset({*self.computed, *self.conditions})

    def table(self, table: Table) -> Table:
        """The table as the destination knows it. A table that is already so is returned unchanged."""
        excluded = self.excluded.get(table.name, frozenset())
        masks = self.masks.get(table.name, {})
        computed = self.computed.get(table.name, ())
        if not (excluded or masks or computed):
            return table
        own = {column.name for column in table.columns}
        columns = (*table.columns, *(column for column in computed if column.name not in own))
        return replace(
            table,
            columns=tuple(
                _as_text(column) if column.name in masks else column
                for column in columns
                if column.name not in excluded
            ),
        )

    def row(self, table: TableName, row: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """What is seen of a row of the table. Never pass a row that was seen already: masks would hide it again."""
        excluded, masks = self.excluded.get(table, frozenset()), self.masks.get(table)
        if masks:
            return {
                name: masked(value, masks[name], self.salt) if name in masks else value
                for name, value in row.items()
                if name not in excluded
            }
        return {name: row[name] for name in row if name not in excluded} if excluded else row

    def events(self, events: TableEvents) -> TableEvents:
        """A table's events as the destination gets them. A deletion has only the key, which is never hidden."""
        if events.table not in self.excluded and events.table not in self.masks:
            return events
        return TableEvents.of(
            events.table,
            [event if event.row is None else replace(event, row=self.row(event.table, event.row)) for event in events],
        )

    def key_problems(self, tables: Iterable[Table]) -> list[str]:
        """Columns that can't be left out or masked, since rows are found by them."""
        return [
            f"{setting}: {column_text(table.name, name)} is part of the table's key"
            for table in tables
            for name in table.key
            for setting, columns in (("exclude", self.excluded), ("mask", self.masks))
            if name in columns.get(table.name, ())
        ]

    def unknown_problems(self, tables: Iterable[Table]) -> list[str]:
        """Settings that name no column of these tables: a typing error would let a column through."""
        own = {table.name: {column.name for column in table.columns} for table in tables}
        known = {
            table: names | {column.name for column in self.computed.get(table, ())} for table, names in own.items()
        }
        problems = []
        for setting, by_table in (("exclude", self.excluded), ("mask", self.masks)):
            problems += unknown_columns(setting, by_table, known)
        for table in sorted({*self.computed, *self.conditions} - known.keys()):
            problems.append(f"{'computed' if table in self.computed else 'where'}: this sink has no table {table}")
        return problems

    def clash_problems(self, tables: Iterable[Table]) -> list[str]:
        """Computed columns with the name of a column at the source."""
        own = {table.name: {column.name for column in table.columns} for table in tables}
        return [
            f"computed: table {table} has a column {column_text(table, column.name).removeprefix(f'{table}.')} already"
            for table, columns in sorted(self.computed.items())
            for column in columns
            if column.name in own.get(table, ())
        ]


def unknown_columns(
    setting: str, by_table: Mapping[TableName, Iterable[str]], known: Mapping[TableName, Collection[str]]
) -> list[str]:
    """The columns and tables in a setting that don't exist, as sentences."""
    problems = []
    for table, names in sorted(by_table.items()):
        if table not in known:
            problems.append(f"{setting}: this sink has no table {table}")
        else:
            problems += [
                f"{setting}: table {table} has no column {column_text(table, name).removeprefix(f'{table}.')}"
                for name in sorted(set(names) - set(known[table]))
            ]
    return problems


def _as_text(column: Column) -> Column:
    return replace(column, type_name="text", value_type="text", is_array=False, type_oid=_TEXT_OID, type_modifier=-1)
