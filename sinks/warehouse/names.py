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
    """The names of one sink's tables. ``history`` are the tables that have one, or whether all have."""

    chosen: Mapping[TableName, str] = field(default_factory=dict)
    history: bool | Collection[TableName] = False

    def of(self, name: TableName) -> str:
        """The name of a table in the warehouse."""
        return self.chosen.get(name) or warehouse_name(name)

    def has_history(self, name: TableName) -> bool:
        return self.history if isinstance(self.history, bool) else name in self.history

    def problems(self, names: Iterable[TableName]) -> list[str]:
        """Names that are too long, and those that several things would have."""
        problems = []
        taken: dict[str, str] = {}
        for name in sorted(names):
            relation = self.of(name)
            things = [(relation, f"table {name}")]
            if self.has_history(name):
                things.append((relation + HISTORY_SUFFIX, f"the history of {name}"))
            for text, thing in things:
                if len(text.encode()) > NAME_BYTES_MAX:
                    problems.append(f"{thing}: the name {text!r} is longer than {NAME_BYTES_MAX} bytes")
                other = taken.setdefault(text, thing)
                if other != thing:
                    problems.append(f"{other} and {thing} would both have the name {text!r}")
        return problems

    def check(self, names: Iterable[TableName]) -> None:
        """Raise LockstepError with all problems of these tables together."""
        problems = self.problems(names)
        if problems:
            raise LockstepError(
                f"tables can't have these names in the warehouse: {'; '.join(problems)}",
                hint='give them other ones, names = { "schema.table" = "other" } of this sink, or leave tables out of '
                "its tables",
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
