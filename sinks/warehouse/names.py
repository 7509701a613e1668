"""Names of tables and their parts in the warehouse (pure).

Tables of schema ``public`` keep their names, others have the name ``schema__table``, unless the settings say something
else. A table's history has the table's name with ``_history`` after it. Two things of one name are refused, never
merged.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.table import TableName, quote_identifier
from sinks.columns.shape import Shape, unfit_column

NAME_BYTES_MAX: Final = 63
"""NAMEDATALEN - 1; PostgreSQL would cut longer names in silence."""

HISTORY_SUFFIX: Final = "_history"

TAG_COLUMN: Final = "_tag"
DELETED_COLUMN: Final = "_deleted"
SYNCED_COLUMN: Final = "_synced_at"


def warehouse_name(name: TableName) -> str:
    """The name of a source table in the warehouse where the settings don't say."""
    return name.name if name.schema == "public" else f"{name.schema}__{name.name}"


@dataclass(frozen=True)
class WarehouseNames:
    """The names of one sink's tables. ``history`` are the tables that have one, or whether all have.

    ``folds_case``: names that differ in their letters' case alone are the same.
    """

    chosen: Mapping[TableName, str] = field(default_factory=dict)
    history: bool | Collection[TableName] = False
    folds_case: bool = False

    def of(self, name: TableName) -> str:
        """The name of a table in the warehouse."""
        return self.chosen.get(name) or warehouse_name(name)

    def has_history(self, name: TableName) -> bool:
        return self.history if isinstance(self.history, bool) else name in self.history

    def problems(self, names: Iterable[TableName]) -> list[str]:
        """Names that are too long, and those that several things would have."""
        taken: dict[str, str] = {}
        return [problem for name in sorted(names) for problem in self.take(self._things(name), taken)]

    def take(self, things: Mapping[str, str], taken: dict[str, str]) -> list[str]:
        """Give these ``things`` of one table their names, by which they are given, or say why that can't be.

        ``taken`` has what has which name already.
        """
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
    """The name of something else than a table. Raises LockstepError when that is too long for PostgreSQL."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise LockstepError(
            f"{what}: the name {name!r} is longer than {NAME_BYTES_MAX} bytes, PostgreSQL would cut it",
            hint="choose a shorter schema for this sink",
        )
    return name


def qualified(schema: str, relation: str) -> str:
    """A relation, quoted for SQL."""
    return f"{quote_identifier(schema)}.{quote_identifier(relation)}"


def listed(names: Iterable[str]) -> str:
    """Columns, quoted for SQL."""
    return ", ".join(map(quote_identifier, names))


def check_columns(shape: Shape, taken: Collection[str], who: str) -> None:
    """Raise LockstepError for a column whose name is taken by ours."""
    for column in shape.columns:
        if column.name in taken:
            raise unfit_column(shape.table.name, column.name, f"a name that {who} for itself")
