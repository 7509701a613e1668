"""Raw records -> sink, inside Spark's tasks: fold per key, parse, apply; one report row per task and one row per rejection.

It runs in Python workers on executors, so it imports neither Kafka's client nor Spark. Nothing is raised in a task: an
exception would reach the driver as pages of a JVM's trace. What went wrong is part of the report, and the driver raises it.
"""

import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa

from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable, UnsupportedChange
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from cdc.protocol.envelope import row_event, schema_id_of
from jobs.shape_history import TableHistory
from sinks.collapse import newest
from sinks.registry import SinkSettings, open_sink
from sinks.retrying_sink import RetryingSink, Waiting
from sinks.sink import Batch, Rejection, Sink, TopicPartition

RESULT_SCHEMA: Final = "facts string, value binary"
"""Spark's schema of what a task returns: JSON, and for a rejection the event's original value."""

_RESULT: Final = pa.schema([("facts", pa.string()), ("value", pa.binary())])

PORTION_BYTES_MAX: Final = 64 * 1024 * 1024
"""Keys and values that a task holds before it applies them; a larger task is applied in portions, in order."""

REJECTIONS_MAX: Final = 10_000
"""Rejections of one batch. More is no bad row but a wrong mapping: the job stops, and nothing of the batch counts as done."""

_REJECTED_BYTES_MAX: Final = 64 * 1024 * 1024

_RECORD_OVERHEAD_BYTES: Final = 200  # what a record costs as Python objects besides key and value

OpenSink = Callable[[str, SinkSettings, int], Sink]


@dataclass(frozen=True)
class Task:
    """What every task of a batch needs to know. Travels to the executors."""

    sink: str
    settings: SinkSettings
    generation: int
    fence: int
    tables: Mapping[str, TableName]
    """Topic -> table."""
    retry_s: float
    run: str
    """Another one for each life of the query: what a worker has kept open may know nothing of a table's new shape."""
    rejected_before: Mapping[tuple[str, bytes], str] = field(default_factory=dict)
    """Topic and key -> tag of events that this sink has refused and that nothing has replaced yet."""
    histories: Mapping[TableName, TableHistory] = field(default_factory=dict)
    """Of the tables that had other shapes before."""
    replays: bool = False
    """Rows of the same tag are to be written again."""
    open: OpenSink = open_sink


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the driver."""

    kind: str
    message: str
    hint: str | None = None
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        if isinstance(error, Unavailable):
            return cls("Unavailable", error.message, error.hint, error.retry_after_s)
        if isinstance(error, LockstepError):
            return cls(type(error).__name__, error.message, error.hint)
        # A bug. Where it happened is told, but not its text, which may quote a row.
        places = [
            f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        return cls(
            type(error).__name__, f"{type(error).__name__} in {' > '.join(places[-4:])}", "this is a bug of Lockstep's"
        )

    def error(self) -> LockstepError:
        """The error again, as near to its own class as matters to the driver."""
        if self.kind == "Unavailable":
            return Unavailable(self.message, hint=self.hint, retry_after_s=self.retry_after_s)
        for cls in (Fenced, PositionMismatch, UnsupportedChange):
            if self.kind == cls.__name__:
                return cls(self.message, hint=self.hint)
        return LockstepError(self.message, hint=self.hint)


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """An event that the sink refused for good, with its record's own bytes."""

    position: Position
    key: bytes
    value: bytes | None
    tag: str
    reason: str


@dataclass(slots=True)
class Delivered:
    """What became of the records of a task, or of a whole batch. ``rows`` counts records, the others count folded events."""

    rows: int = 0
    applied: int = 0
    stale: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    commit_time_ms: int = 0
    rejected: list[RejectedRecord] = field(default_factory=list)
    resolved: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and key of earlier rejections that this batch has made void."""
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Delivered") -> None:
        """Take another task's results in. Two tasks never share a partition."""
        self.rows += other.rows
        self.applied += other.applied
        self.stale += other.stale
        self.next_offsets |= other.next_offsets
        self.commit_time_ms = max(self.commit_time_ms, other.commit_time_ms)
        self.rejected += other.rejected
        self.resolved += other.resolved
        self.failures += other.failures


class _Records:
    """Records in the order of their partitions, column by column, as ``collapse.newest`` takes them."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.topics: list[str] = []
        self.partitions: list[int] = []
        self.offsets: list[int] = []
        self.tombstone_tags: list[bytes | None] = []
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        keys, values, topics, partitions, offsets, tombstone_tags = batch.columns
        self.keys += keys.to_pylist()
        self.values += values.to_pylist()
        self.topics += topics.dictionary_encode().to_pylist()
        self.partitions += partitions.to_pylist()
        self.offsets += offsets.to_pylist()
        # Most batches have no tombstone, and a list of nothing is quicker made than read.
        if tombstone_tags.null_count == len(tombstone_tags):
            self.tombstone_tags += [None] * len(tombstone_tags)
        else:
            self.tombstone_tags += tombstone_tags.to_pylist()
        self.bytes += batch.nbytes + _RECORD_OVERHEAD_BYTES * batch.num_rows

    def newest_events(
        self, tables: Mapping[str, TableName], histories: Mapping[TableName, TableHistory]
    ) -> list[tuple[int, RowEvent]]:
        """The newest event of each key in its table's newest shape, with its place. The others are never parsed.

        Raises LockstepError.
        """
        places = newest(self.topics, self.partitions, self.offsets, self.keys, self.values, self.tombstone_tags)
        if not histories:
            return [(place, self._event(place, tables)) for place in places]
        events = []
        for place in places:
            event: RowEvent | None = self._event(place, tables)
            assert event is not None
            history = histories.get(event.table)
            if history is not None:
                event = history.translate(event, schema_id_of(self.values[place] or b""))
            if event is not None:
                events.append((place, event))
        return events

    def last_places(self) -> dict[TopicPartition, int]:
        """The place of each partition's last record."""
        return dict(zip(zip(self.topics, self.partitions, strict=True), range(len(self.offsets)), strict=True))

    def commit_time_ms(self, place: int) -> int:
        """The commit time of the record at this place; of a tombstone, that of the delete before it."""
        value = self.values[place] or (self.values[place - 1] if place else None)
        return 0 if value is None else _commit_time_ms(value)

    def _event(self, place: int, tables: Mapping[str, TableName]) -> RowEvent:
        topic, tag = self.topics[place], self.tombstone_tags[place]
        at = Position(topic, self.partitions[place], self.offsets[place])
        return row_event(
            tables[topic], self.keys[place], self.values[place], None if tag is None else tag.decode("ascii"), at
        )


def _commit_time_ms(value: bytes) -> int:
    """``ts_ms`` is the envelope's last member: ``...,"ts_ms":1700000000000}``."""
    _, _, tail = value.rpartition(b":")
    return int(tail[:-1]) if tail[:-1].isdigit() else 0


def deliver(task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply one task's records and yield its results, for ``mapInArrow``."""
    delivered = Delivered()
    remaining = iter(batches)
    try:
        _apply_all(task, remaining, delivered)
    except Exception as error:
        _forget(task)  # the next attempt starts with a new connection
        delivered.failures.append(Failure.of(error))
        for _ in remaining:  # a worker whose input isn't read to its end is thrown away
            pass
    yield to_arrow(delivered)


def _apply_all(task: Task, batches: Iterator[pa.RecordBatch], delivered: Delivered) -> None:
    records = _Records()
    for batch in batches:
        records.add(batch)
        if records.bytes >= PORTION_BYTES_MAX:
            _apply(task, records, delivered)
            records = _Records()
    if records.offsets:
        _apply(task, records, delivered)


def _apply(task: Task, records: _Records, delivered: Delivered) -> None:
    """Apply one portion and add what became of it. Raises LockstepError."""
    placed = records.newest_events(task.tables, task.histories)
    last = records.last_places()
    seen = {at: records.offsets[place] + 1 for at, place in last.items()}
    outcome = _sink(task).apply(
        Batch(
            [event for _, event in placed],
            next_offsets=delivered.next_offsets | seen,
            fence=task.fence,
            replays=task.replays,
        )
    )
    delivered.rows += len(records.offsets)
    delivered.applied += outcome.applied
    delivered.stale += outcome.stale
    delivered.next_offsets |= seen
    delivered.commit_time_ms = max(
        delivered.commit_time_ms, *(records.commit_time_ms(place) for place in last.values())
    )
    if task.rejected_before:
        refused = {rejection.event.position for rejection in outcome.rejections}
        delivered.resolved += _resolved(task, records, [one for one in placed if one[1].position not in refused])
    if outcome.rejections:
        place_of = {event.position: place for place, event in placed}
        delivered.rejected += [_rejected(rejection, place_of, records) for rejection in outcome.rejections]
        check_rejections(task.sink, delivered.rejected)


def _rejected(rejection: Rejection, place_of: Mapping[Position, int], records: _Records) -> RejectedRecord:
    event = rejection.event
    place = place_of[event.position]
    return RejectedRecord(event.position, records.keys[place], records.values[place], event.tag, rejection.reason)


def _resolved(task: Task, records: _Records, accepted: Iterable[tuple[int, RowEvent]]) -> Iterator[tuple[str, bytes]]:
    """Earlier rejections whose row the sink has now taken, in the rejected version or a newer one."""
    for place, event in accepted:
        row = (event.position.topic, records.keys[place])
        tag = task.rejected_before.get(row)
        if tag is not None and event.tag >= tag:
            yield row


def check_rejections(sink: str, rejected: Sequence[RejectedRecord]) -> None:
    """Raise LockstepError when so many were rejected that it can't be the rows."""
    size = sum(len(record.key) + len(record.value or b"") for record in rejected)
    if len(rejected) > REJECTIONS_MAX or size > _REJECTED_BYTES_MAX:
        raise LockstepError(
            f"sink {sink!r} rejected {len(rejected)} events of one batch, which isn't the rows' fault; "
            f"the first reason: {rejected[0].reason}",
            hint="mend what the reason says and start the job again; the batch is read again, nothing was skipped",
        )


# One open sink per generation and worker process. Workers live from batch to batch, and connecting costs more than a batch.
_open: dict[tuple[str, int], tuple[tuple[str, SinkSettings], Sink]] = {}


def _sink(task: Task) -> Sink:
    identity = (task.sink, task.generation)
    known = _open.get(identity)
    purpose = (task.run, task.settings)
    if known is not None and known[0] == purpose:
        return known[1]
    _forget(task)
    sink = RetryingSink(
        task.open(task.sink, task.settings, task.generation),
        sleep=time.sleep,
        monotonic=time.monotonic,
        random=random.random,
        on_wait=_wait_quietly,
        give_up_after_s=task.retry_s,
    )
    _open[identity] = (purpose, sink)
    return sink


def _wait_quietly(_: Waiting) -> None:
    """The driver tells of it once the task gives up."""


def _forget(task: Task) -> None:
    """Close the worker's sink of this generation, if it has one."""
    known = _open.pop((task.sink, task.generation), None)
    if known is not None:
        # It was given up because it failed; how it ends doesn't matter.
        with suppress(Exception):
            known[1].close()


def to_arrow(delivered: Delivered) -> pa.RecordBatch:
    """The report row, then a row per rejection, in ``RESULT_SCHEMA``."""
    facts: list[dict[str, Any]] = [
        {
            "rows": delivered.rows,
            "applied": delivered.applied,
            "stale": delivered.stale,
            "next_offsets": [[*at, offset] for at, offset in delivered.next_offsets.items()],
            "commit_time_ms": delivered.commit_time_ms,
            "resolved": [[topic, key.decode()] for topic, key in delivered.resolved],
            "failures": [
                [failure.kind, failure.message, failure.hint, failure.retry_after_s] for failure in delivered.failures
            ],
        }
    ]
    facts += [
        {
            "at": [record.position.topic, record.position.partition, record.position.offset],
            "key": record.key.decode(),
            "tag": record.tag,
            "reason": record.reason,
        }
        for record in delivered.rejected
    ]
    values = [None, *(record.value for record in delivered.rejected)]
    return pa.RecordBatch.from_arrays(
        [pa.array([orjson.dumps(fact).decode() for fact in facts], pa.string()), pa.array(values, pa.binary())],
        schema=_RESULT,
    )


def from_arrow(table: pa.Table) -> Delivered:
    """The results of all tasks of a batch -> one."""
    total = Delivered()
    for text, value in zip(table.column("facts").to_pylist(), table.column("value").to_pylist(), strict=True):
        fact = orjson.loads(text)
        if "at" in fact:
            total.rejected.append(
                RejectedRecord(Position(*fact["at"]), fact["key"].encode(), value, fact["tag"], fact["reason"])
            )
        else:
            total.add(
                Delivered(
                    rows=fact["rows"],
                    applied=fact["applied"],
                    stale=fact["stale"],
                    next_offsets={(topic, partition): offset for topic, partition, offset in fact["next_offsets"]},
                    commit_time_ms=fact["commit_time_ms"],
                    resolved=[(topic, key.encode()) for topic, key in fact["resolved"]],
                    failures=[Failure(*failure) for failure in fact["failures"]],
                )
            )
    return total
