"""Fills a memory of large values from the topics, which hold every row in full."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cdc.event_format.decode import DELETED, LEFT_OUT, after_of, op_of, schema_id_of
from cdc.model.errors import LockstepError
from cdc.model.table import Table
from cdc.toast.json_slices import split_object
from cdc.toast.memory import LEFT_OUT_ROW, DurableMemory
from cdc.toast.rule import ToastRule

BATCH_BYTES: Final = 16 * 1024 * 1024
_BATCH_RECORDS: Final = 50_000
"""The most that is held in memory between two commits, plus one record."""

_NULL: Final = b"null"
_NO_TABLES: Final[Mapping[str, Table]] = {}


def catch_up(
    records: Iterable[tuple[str, int, int, bytes, bytes | None]],
    memory: DurableMemory,
    rules: Mapping[str, ToastRule],
    *,
    tables: Mapping[str, Table] = _NO_TABLES,
    shapes: Mapping[str, Table] = _NO_TABLES,
) -> int:
    """Apply committed records, each partition's in order from ``memory.offsets()`` on; returns their number.

    It commits as it goes, without a position, so an interrupted fill resumes where it was. When it returns, all is
    committed except the position, which only the caller knows: ``memory.commit(position, end offsets)``.

    ``tables`` are the topics' newest shapes and ``shapes`` all of them by schema id. Values are stored by the column's
    identity, whatever its name was when the event was written; by name for a topic that isn't in ``tables``.

    A compacted topic lacks a row's history, so every value is stored that could be out of line
    (``ToastRule.suspects``). Topics without a rule are skipped. Raises LockstepError for a value that isn't an event.
    """
    offsets: dict[tuple[str, int], int] = {}
    count = size = pending = 0
    for topic, partition, offset, key, value in records:
        rule = rules.get(topic)
        if rule is not None:
            values = {}
            if value is not None:
                columns = _columns(rule, tables.get(topic), shapes.get(schema_id_of(value)))
                values = large_values(rule, value, columns, record_position=f"{topic}/{partition}/{offset}")
            if values:
                memory.put(topic, key, values)
                size += len(key) + sum(map(len, values.values()))
            else:
                memory.forget(topic, key)
        offsets[topic, partition] = offset + 1
        count += 1
        pending += 1
        if size >= BATCH_BYTES or pending >= _BATCH_RECORDS:
            memory.commit(None, offsets)
            offsets = {}
            size = pending = 0
    if offsets:
        memory.commit(None, offsets)
    return count


def _columns(rule: ToastRule, table: Table | None, shape: Table | None) -> Sequence[tuple[str, str]]:
    """(identity, name in events of this shape) of each column that the rule covers."""
    if table is None:
        return [(name, name) for name in rule.columns]
    columns = [table.columns[position] for position in rule.positions]
    if shape is None or shape == table:
        return [(column.identity, column.name) for column in columns]
    names = {column.identity: column.name for column in shape.columns}
    return [(column.identity, names.get(column.identity, column.name)) for column in columns]


def large_values(
    rule: ToastRule, value: bytes, columns: Sequence[tuple[str, str]], *, record_position: str
) -> dict[str, bytes]:
    """The JSON of an event's values that could be out of line; none for a delete. Raises LockstepError if the value
    isn't an event."""
    op = op_of(value)
    if op == DELETED:
        return {}
    if op == LEFT_OUT:
        return dict(LEFT_OUT_ROW)
    try:
        members = split_object(after_of(value))
    except (ValueError, LockstepError) as error:
        raise LockstepError(f"the record {record_position} is not an event of Lockstep's") from error
    values = {}
    for position, (identity, name) in zip(rule.positions, columns, strict=True):
        json = members.get(name, _NULL)
        if json != _NULL and rule.may_be_moved(position, json):
            values[identity] = json
    return values
