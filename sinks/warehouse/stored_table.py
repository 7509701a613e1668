"""A table as a generation stores it, and its names in a schema (pure)."""

import json
from dataclasses import dataclass
from typing import Any

from cdc.model.table import TableName
from sinks.columns.shape import Shape
from sinks.warehouse.names import HISTORY_SUFFIX, qualified


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as a generation stores it."""

    shape: Shape
    name: str
    """Its name in the warehouse."""
    has_history: bool = False
    has_synced_at: bool = False
    """Each row holds the time of its last write."""

    @property
    def relations(self) -> dict[str, str]:
        """Its names in a schema -> what each is."""
        return relations_of(self.shape.table.name, self.name, has_history=self.has_history)

    def to_json(self) -> str:
        ours = {
            "warehouse_name": self.name,
            "has_history": self.has_history,
            "has_synced_at": self.has_synced_at,
        }
        return json.dumps({**json.loads(self.shape.to_json()), **ours})

    @classmethod
    def from_json(cls, text: str) -> "StoredTable":
        value: dict[str, Any] = json.loads(text)
        return cls(Shape.from_json(text), value["warehouse_name"], value["has_history"], value["has_synced_at"])


@dataclass(frozen=True, slots=True)
class GenerationSchema:
    name: str

    def qualified(self, relation: str) -> str:
        return qualified(self.name, relation)

    def table(self, held: StoredTable) -> str:
        return qualified(self.name, held.name)

    def history(self, held: StoredTable) -> str:
        return qualified(self.name, held.name + HISTORY_SUFFIX)


def relations_of(table: TableName, name: str, *, has_history: bool) -> dict[str, str]:
    """A table's names in a schema -> what each is, for people."""
    relations = {name: f"live rows of {table}"}
    if has_history:
        relations[name + HISTORY_SUFFIX] = f"history of {table}"
    return relations
