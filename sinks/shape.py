"""What a generation was prepared for: a table's columns, and which later shapes still fit (pure).

New columns fit. Another key, another type or a renamed column doesn't: rows that were applied before would stay as they were,
silently wrong, so these need a new generation that is built from the log's beginning.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Self

from cdc.model.errors import LockstepError
from cdc.model.table import Column, Table


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as a generation holds it.

    ``table`` is the source's shape that was prepared last. ``columns`` are all that the destination has: columns that the
    source has dropped stay, and are null in rows applied since.
    """

    table: Table
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: Table) -> Self:
        """The shape of a table that nothing was prepared for yet."""
        return cls(table, table.columns)

    def evolve(self, table: Table) -> "Shape":
        """The shape after the source's table has changed to this one. Raises LockstepError when that doesn't fit."""
        if table.key != self.table.key:
            raise _misfit(table, f"its key was ({', '.join(self.table.key)}) and is ({', '.join(table.key)})")
        held = {column.name: column for column in self.columns}
        for column in table.columns:
            known = held.get(column.name)
            if known is not None and _value_form(known) != _value_form(column):
                raise _misfit(table, f"column {column.name!r} was {_typed(known)} and is {_typed(column)}")
        added = tuple(column for column in table.columns if column.name not in held)
        now = {column.name for column in table.columns}
        vanished = [column for column in self.table.columns if column.name not in now]
        for old in vanished:
            for new in added:
                if (old.type_oid, old.type_modifier) == (new.type_oid, new.type_modifier):
                    raise _misfit(table, f"column {old.name!r} seems to be renamed to {new.name!r}")
        return replace(self, table=table, columns=self.columns + added)

    def to_json(self) -> str:
        return json.dumps({"table": self.table.to_json(), "columns": [column.to_json() for column in self.columns]})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        value: dict[str, Any] = json.loads(text)
        return cls(Table.from_json(value["table"]), tuple(Column.from_json(column) for column in value["columns"]))


def _value_form(column: Column) -> tuple[str, bool]:
    return column.value_type, column.is_array


def _typed(column: Column) -> str:
    return column.value_type + ("[]" if column.is_array else "")


def _misfit(table: Table, why: str) -> LockstepError:
    return LockstepError(
        f"table {table.name} no longer fits what this generation was built for: {why}",
        hint="build it anew from the log: lockstep rebuild, with --switch",
    )


def unprepared(table: object) -> LockstepError:
    """The error for an event of a table that this generation doesn't have."""
    return LockstepError(
        f"table {table} was not prepared in this generation, or its data was removed while the job ran",
        hint="restart the job; if the generation was dropped, build it anew: lockstep rebuild",
    )


def unknown_column(table: object, column: str) -> LockstepError:
    """The error for an event with a column that this generation doesn't have yet."""
    return LockstepError(
        f"table {table} has a new column {column!r} that this generation was not prepared for",
        hint="restart the job: it prepares the table's newest shape before it applies rows",
    )
