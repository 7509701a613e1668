"""Events of a table's earlier shapes, as rows of its newest one. Pure.

A compacted topic retains a row's last event until the row changes, so a log that is read from its beginning has events
of every shape that the table ever had. Columns are followed by their number at the source, whatever their names were. A
column that was added later has the value that the source gave to existing rows.

Numbers identify columns within one relation. From a dropped table to its successor, and over a recovery, columns are
followed by name: a source that was put back assigns its numbers again.

If capture has copied the whole table since, events with another key or with values of another type are left out. If
not, the values are the same in both types. The copy deletes the old keys, and these deletes are left out too: to a
store, a key may be the same in both types, 1 and "1".
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cdc.event_format.column_types import has_form
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Column, Table, TableName
from cdc.protocol.control_records import SchemaRecord

ColumnOrigin = tuple[str, str | None, JsonValue]
"""A column's name, its name in the event (None: the event lacks it), and its value if the event lacks it."""

Translation = tuple[ColumnOrigin, ...]
"""How a row of an earlier shape becomes one of the newest; empty if the row fits as it is."""


class ShapesOutdated(LockstepError):
    """An event of an earlier shape came after the shapes were read: the table may have it again. Read them again."""

    @classmethod
    def of(cls, table: TableName) -> "ShapesOutdated":
        return cls(f"table {table} may have an earlier shape again", hint="restart the job: it reads all shapes anew")


@dataclass(frozen=True, slots=True)
class TableHistory:
    """One table's shapes by schema id; ``key`` is the newest shape's. Shapes whose rows a later copy has replaced are
    None. ``retyped`` are key columns whose values had another type in an earlier shape."""

    table: TableName
    key: tuple[str, ...]
    shapes: Mapping[str, Translation | None]
    retyped: tuple[Column, ...] = ()

    def is_key(self, key: Mapping[str, JsonValue]) -> bool:
        """Whether an event of the newest shape can have this key."""
        return tuple(key) == self.key and all(
            has_form(key[column.name], column.value_type, column.is_array) for column in self.retyped
        )

    def translate(self, event: RowEvent, schema_id: str) -> RowEvent | None:
        """The event in the newest shape; None if a later copy of the table made it void. Tombstones have no schema.
        Raises LockstepError for an unknown shape, which is a newer one."""
        if schema_id not in self.shapes and (schema_id or event.row is not None):
            raise unknown_shape(self.table)  # before the key is checked, which may be of the newer shape
        if not self.is_key(event.key):
            return None
        if event.row is None:
            return event
        translation = self.shapes[schema_id]
        if translation is None:
            return None
        if not translation:
            return event
        row = event.row
        return replace(
            event, row={name: default if before is None else row.get(before) for name, before, default in translation}
        )


def unknown_shape(table: TableName) -> LockstepError:
    """The error for an event of a shape that came after the generation was prepared."""
    return LockstepError(
        f"table {table} has a shape that this generation was not prepared for",
        hint="restart the job: it prepares the table's newest shape before it applies rows",
    )


def newest_shapes(records: Iterable[SchemaRecord]) -> dict[TableName, Table]:
    """Every table's newest shape; ``records`` in the order of the topic."""
    return {record.table.name: record.table for record in records}


def histories(records: Iterable[SchemaRecord]) -> dict[TableName, TableHistory]:
    """The tables that had more than one shape; ``records`` in the order of the topic."""
    by_table: dict[TableName, list[SchemaRecord]] = {}
    for record in records:
        by_table.setdefault(record.table.name, []).append(record)
    return {name: _history(name, table_records) for name, table_records in by_table.items() if len(table_records) > 1}


def _history(name: TableName, records: Sequence[SchemaRecord]) -> TableHistory:
    newest = records[-1].table
    groups = relations(records)
    columns = [_Column(column, _in_relations(column, groups)) for column in newest.columns]
    added = [
        _Added(index, record.table.column(column), value)
        for index, group in enumerate(groups)
        for record in group
        for column, value in record.change.defaults.items()
    ]
    shapes: dict[str, Translation | None] = {}
    is_copied = False
    for index, group in reversed(list(enumerate(groups))):
        for record in reversed(group):
            # Of equal shapes, the newest record counts.
            shapes.setdefault(
                record.table.schema_id,
                _translation(record.table, newest, columns, added, relation=index, is_copied=is_copied),
            )
            is_copied = is_copied or bool(record.change.rewritten)
    return TableHistory(name, newest.key, shapes, _retyped(newest, records))


def _retyped(newest: Table, records: Sequence[SchemaRecord]) -> tuple[Column, ...]:
    types = {
        (column.name, column.value_type, column.is_array) for record in records for column in record.table.key_columns
    }
    names = Counter(name for name, _, _ in types)
    return tuple(column for column in newest.key_columns if names[column.name] > 1)


def added_values(newest: Table, records: Iterable[SchemaRecord]) -> dict[str, JsonValue]:
    """Column -> its value in older rows, for columns that the table got since its first shape, without nulls.
    ``records`` are the table's, in the order of the topic. Columns that a copy of the table fills are left out."""
    groups = relations(records)
    added: list[_Added] = []
    for index, group in enumerate(groups):
        for record in group:
            if record.change.rewritten:
                added = []
            else:
                added += [
                    _Added(index, record.table.column(name), value) for name, value in record.change.defaults.items()
                ]
    values: dict[str, JsonValue] = {}
    for column in newest.columns:
        followed = _Column(column, _in_relations(column, groups))
        for one in added:
            if followed.is_same(one.column, one.relation):
                values.pop(column.name, None)  # if numbers are unknown, it was an earlier column of that name
                if one.value is not None:
                    values[column.name] = one.value
    return values


def earlier_keys(records: Sequence[SchemaRecord]) -> dict[tuple[str, ...], tuple[str, ...] | None]:
    """Keys with earlier column names -> the present names of these columns, in that order. None if unknown: the key had
    other columns, or values of another type. ``records`` are the table's, in the order of the topic."""
    newest = records[-1].table
    groups = relations(records)
    columns = [_Column(column, _in_relations(column, groups)) for column in newest.key_columns]
    found: dict[tuple[str, ...], tuple[str, ...] | None] = {}
    for index, group in enumerate(groups):
        for record in group:
            old = record.table
            if old.key != newest.key:
                names = _names_now(old, columns, index)
                found[old.key] = names if found.get(old.key, names) == names else None
    return found


def relations(records: Iterable[SchemaRecord]) -> list[list[SchemaRecord]]:
    """A table's records in their order, grouped by relation."""
    groups: list[list[SchemaRecord]] = []
    for record in records:
        if not groups or not record.table.is_same_relation(groups[-1][-1].table):
            groups.append([])
        groups[-1].append(record)
    return groups


@dataclass(frozen=True, slots=True)
class _Added:
    """A column that was added in the ``relation``-th relation, with its value in older rows."""

    relation: int
    column: Column
    value: JsonValue


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the newest shape, and what it was in each relation; None if it wasn't there."""

    newest: Column
    in_relations: Sequence[Column | None]

    def find(self, table: Table, relation: int) -> Column | None:
        return next((column for column in table.columns if self.is_same(column, relation)), None)

    def is_same(self, column: Column, relation: int) -> bool:
        there = self.in_relations[relation]
        return there is not None and _is_same(column, there)


def _names_now(old: Table, columns: Sequence[_Column], relation: int) -> tuple[str, ...] | None:
    there = {before.name: each.newest for each in columns if (before := each.find(old, relation)) is not None}
    if set(old.key) != there.keys() or len(there) != len(columns):
        return None
    pairs = [(before, there[before.name]) for before in old.key_columns]
    if any((before.value_type, before.is_array) != (now.value_type, now.is_array) for before, now in pairs):
        return None
    return tuple(there[name].name for name in old.key)


def _in_relations(newest: Column, groups: Sequence[Sequence[SchemaRecord]]) -> list[Column | None]:
    """Follow a column through the relations, by name between the last shape of one and the first of the next."""
    found: list[Column | None] = [newest]
    for before, after in reversed(list(pairwise(groups))):
        now = found[0]
        first = next((column for column in after[0].table.columns if now is not None and _is_same(column, now)), None)
        named = (column for column in before[-1].table.columns if first is not None and column.name == first.name)
        found.insert(0, next(named, None))
    return found


def _is_same(column: Column, other: Column) -> bool:
    """Whether two shapes of one relation mean the same column: by number, or by name if a number is unknown."""
    if column.number and other.number:
        return column.number == other.number
    return column.name == other.name


def _translation(
    old: Table,
    newest: Table,
    columns: Sequence[_Column],
    added: Sequence[_Added],
    *,
    relation: int,
    is_copied: bool,
) -> Translation | None:
    """``old`` belongs to the ``relation``-th relation; ``is_copied``: all rows have come again since."""
    if old.schema_id == newest.schema_id:
        return ()
    if old.key != newest.key:
        return None
    translation: list[ColumnOrigin] = []
    for column in columns:
        now, before = column.newest, column.find(old, relation)
        if before is None:
            # The last one: if numbers are unknown, a column that was dropped and added again has the same name.
            values = (one.value for one in reversed(added) if column.is_same(one.column, one.relation))
            translation.append((now.name, None, next(values, None)))
        elif is_copied and (before.value_type, before.is_array) != (now.value_type, now.is_array):
            return None
        else:
            translation.append((now.name, before.name, None))
    if all(name == before for name, before, _ in translation) and len(translation) == len(old.columns):
        return ()
    return tuple(translation)
