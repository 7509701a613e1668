"""Records with tags -> events in the generation's shapes, with their computed columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from cdc.event_format.decode import LEFT_OUT, RowReader, op_of, why_left_out
from cdc.model.errors import LockstepError
from cdc.model.event import Events, Position, TableEvents, parse_key
from cdc.model.table import TableName
from jobs.executor.append_only import LOG_KEY, row_before, stored_row
from jobs.executor.computed_row import RowComputer, row_computer
from jobs.executor.shape_history import ShapesOutdated, TableHistory, unknown_shape
from jobs.executor.task_input import Task
from jobs.offsets import Offsets
from sinks.contract import Rejection
from sinks.sink_kernel import chosen_sink_kernel

# pyarrow makes its compute functions at import, so their stubs lack most of them.
_compute: Any = pyarrow.compute

PositionAt = Callable[[int], Position]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Events in the generation's shapes. ``has_translated``: some had an earlier shape. ``rejections`` are events with
    an expression that can't be evaluated, and those whose row capture left out: no sink gets them. ``indexes`` are, by
    table, the indexes of the events' records within the topic's."""

    events: Events
    has_translated: bool
    rejections: Sequence[Rejection] = ()
    indexes: Mapping[TableName, Sequence[int]] = field(default_factory=dict)


def decode(records: pa.Table, task: Task) -> Decoded:
    """Records as ``with_tags`` returns them -> events, without those that a later copy of their table made void. Raises
    LockstepError for a value that isn't an event, and for a shape that the generation wasn't prepared for; as
    ShapesOutdated if the shapes must be read again to tell."""
    topics = records.column("topic")
    distinct = topics.unique().to_pylist()
    if len(distinct) == 1:
        return decode_topic(records, distinct[0], task)
    parts = [decode_topic(records.filter(_compute.equal(topics, topic)), topic, task) for topic in distinct]
    return Decoded(
        Events(table_events for part in parts for table_events in part.events.tables),
        any(part.has_translated for part in parts),
        [rejection for part in parts for rejection in part.rejections],
        {table: indexes for part in parts for table, indexes in part.indexes.items()},
    )


def decode_topic(records: pa.Table, topic: str, task: Task) -> Decoded:
    """As ``decode``, for the records of one topic."""
    table = task.tables[topic]
    is_append_only = not task.shapes[table].key
    own_keys: list[bytes] = records.column("key").to_pylist()
    keys = [LOG_KEY] * len(own_keys) if is_append_only else own_keys
    values: list[bytes | None] = records.column("value").to_pylist()
    at = partial(_position, records, topic)
    history = task.histories.get(table)
    # A table that always had one shape has one form of keys.
    has_keys_of_before = history is not None and not is_append_only
    rows, others = _read_rows(
        values, at, newest_shape=task.shapes[table].schema_id, has_keys_of_before=has_keys_of_before
    )
    if is_append_only:
        rows = [row_before(value) if row is None and value else row for row, value in zip(rows, values, strict=True)]
    events = _table_events(records, at, table, keys, rows)
    void: set[int] = set()
    has_translated = False
    if history is not None:
        _check_shapes_are_known(events, others, history, task.known_ends)
        has_translated = _translate(events, rows, others, history, void)
    else:
        # A tombstone's only hint of its shape is its key.
        key_columns = task.shapes[table].key
        if any(schema_id or tuple(parse_key(keys[index])) != key_columns for index, schema_id in others):
            raise unknown_shape(table)
    rejections = []
    for index, row in enumerate(rows):
        if row is None and (value := values[index]) and op_of(value) == LEFT_OUT and index not in void:
            rejections.append(Rejection(events[index], why_left_out(value)))
            void.add(index)
    if table in task.computed:
        for index, reason in _compute_columns(rows, row_computer(task.computed[table])):
            if index not in void:
                rejections.append(Rejection(events[index], reason))
                void.add(index)
    if is_append_only:
        for index, (key, value) in enumerate(zip(own_keys, values, strict=True)):
            rows[index] = stored_row(key, value, rows[index])
            if rows[index] is None:
                void.add(index)
        events = _table_events(records, at, table, own_keys, rows)
    indexes: Sequence[int] = range(len(keys))
    if void:
        indexes = [index for index in indexes if index not in void]
        events = events.select(indexes)
    return Decoded(Events([events]), has_translated, rejections, {table: indexes})


def _position(records: pa.Table, topic: str, index: int) -> Position:
    return Position(topic, records.column("partition")[index].as_py(), records.column("offset")[index].as_py())


def _read_rows(
    values: list[bytes | None], at: PositionAt, *, newest_shape: str, has_keys_of_before: bool
) -> tuple[list[bytes | None], list[tuple[int, str]]]:
    """The rows' JSON, and index and schema id of the records that don't have the newest shape. If a table
    ``has_keys_of_before``, these include deletes of the newest shape, since a copy deletes keys of earlier shapes too.
    Their id is empty, as is a tombstone's. Raises LockstepError for a value that isn't an event."""
    rows: list[bytes | None] = []
    others: list[tuple[int, str]] = []
    reader = RowReader()
    kernel: Any = chosen_sink_kernel().module
    schema_id = ""
    index = 0
    while index < len(values):
        if kernel is not None and schema_id == newest_shape:
            # Take the events that begin as the last one did.
            index = kernel.take_rows(values, index, reader.beginning, rows)
            if index == len(values):
                break
        value = values[index]
        if value is None:
            rows.append(None)
            others.append((index, ""))
        else:
            try:
                row, schema_id = reader.read(value)
            except LockstepError as error:
                raise at(index).located(error) from None
            rows.append(row)
            if schema_id != newest_shape:
                others.append((index, schema_id))
            elif row is None and has_keys_of_before:
                others.append((index, ""))
        index += 1
    return rows, others


def _table_events(
    records: pa.Table, at: PositionAt, table: TableName, keys: list[bytes], rows: list[bytes | None]
) -> TableEvents:
    """Events that read their row from ``rows`` on access: later changes of ``rows`` count."""
    tags: list[str] = records.column("tag").cast(pa.string()).to_pylist()
    return TableEvents.from_log(table, keys, tags, rows, at)


def _check_shapes_are_known(
    events: TableEvents, others: Sequence[tuple[int, str]], history: TableHistory, known_ends: Offsets
) -> None:
    """Raise ShapesOutdated for an event that is newer than the known shapes and would be translated or left out. A
    table can get a shape again: a change was reverted, or the source was put back. Its rows would then lose columns
    that the newest known shape lacks, or be left out for another key."""
    for index, schema_id in others:
        event = events[index]
        at = event.position
        is_known = at.offset < known_ends.get((at.topic, at.partition), at.offset + 1)
        is_an_earlier_one = schema_id in history.shapes if schema_id else not history.is_key(event.key)
        if is_an_earlier_one and not is_known:
            raise ShapesOutdated.of(history.table)


def _translate(
    events: TableEvents,
    rows: list[bytes | None],
    others: Sequence[tuple[int, str]],
    history: TableHistory,
    void: set[int],
) -> bool:
    """Translate rows of earlier shapes to the newest one, and add the indexes of void events to ``void``. Returns
    whether there were any such rows. Raises LockstepError for an unknown shape."""
    has_translated = False
    for index, schema_id in others:
        event = history.translate(events[index], schema_id)
        if event is None:
            void.add(index)
        elif event.row is not None:
            rows[index] = orjson.dumps(event.row)
            has_translated = True
    return has_translated


def _compute_columns(rows: list[bytes | None], computer: RowComputer) -> Iterator[tuple[int, str]]:
    """Add computed columns to the rows, and remove rows that don't meet their condition. Yields the index of each event
    with an expression that can't be evaluated, and why."""
    for index, row in enumerate(rows):
        if row is not None:
            rows[index], refused = computer.computed_text(row)
            if refused:
                yield index, refused
