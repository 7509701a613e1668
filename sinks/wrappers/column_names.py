"""The name by which a generation knows each column: the coordination record ``g<n>.column_names``.

With ``schema_changes = "keep"``, a column that the source renames keeps its name here, so that readers see no
difference until the sink is rebuilt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdc.model.table import Table, TableName
from sinks.contract import CoordinationRecords
from sinks.wrappers.projection import column_text
from sinks.wrappers.renaming import Renaming


@dataclass(frozen=True)
class ColumnNames:
    numbers: Mapping[TableName, Mapping[int, str]] = field(default_factory=dict)
    """Table -> number of a column -> its name."""
    renaming: Renaming = field(default_factory=Renaming)
    """As of the last shapes."""
    relations: Mapping[TableName, int] = field(default_factory=dict)
    """Table -> the relation (``Table.relation``) whose columns have these numbers."""

    def outdated(self, configured: Renaming) -> list[str]:
        """For people: columns whose name here is a former name of theirs at the source."""
        return [
            f"{column_text(table, there)} is {here!r} here"
            for table, names in sorted(self.renaming.names.items())
            for there, here in sorted(names.items())
            if configured.names.get(table, {}).get(there) != here
        ]


def keep_names(configured: Renaming, tables: Sequence[Table], known: ColumnNames | None) -> ColumnNames:
    """The names for these shapes, which are as the sink sees them. Pure.

    A column keeps its name, unless a column that is new here has that name: then the destination judges. It also judges
    columns of the key, since earlier events have another key. A table that isn't among these shapes, such as one that
    is held, stays as it is known.
    """
    numbers: dict[TableName, dict[int, str]] = {}
    relations: dict[TableName, int] = {}
    if known is not None:
        numbers = {name: dict(by_number) for name, by_number in known.numbers.items()}
        relations = dict(known.relations)
    others = numbers.keys() - {table.name for table in tables}
    names = {name: dict(of) for name, of in configured.names.items() if name not in others}
    if known is not None:
        names |= {name: dict(of) for name, of in known.renaming.names.items() if name in others}
    for table in tables:
        if table.relation and relations.get(table.name, 0) not in (0, table.relation):
            # The table was dropped and created again, or put back: its columns have new numbers and the same names.
            here = {} if known is None else known.renaming.names.get(table.name, {})
            numbers[table.name] = {
                column.number: here[column.name] for column in table.columns if column.number and column.name in here
            }
        relations[table.name] = table.relation or relations.get(table.name, 0)
        held = numbers.setdefault(table.name, {})
        names_here = {column.name: names.get(table.name, {}).get(column.name, column.name) for column in table.columns}
        is_settled = False
        while not is_settled:  # a column that gets its name back makes room for another
            is_settled = True
            for column in table.columns:
                before = held.get(column.number) if column.number and column.name not in table.key else None
                if before is not None and before not in names_here.values():
                    names_here[column.name] = names.setdefault(table.name, {})[column.name] = before
                    is_settled = False
        held |= {column.number: names_here[column.name] for column in table.columns if column.number}
    return ColumnNames(numbers, Renaming(names), relations)


def load_names(records: CoordinationRecords, generation: int) -> ColumnNames | None:
    """The names that a generation stored, or None if it keeps none."""
    text = records.load(_record_name(generation))
    if text is None:
        return None
    numbers: dict[TableName, Mapping[int, str]] = {}
    names: dict[TableName, Mapping[str, str]] = {}
    relations: dict[TableName, int] = {}
    for schema, name, relation, by_number, renamed in json.loads(text):
        table = TableName(schema, name)
        relations[table] = relation
        numbers[table] = {int(number): column for number, column in by_number.items()}
        if renamed:
            names[table] = renamed
    return ColumnNames(numbers, Renaming(names), relations)


def save_names(records: CoordinationRecords, generation: int, kept: ColumnNames) -> None:
    document: list[Any] = []
    for name, by_number in kept.numbers.items():
        renamed = kept.renaming.names.get(name, {})
        document.append([name.schema, name.name, kept.relations.get(name, 0), dict(by_number), dict(renamed)])
    records.save(_record_name(generation), json.dumps(document))


def _record_name(generation: int) -> str:
    return f"g{generation}.column_names"
