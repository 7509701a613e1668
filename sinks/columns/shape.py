"""The columns for which a generation was prepared, and which later shapes still fit (pure).

New columns fit. Another key or another type doesn't: rows applied before would stay as they were, silently wrong. So
they need a new generation, built from the log's beginning. The same holds for a renamed column, unless the
destination's own columns can be renamed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from cdc.model.errors import LockstepError, NeedsRebuild
from cdc.model.table import Column, Table


@dataclass(frozen=True, slots=True)
class Steps:
    """How a destination gets from one shape to a later one. ``renamed``: name -> new name."""

    renamed: Mapping[str, str]
    added: tuple[Column, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as a generation holds it."""

    table: Table
    """The source's shape that was prepared last."""
    columns: tuple[Column, ...]
    """All columns of the destination. Columns that the source has dropped stay, and are null in rows applied since."""

    @classmethod
    def of(cls, table: Table) -> Self:
        """The shape of a table for which nothing was prepared yet."""
        return cls(table, table.columns)

    def evolve(self, table: Table) -> "Shape":
        """The shape after the source's table has changed to this one. Raises LockstepError if that doesn't fit.

        A column that was dropped and added again fits. The caller must know whether rows hold the old column's values.
        """
        if table.key != self.table.key:
            raise _incompatible_change(
                table, f"its key was ({', '.join(self.table.key)}) and is ({', '.join(table.key)})"
            )
        held = {column.name: column for column in self.columns}
        for column in table.columns:
            known = held.get(column.name)
            if known is not None and _value_form(known) != _value_form(column):
                raise _incompatible_change(table, f"column {column.name!r} was {_typed(known)} and is {_typed(column)}")
        added = tuple(column for column in table.columns if column.name not in held)
        now = {column.name: column for column in table.columns}
        vanished = [column for column in self.table.columns if column.name not in now]
        is_same = self.table.is_same_relation(table)
        renamed = [(old, new) for old in self.columns for new in table.columns if is_same and _is_known_as(old, new)]
        renamed += [(old, new) for old in vanished for new in added if is_same and _may_be_renamed(old, new)]
        for old, new in renamed:
            raise _incompatible_change(table, f"column {old.name!r} seems to be renamed to {new.name!r}")
        columns = tuple(_numbered(column, now.get(column.name), is_same=is_same) for column in self.columns)
        return replace(self, table=table, columns=columns + added)

    def follow(self, table: Table) -> "Shape":
        """Like ``evolve``, if columns can be renamed and removed. ``evolve`` judges ambiguous changes, as swaps."""
        renamed = {}
        if self.table.is_same_relation(table):
            renamed = {old.name: new.name for old in self.columns for new in table.columns if _is_known_as(old, new)}
        if renamed.keys() & set(renamed.values()) or {column.name for column in self.columns} & set(renamed.values()):
            return self.evolve(table)
        now = {column.name for column in table.columns}
        known = {column.name for column in self.columns}
        # One of these may be a known column under a new name: evolve judges.
        is_unsure = any(not column.number and column.name not in known for column in table.columns)

        def followed(columns: Iterable[Column]) -> tuple[Column, ...]:
            renamed_columns = [replace(column, name=renamed.get(column.name, column.name)) for column in columns]
            return tuple(column for column in renamed_columns if column.name in now or not column.number or is_unsure)

        before = replace(self.table, columns=followed(self.table.columns))
        return replace(self, table=before, columns=followed(self.columns)).evolve(table)

    def steps_to(self, later: "Shape") -> "Steps":
        """What has to be done to a destination of this shape to get to the later one."""
        # By number alone: a column may have a new name now, and a new column its old name.
        numbered = {column.number: column.name for column in later.columns if column.number}
        if not self.table.is_same_relation(later.table):
            numbered = {}
        renamed = {
            column.name: numbered[column.number]
            for column in self.columns
            if column.number in numbered and numbered[column.number] != column.name
        }
        held = {renamed.get(column.name, column.name) for column in self.columns}
        names = {column.name for column in later.columns}
        return Steps(
            renamed=renamed,
            added=tuple(column for column in later.columns if column.name not in held),
            dropped=tuple(column.name for column in self.columns if column.name not in {*renamed, *names}),
        )

    def to_json(self) -> str:
        return json.dumps({"table": self.table.to_json(), "columns": [column.to_json() for column in self.columns]})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        value: dict[str, Any] = json.loads(text)
        return cls(Table.from_json(value["table"]), tuple(Column.from_json(column) for column in value["columns"]))


def _value_form(column: Column) -> tuple[str, bool]:
    """How a column's values look, and so are stored. It is equal if PostgreSQL itself rewrites no row."""
    return "text" if column.value_type == "varchar" else column.value_type, column.is_array


def _is_known_as(old: Column, new: Column) -> bool:
    """Whether a column was renamed: it keeps its number."""
    return old.number != 0 and old.number == new.number and old.name != new.name


def _may_be_renamed(old: Column, new: Column) -> bool:
    """Without numbers, a new column of the same type counts as the old one, renamed."""
    if old.number and new.number:
        return False
    return (old.type_oid, old.type_modifier) == (new.type_oid, new.type_modifier)


def _numbered(held: Column, now: Column | None, *, is_same: bool) -> Column:
    """A column of the destination, with its present number at the source."""
    if now is None:
        return held if is_same else replace(held, number=0)
    return replace(held, number=now.number or (held.number if is_same else 0))


def _typed(column: Column) -> str:
    return column.value_type + ("[]" if column.is_array else "")


def _incompatible_change(table: Table, why: str) -> LockstepError:
    return NeedsRebuild(
        f"table {table.name} no longer fits what this generation was built for: {why}",
        hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
    )


def unfit_column(table: object, column: str, why: str) -> LockstepError:
    """A column can't have this name in a destination. ``why`` follows the name: ``a name that ...``, ``which ...``."""
    return LockstepError(
        f"table {table} has a column {column!r}, {why}",
        hint='give it another name here, rename = { "schema.table.column" = "other" } of this sink, or leave it out '
        "with exclude",
    )


def unprepared(table: object) -> LockstepError:
    return NeedsRebuild(
        f"table {table} was not prepared in this generation, or its data was removed",
        hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
    )


def unknown_column(table: object, column: str) -> LockstepError:
    """The error for an event with a column for which this generation wasn't prepared."""
    return LockstepError(
        f"table {table} has a new column {column!r} that this generation was not prepared for",
        hint="restart the job: it prepares the table's newest shape before it applies rows",
    )
