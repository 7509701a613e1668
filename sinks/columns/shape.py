"""What a generation was prepared for: a table's columns, and which later shapes still fit (pure).

New columns fit. Another key or another type doesn't: rows that were applied before would stay as they were, silently
wrong, so these need a new generation that is built from the log's beginning. So does a renamed column, unless the
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
    """A table as a generation holds it.

    ``table`` is the source's shape that was prepared last. ``columns`` are all that the destination has: columns that
    the source has dropped stay, and are null in rows applied since.
    """

    table: Table
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: Table) -> Self:
        """The shape of a table that nothing was prepared for yet."""
        return cls(table, table.columns)

    def evolve(self, table: Table) -> "Shape":
        """The shape after the source's table has changed to this one. Raises LockstepError when that doesn't fit.

        A column that was dropped and added again fits: whether rows have the old one's values is for the caller to
        know.
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
        """As ``evolve``, for a destination in which columns can be renamed and removed.

        Then it has the source's columns.

        What can't be told apart, as columns that swap their names, is left to ``evolve``.
        """
        renamed = {}
        if self.table.is_same_relation(table):
            renamed = {old.name: new.name for old in self.columns for new in table.columns if _is_known_as(old, new)}
        if renamed.keys() & set(renamed.values()) or {column.name for column in self.columns} & set(renamed.values()):
            return self.evolve(table)
        now = {column.name for column in table.columns}
        known = {column.name for column in self.columns}
        # One of these may be a column that we know by another name: evolve judges.
        is_unsure = any(not column.number and column.name not in known for column in table.columns)

        def followed(columns: Iterable[Column]) -> tuple[Column, ...]:
            renamed_columns = [replace(column, name=renamed.get(column.name, column.name)) for column in columns]
            return tuple(column for column in renamed_columns if column.name in now or not column.number or is_unsure)

        before = replace(self.table, columns=followed(self.table.columns))
        return replace(self, table=before, columns=followed(self.columns)).evolve(table)

    def steps_to(self, later: "Shape") -> "Steps":
        """What has to be done to a destination of this shape."""
        # By number alone: a column may have another name now, and a new one the name that it had.
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
    """How its values look, and so are stored: the same where PostgreSQL itself writes no row anew."""
    return "text" if column.value_type == "varchar" else column.value_type, column.is_array


def _is_known_as(old: Column, new: Column) -> bool:
    """Whether a column has another name now. It keeps its number."""
    return old.number != 0 and old.number == new.number and old.name != new.name


def _may_be_renamed(old: Column, new: Column) -> bool:
    """Where numbers don't tell, a column of the same type in another one's place is taken for it."""
    if old.number and new.number:
        return False
    return (old.type_oid, old.type_modifier) == (new.type_oid, new.type_modifier)


def _numbered(held: Column, now: Column | None, *, is_same: bool) -> Column:
    """A column that the destination has, with the number that it has at the source by now."""
    if now is None:
        return held if is_same else replace(held, number=0)
    return replace(held, number=now.number or (held.number if is_same else 0))


def _typed(column: Column) -> str:
    return column.value_type + ("[]" if column.is_array else "")


def _incompatible_change(table: Table, why: str) -> LockstepError:
    return NeedsRebuild(
        f"table {table.name} no longer fits what this generation was built for: {why}",
        hint="rebuild it from the log: lockstep rebuild, with --switch",
    )


def unfit_column(table: object, column: str, why: str) -> LockstepError:
    """The error for a column that a destination can't have by this name.

    ``why`` follows on the name: ``a name that ...``, ``which ...``.
    """
    return LockstepError(
        f"table {table} has a column {column!r}, {why}",
        hint='give it another name here, rename = { "schema.table.column" = "other" } of this sink, or leave it out '
        "with exclude",
    )


def unprepared(table: object) -> LockstepError:
    """The error for an event of a table that this generation doesn't have."""
    return NeedsRebuild(
        f"table {table} was not prepared in this generation, or its data was removed",
        hint="rebuild it from the log: lockstep rebuild, with --switch",
    )


def unknown_column(table: object, column: str) -> LockstepError:
    """The error for an event with a column that this generation doesn't have yet."""
    return LockstepError(
        f"table {table} has a new column {column!r} that this generation was not prepared for",
        hint="restart the job: it prepares the table's newest shape before it applies rows",
    )
