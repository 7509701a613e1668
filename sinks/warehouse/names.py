"""Names of tables and their parts in the warehouse (pure).

Tables of schema ``public`` keep their names; others are named ``schema__table``, unless the settings differ. A table's
history adds ``_history`` to the table's name. Two things of the same name are refused, never merged.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.table import TableName, quote_identifier
from sinks.columns.shape import Shape, unfit_column

NAME_BYTES_MAX: Final = 63
"""NAMEDATALEN - 1. PostgreSQL would silently cut longer names."""

HISTORY_SUFFIX: Final = "_history"

TAG_COLUMN: Final = "_tag"
DELETED_COLUMN: Final = "_deleted"
SYNCED_COLUMN: Final = "_synced_at"


def warehouse_name(name: TableName) -> str:
    """The default name of a source table in the warehouse."""
    return name.name if name.schema == "public" else f"{name.schema}__{name.name}"


@dataclass(frozen=True)
class WarehouseNames:
    chosen: Mapping[TableName, str] = field(default_factory=dict)
    history: bool | Collection[TableName] = False
    """The tables that have a history, or whether all have one."""
    folds_case: bool = False
    """Names that differ only in case are the same."""

    def of(self, name: TableName) -> str:
        return self.chosen.get(name) or warehouse_name(name)

    def has_history(self, name: TableName) -> bool:
        return self.history if isinstance(self.history, bool) else name in self.history

    def problems(self, names: Iterable[TableName]) -> list[str]:
        """Names that are too long, and names that several things would share."""
        taken: dict[str, str] = {}
        return [problem for name in sorted(names) for problem in self.take(self._things(name), taken)]

    def take(self, things: Mapping[str, str], taken: dict[str, str]) -> list[str]:
        """Reserve the names of one table's ``things``, by name, in ``taken`` (name -> thing). Returns why it can't."""
        key = str.lower if self.folds_case else str
        problems = [
            f"{thing}: the name {text!r} is longer than {NAME_BYTES_MAX} bytes"
            for text, thing in things.items()
            if len(text.encode()) > NAME_BYTES_MAX
        ]
        problems += [
            f"{taken[key(text)]} and {thing} would both have the name {text!r}"
            + (", as letters' case doesn't count" if self.folds_case else "")
            for text, thing in things.items()
            if key(text) in taken
        ]
        if not problems:
            taken |= {key(text): thing for text, thing in things.items()}
        return problems

    def _things(self, name: TableName) -> dict[str, str]:
        relation = self.of(name)
        return {relation: f"table {name}"} | (
            {relation + HISTORY_SUFFIX: f"the history of {name}"} if self.has_history(name) else {}
        )


def fitting(name: str, what: str) -> str:
    """The name, unless it is too long for PostgreSQL: then raises LockstepError. For names of anything but tables."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise LockstepError(
            f"{what}: the name {name!r} is longer than {NAME_BYTES_MAX} bytes, PostgreSQL would cut it",
            hint="choose a shorter schema for this sink",
        )
    return name


def qualified(schema: str, relation: str) -> str:
    return f"{quote_identifier(schema)}.{quote_identifier(relation)}"


def listed(names: Iterable[str]) -> str:
    """Columns, quoted for SQL."""
    return ", ".join(map(quote_identifier, names))


def check_columns(shape: Shape, taken: Collection[str], who: str) -> None:
    for column in shape.columns:
        if column.name in taken:
            raise unfit_column(shape.table.name, column.name, f"a name that {who} for itself")
