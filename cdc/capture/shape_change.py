"""Compares a Relation message with the recorded shape: the new shape, and what the stream doesn't show. Pure.

The stream has names, types and the replica identity as of the change. Column numbers, the primary key and defaults come
from the catalogue, which may be ahead of the stream. Then a difference is found too early, never too late: the
resulting copy is as new as the catalogue.

A renamed key column counts as another key, since events' keys have its name: the table is copied again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from cdc.capture.column_numbers import column_numbers
from cdc.model.errors import UnsupportedChange
from cdc.model.printable import toml_key
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.protocol.control_records import ShapeChange
from cdc.protocol.pgoutput import Relation, RelationColumn

_NUMERIC_HEADER = 4
_SCALE_BITS = 0x7FF


@dataclass(frozen=True, slots=True)
class AddedValue:
    """An added column's value in older rows: JSON as in an event, None if it differs between rows."""

    json: bytes | None


ResolveColumn = Callable[[RelationColumn], Column]
AddedTo = Callable[[Column], AddedValue]


def changed_shape(
    known_table: Table,
    relation: Relation,
    *,
    current: Table | None,
    configured_key: tuple[str, ...] | None,
    resolve: ResolveColumn,
    added_value: AddedTo,
    parse: Callable[[bytes], object],
    names_before: Collection[str] = (),
) -> tuple[Table, ShapeChange]:
    """The new shape and how it arose from the old one.

    ``known_table`` is the recorded shape. ``current`` is the relation in the catalogue now, None if it is gone.
    ``resolve`` returns a column's type, ``added_value`` an added column's value in older rows. ``parse`` reads JSON.
    ``names_before`` are the names of the table's columns before a recovery: sinks may still know one, and can't
    distinguish rows that lack it from rows in which it is null. Raises UnsupportedChange if no key is left.
    """
    is_same = known_table.oid in (0, relation.relation_id)
    numbers = column_numbers(
        known_table.columns if is_same else (), relation.columns, current.columns if current is not None else ()
    )
    columns = tuple(
        _column(known_table, column, number, resolve) for column, number in zip(relation.columns, numbers, strict=True)
    )
    origins = _origins(known_table, columns)
    renamed = {new: old.name for new, old in origins.items() if old.name != new}
    key = _key(known_table, relation, columns, current, configured_key, {old: new for new, old in renamed.items()})
    identity = relation.replica_identity
    table = Table(known_table.name, columns, key, identity, relation.relation_id, known_table.epoch)
    rewritten: list[str] = []
    if not is_same:
        rewritten.append("it was dropped and made again")
    if key != known_table.key:  # also if only a name differs: names are part of every event's key
        rewritten.append("its key is another one")
    defaults: dict[str, object] = {}
    known_names = {column.name for column in known_table.columns}
    for column in columns:
        origin = origins.get(column.name)
        if origin is None and column.name in known_names:
            # Only the catalogue says so, and it may be ahead: rows with the old values can still come in this shape.
            rewritten.append(f"column {column.name!r} was dropped and added again")
        elif column.name in names_before and column.name not in known_names:
            rewritten.append(f"a column {column.name!r} was there before a recovery")
        elif origin is None and not column.number:
            rewritten.append(f"column {column.name!r} was added, and may have been dropped since")
        elif origin is None:
            value = added_value(column)
            if value.json is None:
                rewritten.append(f"column {column.name!r} was added with a value of its own for each row")
            elif value.json != b"null":
                defaults[column.name] = parse(value.json)
        elif not _keeps_values(origin, column):
            rewritten.append(f"the type of column {column.name!r} was {origin.type_name}, is {column.type_name}")
    return table, ShapeChange(renamed, defaults, "; ".join(rewritten))  # type: ignore[arg-type]  # orjson gives JsonValue


def _column(known_table: Table, column: RelationColumn, number: int, resolve: ResolveColumn) -> Column:
    same_type = next(
        (
            known
            for known in known_table.columns
            if (known.type_oid, known.type_modifier) == (column.type_oid, column.type_modifier)
        ),
        None,
    )
    return replace(same_type or resolve(column), name=column.name, number=number)


def key_is_gone(name: TableName) -> UnsupportedChange:
    """The error that a table has lost its key, and how to go on."""
    return UnsupportedChange(
        f"{name} has no primary key any more, so nothing identifies its rows",
        hint=f"add one (alter table {name.sql} add primary key (...);), or name the columns of a unique"
        f" index in lockstep.toml: [source.options.{toml_key(str(name))}] key = [...];"
        " then start again: nothing was skipped",
    )


def _origins(known_table: Table, columns: tuple[Column, ...]) -> dict[str, Column]:
    """Column -> the column it was before, by number, or by name if numbers are unknown. Added columns are absent."""
    by_number = {column.number: column for column in known_table.columns if column.number}
    by_name = {column.name: column for column in known_table.columns}
    origins = {}
    for column in columns:
        same_name = by_name.get(column.name)
        if column.number and column.number in by_number:
            origins[column.name] = by_number[column.number]
        elif same_name is not None and not same_name.number:
            origins[column.name] = same_name
    return origins


def _key(
    known_table: Table,
    relation: Relation,
    columns: tuple[Column, ...],
    current: Table | None,
    configured: tuple[str, ...] | None,
    new_names: Mapping[str, str],
) -> tuple[str, ...]:
    names = {column.name for column in columns}
    if configured is not None:
        missing = [name for name in configured if name not in names]
        if missing:
            raise UnsupportedChange(
                f"{known_table.name} lost {', '.join(missing)} of its configured key",
                hint="add the column again, or change the table's key in lockstep.toml",
            )
        return configured
    if not known_table.key:
        return ()  # an append-only table stays one: all its events have one key, hence one order
    key_before = tuple(new_names.get(name, name) for name in known_table.key)
    now = current.key if current is not None else ()
    identity = [column.name for column in relation.columns if column.in_identity]
    if relation.replica_identity is ReplicaIdentity.DEFAULT and identity:
        # The primary key as of this point of the stream, but without the order of its columns.
        for candidate in (key_before, now, tuple(identity)):
            if candidate and set(candidate) == set(identity):
                return candidate
    elif current is None or now:
        # The stream doesn't show the key, or there was none then, so only inserts came; by now there is one.
        for candidate in (now, key_before):
            if candidate and set(candidate) <= names:
                return candidate
    raise key_is_gone(known_table.name)


def _keeps_values(before: Column, after: Column) -> bool:
    """Whether every value of the old type has the same text in the new one, so PostgreSQL rewrote nothing."""
    if (before.type_oid, before.type_modifier) == (after.type_oid, after.type_modifier):
        return True
    if before.is_array != after.is_array:
        return False
    if {before.value_type, after.value_type} <= {"text", "varchar"}:
        return after.type_modifier == -1 or 0 <= before.type_modifier <= after.type_modifier
    if before.value_type == after.value_type == "numeric" and before.type_oid == after.type_oid:
        return _numeric_holds(before.type_modifier, after.type_modifier)
    return False


def _numeric_holds(modifier_before: int, modifier_after: int) -> bool:
    if modifier_after == -1:
        return True  # digits after the point stay as they were
    if modifier_before == -1:
        return False
    old, new = modifier_before - _NUMERIC_HEADER, modifier_after - _NUMERIC_HEADER
    return old & _SCALE_BITS == new & _SCALE_BITS and new >> 16 >= old >> 16
