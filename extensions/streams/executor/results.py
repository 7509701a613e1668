"""Rows of a stream query -> sink, inside Spark's tasks. A row is final, and no other row may have its key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson
import pyarrow as pa

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.json_numbers import FLOATS, INTEGERS
from cdc.model.table import Table
from cdc.model.tag import Tag
from extensions.streams.executor.task_input import StreamInput
from extensions.streams.executor.topics import (
    RECORD_OVERHEAD_BYTES,
    check_same_topics,
    close_topics,
    topics_for,
)
from jobs.executor.open_sinks import close_sink, freeze_opened, sink_for
from jobs.executor.result import Failure, RejectedEvent, Result, to_arrow
from jobs.executor.task_input import Task
from sinks.contract import Batch

_ROWS_AT_ONCE: Final = 1_000
"""How many rows are looked up in the sink at once."""

_LSN_STEP: Final = 8
"""OpenSearch stores commit LSNs as multiples of this."""

_TIMES: Final = frozenset({"date", "timestamp", "timestamptz"})

REPEATED: Final = "an earlier row has this key, and rows of a stream query are final"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the result. ``text`` orders rows of one key, so that the same one wins in any order of arrival."""

    key: Mapping[str, JsonValue]
    values: Mapping[str, JsonValue]
    text: bytes


def batch_tag(batch_id: int) -> str:
    """The tag of all rows of a batch, so that a repetition changes nothing."""
    return str(Tag(0, (batch_id + 1) * _LSN_STEP, 0))


def read_row(text: str, table: Table) -> _Row:
    """A row from Spark's JSON, in which each value is a text."""
    texts: Mapping[str, str | None] = orjson.loads(text)
    values = {column.name: typed_value(texts[column.name], column.value_type) for column in table.columns}
    return _Row({name: values[name] for name in table.key}, values, orjson.dumps(values))


def typed_value(text: str | None, value_type: str) -> JsonValue:
    """Spark's text of a value -> the value in the form that its type has in events."""
    if text is None:
        return None
    if value_type == "bool":
        return text == "true"
    if value_type in INTEGERS:
        return int(text)
    if value_type in FLOATS:
        return text if text in ("NaN", "Infinity", "-Infinity") else float(text)
    return text


def distinct(rows: Iterable[_Row], *, key: Sequence[str]) -> tuple[list[_Row], list[tuple[_Row, str]]]:
    """One row of each key, and the others with the reason: a null in the key, or a key that another row has."""
    kept: dict[bytes, _Row] = {}
    refused = list[tuple[_Row, str]]()
    for row in rows:
        nulls = [name for name in key if row.key[name] is None]
        if nulls:
            refused.append((row, f"its key has no {nulls[0]}"))
            continue
        identity = orjson.dumps(row.key)
        other = kept.get(identity)
        if other is None:
            kept[identity] = row
        else:
            kept[identity], second = sorted((row, other), key=lambda one: one.text)
            refused.append((second, REPEATED))
    return list(kept.values()), refused


def why_unfit(row: _Row, table: Table) -> str | None:
    """Why PostgreSQL can't store this row, apart from its key; None if it can. One bad event stops no query. Pure."""
    for column in table.columns:
        value = row.values[column.name]
        if not isinstance(value, str):
            continue
        if "\0" in value:
            return f"its {column.name} has the character U+0000, which PostgreSQL's texts can't have"
        if column.value_type in _TIMES and not (value[:4].isdecimal() and value[4:5] == "-" and value[:4] != "0000"):
            return f"the year of its {column.name} isn't one from 1 to 9999"
    return None


def why_too_long(row: _Row, stream: StreamInput) -> str | None:
    """Why the result's topic can't take this row; None if it can, or there is no topic. Pure."""
    size = len(orjson.dumps(row.key)) + len(row.text) + RECORD_OVERHEAD_BYTES
    if stream.result_topic is None or size <= stream.result_record_bytes_max:
        return None
    return f"its {size:,} bytes don't fit into a record of topic {stream.result_topic}"


def apply_results(
    task: Task, stream: StreamInput, table: Table, batch_id: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply one task's rows and yield its result, for ``mapInArrow``. All rows of a key are in one task."""
    result = Result()
    remaining = iter(batches)
    try:
        rows = [read_row(text, table) for batch in remaining for text in batch.column("row").to_pylist()]
        if rows:
            # All input is read by now. If the topics are the same ones, these rows come from their records.
            assert task.client is not None
            check_same_topics(stream.query, task.client, stream.topic_ids)
            apply_rows(task, stream, table, batch_id, rows, topics_for(task.client, stream, task.run), result)
        freeze_opened()
    except Exception as error:
        close_sink(task)  # the next attempt starts with new connections
        close_topics(stream)
        result.failures.append(Failure.of(error))
        for _ in remaining:  # Spark discards a worker whose input isn't read to the end
            pass
    yield to_arrow(result)


class Topics(Protocol):
    """Where rows go besides the sink: the protocol of ``StreamTopics``."""

    def write_row(self, key: bytes, row: bytes, tag: str) -> None: ...

    def keep_refused(self, batch_id: int, refused: Iterable[RejectedEvent]) -> None: ...

    def flush(self) -> None: ...


def apply_rows(
    task: Task,
    stream: StreamInput,
    table: Table,
    batch_id: int,
    rows: Sequence[_Row],
    topics: Topics,
    result: Result,
) -> None:
    """Apply rows to the sink, and then to the topics, so that every row on a topic is in the sink. Adds to ``result``.
    Raises what the sink and ``topics`` raise, and LockstepError if the sink has rows of a later batch.
    """
    result.rows = len(rows)
    tag = batch_tag(batch_id)
    told = [(row, why_unfit(row, table) or why_too_long(row, stream)) for row in rows]
    kept, refused = distinct([row for row, reason in told if reason is None], key=table.key)
    refused += [(row, reason) for row, reason in told if reason is not None]
    for start in range(0, len(kept), _ROWS_AT_ONCE):
        portion = kept[start : start + _ROWS_AT_ONCE]
        stored = _stored_tags(task, table, portion)
        new = list[RowEvent]()
        for place, row in enumerate(portion, start):
            known = stored.get(orjson.dumps(row.key), "")
            if known > tag:
                raise LockstepError(
                    f"the result of stream query {task.sink!r} has rows of a later batch than its checkpoint",
                    hint=f"build the result again: lockstep streams rebuild {task.sink}",
                )
            if known and known < tag:
                refused.append((row, REPEATED))
            else:
                position = Position(str(table.name), 0, place)
                new.append(RowEvent(table.name, row.key, tag, row.values, position))
        outcome = sink_for(task).apply(Batch(new, fence=task.fence, identities=task.identities))
        result.applied += outcome.applied
        result.stale += outcome.stale
        by_place = {event.position.offset: kept[event.position.offset] for event in new}
        for rejection in outcome.rejections:
            refused.append((by_place.pop(rejection.event.position.offset), rejection.reason))
        if stream.result_topic is not None:
            for row in by_place.values():
                topics.write_row(orjson.dumps(row.key), row.text, tag)
    in_order = sorted(refused, key=lambda one: (one[0].text, one[1]))
    # There may be many: they are passed on one by one, and a wrong mapping shows in the figures.
    topics.keep_refused(
        batch_id,
        (
            RejectedEvent(Position(str(table.name), 0, index), orjson.dumps(row.key), row.text, tag, reason)
            for index, (row, reason) in enumerate(in_order)
        ),
    )
    topics.flush()


def _stored_tags(task: Task, table: Table, rows: Sequence[_Row]) -> dict[bytes, str]:
    """The tags of those of the rows' keys that the sink has, by the key's JSON."""
    wanted = {orjson.dumps(row.key) for row in rows}
    names = table.key
    stored = {
        orjson.dumps({name: row.key[name] for name in names}): row.tag
        for row in sink_for(task).rows(table, [row.key for row in rows])
    }
    if unknown := stored.keys() - wanted:
        raise LockstepError(
            f"sink {task.sink!r} shows {len(unknown)} keys of {table.name} in another form than they were written in",
            hint="choose key columns of type text, integer or timestamptz",
        )
    return stored
