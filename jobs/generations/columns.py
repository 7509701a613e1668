"""Which columns a generation's tables have had, and which values its rows still lack: the record ``g<n>.columns``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cdc.model.table import TableName
from sinks.contract import AddedValues, CoordinationRecords

_RECORD: Final = "columns"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The shape that a generation's table was last prepared for, and the number of each column that it ever had.
    ``relation`` is that shape's ``Table.relation``, 0 if unknown; the numbers are of its columns."""

    schema_id: str
    columns: Mapping[str, int]
    relation: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a generation's tables. ``lacking`` are the values that older rows still have to get.
    ``is_filled``: all rows have them, except those that the destination refused."""

    tables: Mapping[TableName, TableColumns] = field(default_factory=dict)
    lacking: AddedValues = field(default_factory=dict)
    is_filled: bool = True

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "tables": [
                    [name.schema, name.name, known_table.schema_id, dict(known_table.columns), known_table.relation]
                    for name, known_table in self.tables.items()
                ],
                "lacking": [[name.schema, name.name, dict(values)] for name, values in self.lacking.items()],
                "filled": self.is_filled,
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str) -> "Columns":
        fields: dict[str, Any] = orjson.loads(text)
        return cls(
            {TableName(schema, name): TableColumns(*held) for schema, name, *held in fields["tables"]},
            {TableName(schema, name): values for schema, name, values in fields["lacking"]},
            fields["filled"],
        )


def load_columns(records: CoordinationRecords, generation: int) -> Columns | None:
    """A generation's columns; None if it was never prepared."""
    text = records.load(f"g{generation}.{_RECORD}")
    return None if text is None else Columns.from_json(text)


def save_columns(records: CoordinationRecords, generation: int, columns: Columns) -> None:
    records.save(f"g{generation}.{_RECORD}", columns.to_json())
