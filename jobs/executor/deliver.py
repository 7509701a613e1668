"""Raw records -> sink, inside Spark's tasks: fold per key, take out the rows, apply; one report row per task and one row per rejection.

It runs in Python workers on executors, so it imports nothing of Spark's. Nothing is raised in a task: an
exception would reach the driver as pages of a JVM's trace. What went wrong is part of the report, and the driver raises it.
"""

import gc
import random
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute

from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable, UnsupportedChange
from cdc.model.event import Events, Position, TableEvents, parse_key
from cdc.model.table import Column, Table, TableName
from cdc.protocol.envelope import OP_OFFSET, RowReader
from jobs.executor.computed_row import DERIVED, computed_row
from jobs.executor.log_reader import Client, read_log
from jobs.executor.shape_history import TableHistory, unknown_shape
from jobs.executor.window import newest, with_tags
from jobs.query.resume import complete_from_ms
from sinks.contract import Batch, OpenedSink, Rejection, Sink, TableVersions, TopicPartition
from sinks.registry import SinkSettings, open_sink
from sinks.wrappers.retrying import Retries, Waiting, retrying

# Stubs of Arrow's compute functions, which are made when the module is loaded, lack most of them.
compute: Any = pyarrow.compute

RESULT_SCHEMA: Final = "facts string, value binary"
"""Spark's schema of what a task returns: JSON, and for a rejection the event's original value."""

_RESULT: Final = pa.schema([("facts", pa.string()), ("value", pa.binary())])

PORTION_BYTES: Final = 24 * 1024 * 1024
"""Of a window's newest records, how many become Python objects at once: these take several times the memory."""

REJECTIONS_MAX: Final = 10_000
"""Rejections of one batch. More is no bad row but a wrong mapping: the job stops, and nothing of the batch counts as done."""

_REJECTED_BYTES_MAX: Final = 64 * 1024 * 1024

OpenSink = Callable[[str, SinkSettings, int], OpenedSink]


@dataclass(frozen=True)
class Task:
    """What every task of a batch needs to know. Travels to the executors."""

    sink: str
    settings: SinkSettings
    generation: int
    fence: int
    tables: Mapping[str, TableName]
    """Topic -> table."""
    shapes: Mapping[TableName, Table]
    """What the generation was prepared for last."""
    window_bytes: int
    """Records that a task holds and folds before it applies them; more are applied one window after the other, in order."""
    retry_s: float
    run: str
    """Another one for each life of the query: what a worker has kept open may know nothing of a table's new shape."""
    rejected_before: Mapping[tuple[str, bytes], str] = field(default_factory=dict)
    """Topic and key -> tag of events that this sink has refused and that nothing has replaced yet."""
    computed: Mapping[TableName, Sequence[Column]] = field(default_factory=dict)
    """The tables of which something is derived, with the columns that are."""
    versions: Collection[TableName] = ()
    """The tables of which the sink keeps all versions; where there are any, nothing is folded before they are taken."""
    complete_at_ms: int = 0
    compaction_lag_ms: int = 0
    """When the whole log had been read last, and how long it keeps each version at least."""
    histories: Mapping[TableName, TableHistory] = field(default_factory=dict)
    """Of the tables that had other shapes before."""
    overwrite_equal_tags: bool = False
    """Rows of the same tag are to be written again."""
    client: Client | None = field(default=None, repr=False)
    """How the task reaches the log, where it reads its records itself; None: Spark has read them. Holds the password."""
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


class _Window:
    """The newest record of each key among those that have come, and how far they reach in each partition."""

    def __init__(self, bytes_max: int, *, folds: bool = True) -> None:
        self._bytes_max = bytes_max
        self._folds = folds
        self._batches: list[pa.RecordBatch] = []
        self._folded: pa.Table | None = None
        self._bytes = 0
        self._ends: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._ends

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        return {at: offset + 1 for at, (offset, _) in self._ends.items()}

    @property
    def commit_time_ms(self) -> int:
        """The newest of the last records' commit times."""
        return max((commit_time_ms for _, commit_time_ms in self._ends.values()), default=0)

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take records in. True when they are too many now, however they are folded. Raises LockstepError."""
        if not batch.num_rows:
            return False
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self._reach(batch)
        if self._bytes < self._bytes_max:
            return False
        if not self._folds:
            return True
        # What was superseded makes room. Where little was, folding again and again would gain little.
        self._bytes = self.records().nbytes
        return self._bytes > self._bytes_max // 2

    def records(self) -> pa.Table:
        """The newest records, or all, with a column ``tag`` more. Raises LockstepError for a record without one."""
        if self._batches:
            tables = [] if self._folded is None else [self._folded]
            tables.append(with_tags(pa.Table.from_batches(self._batches)))
            self._batches = []
            taken = pa.concat_tables(tables)
            self._folded = newest(taken) if self._folds else taken
        assert self._folded is not None
        return self._folded

    def _reach(self, batch: pa.RecordBatch) -> None:
        topics, partitions = batch.column("topic"), batch.column("partition")
        if len(partitions.unique()) == len(topics.unique()) == 1:
            last = [batch.num_rows - 1]
        else:
            ends = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
            last = list({at: place for place, at in enumerate(ends)}.values())
        values = batch.column("value")
        for place in last:
            # Of a tombstone, the commit time of the delete before it.
            value = values[place].as_py() or (values[place - 1].as_py() if place else None)
            at = (topics[place].as_py(), partitions[place].as_py())
            commit_time_ms = 0 if value is None else _commit_time_ms(value)
            self._ends[at] = batch.column("offset")[place].as_py(), commit_time_ms


def _commit_time_ms(value: bytes) -> int:
    """``ts_ms`` is the envelope's last member: ``...,"ts_ms":1700000000000}``."""
    _, _, tail = value.rpartition(b":")
    return int(tail[:-1]) if tail[:-1].isdigit() else 0


@dataclass(frozen=True, slots=True)
class Read:
    """Events in the shapes that the generation has. ``has_translated``: some had an earlier shape. ``refused`` are those of which an
    expression can't be evaluated: no sink gets to see them. ``places`` are, by table, those of the events among the topic's records."""

    events: Events
    has_translated: bool
    refused: Sequence[Rejection] = ()
    places: Mapping[TableName, Sequence[int]] = field(default_factory=dict)


def events_of(records: pa.Table, task: Task) -> Read:
    """Records with tags -> events.

    Those that a later copy made void are left out. Raises LockstepError for what is no event, and for a shape that the generation was not prepared for.
    """
    topics = records.column("topic")
    distinct = topics.unique().to_pylist()
    if len(distinct) == 1:
        return _table_events(records, distinct[0], task)
    found = [_table_events(records.filter(compute.equal(topics, topic)), topic, task) for topic in distinct]
    return Read(
        Events(of_table for read in found for of_table in read.events.tables),
        any(read.has_translated for read in found),
        [rejection for read in found for rejection in read.refused],
    )


def _table_events(records: pa.Table, topic: str, task: Task) -> Read:
    """The same of one topic's records."""
    table = task.tables[topic]
    shape = task.shapes[table].schema_id
    history = task.histories.get(table)
    partitions, offsets = records.column("partition"), records.column("offset")

    def position_at(place: int) -> Position:
        return Position(topic, partitions[place].as_py(), offsets[place].as_py())

    keys: list[bytes] = records.column("key").to_pylist()
    rows: list[bytes | None] = []
    others: list[tuple[int, str]] = []  # their shape isn't the newest, or they have none
    read = RowReader().read
    for place, value in enumerate(records.column("value").to_pylist()):
        if value is None:
            rows.append(None)
            others.append((place, ""))
            continue
        row, schema_id = read(value)
        rows.append(row)
        if schema_id != shape:
            others.append((place, schema_id))
    tags: list[str] = records.column("tag").cast(pa.string()).to_pylist()
    events = TableEvents.from_log(table, keys, tags, rows, position_at)
    void = set()
    has_translated = False
    if history is None:
        # A tombstone alone doesn't say what shape it is of, but for its key.
        key_columns = task.shapes[table].key
        if any(schema_id or tuple(parse_key(keys[place])) != key_columns for place, schema_id in others):
            raise unknown_shape(table)
    else:
        for place, schema_id in others:
            event = history.translate(events[place], schema_id)
            if event is None:
                void.add(place)
            elif event.row is not None:
                rows[place] = orjson.dumps(event.row)
                has_translated = True
    refused = []
    if table in task.computed:
        for place, reason in _derive(rows, records.column(DERIVED).to_pylist(), task.computed[table]):
            if place not in void:
                refused.append(Rejection(events[place], reason))
                void.add(place)
    kept: Sequence[int] = range(len(keys))
    if void:
        kept = [place for place in kept if place not in void]
        events = events.select(kept)
    return Read(Events([events]), has_translated, refused, {table: kept})


def _derive(
    rows: list[bytes | None], derived: Sequence[str | None], columns: Sequence[Column]
) -> Iterator[tuple[int, str]]:
    """Give the rows their computed columns, and take those away that don't meet their condition. Yields places and why they are refused."""
    for place, (row, results) in enumerate(zip(rows, derived, strict=True)):
        if row is None:
            continue
        assert results is not None, "each row of such a table has been evaluated"
        found = computed_row(row, results, columns)
        if found.refused:
            yield place, found.refused
        rows[place] = found.row


def versions_of(records: pa.Table, task: Task) -> list[TableVersions]:
    """Records with tags -> all versions of the tables of which they are kept. Raises as ``events_of``."""
    found = []
    topics = records.column("topic")
    for topic in topics.unique().to_pylist():
        table = task.tables[topic]
        if table not in task.versions:
            continue
        of_topic = records.filter(compute.equal(topics, topic))
        read = _table_events(of_topic, topic, task)
        values: list[bytes | None] = of_topic.column("value").to_pylist()
        published_ms = of_topic.column("timestamp_ms")
        events = next(iter(read.events.tables), TableEvents.of(table, []))
        places = read.places[table]
        since_ms = complete_from_ms(task.complete_at_ms, lag_ms=task.compaction_lag_ms, now_ms=_now_ms())
        if read.refused:
            # Their versions are in no history, so it is complete behind them at best.
            refused = {
                (rejection.event.position.partition, rejection.event.position.offset) for rejection in read.refused
            }
            at = zip(of_topic.column("partition").to_pylist(), of_topic.column("offset").to_pylist(), strict=True)
            times = [_commit_time_ms(value) for value, one in zip(values, at, strict=True) if value and one in refused]
            since_ms = max([since_ms or 0, *(time_ms + 1 for time_ms in times)])
        deleted = {(events.keys[n], events.tags[n]) for n, place in enumerate(places) if values[place] is not None}
        kept, operations, committed_ms = [], [], []
        for n, place in enumerate(places):
            value = values[place]
            if value is None:
                if (events.keys[n], events.tags[n]) in deleted:
                    continue  # the delete event says the same, and when
                operations.append("d")
                committed_ms.append(published_ms[place].as_py())
            else:
                operations.append("d" if events.rows[n] is None else chr(value[OP_OFFSET]))
                committed_ms.append(_commit_time_ms(value))
            kept.append(n)
        found.append(TableVersions(events.select(kept), operations, committed_ms, since_ms))
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def deliver(task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply one task's records, or what its rows say is to be read, and yield its results, for ``mapInArrow``."""
    delivered = Delivered()
    remaining = iter(batches)
    try:
        _apply_all(task, remaining if task.client is None else read_log(task.client, remaining), delivered)
        _settle()
    except Exception as error:
        _forget(task)  # the next attempt starts with a new connection
        delivered.failures.append(Failure.of(error))
        for _ in remaining:  # a worker whose input isn't read to its end is thrown away
            pass
    yield to_arrow(delivered)


def _apply_all(task: Task, batches: Iterator[pa.RecordBatch], delivered: Delivered) -> None:
    window = _Window(task.window_bytes, folds=not task.versions)
    for batch in batches:
        delivered.rows += batch.num_rows
        if window.add(batch):
            _apply(task, window, delivered)
            window = _Window(task.window_bytes, folds=not task.versions)
    if not window.is_empty:
        _apply(task, window, delivered)


def _apply(task: Task, window: _Window, delivered: Delivered) -> None:
    """Apply one window and add what became of it. Raises LockstepError."""
    records = window.records()
    reached = delivered.next_offsets | window.next_offsets
    for start, end in portions(records):
        # Keys stand in the order of their newest records, so only the last portion makes the window complete.
        is_last = end == records.num_rows
        _apply_portion(
            task, records.slice(start, end - start), reached if is_last else delivered.next_offsets, delivered
        )
    delivered.next_offsets = reached
    delivered.commit_time_ms = max(delivered.commit_time_ms, window.commit_time_ms)


def portions(records: pa.Table) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of portions of about ``PORTION_BYTES``, each of one record at least."""
    start = size = 0
    for place, length in enumerate(compute.binary_length(records.column("value")).to_pylist()):
        size += length or 0
        if size >= PORTION_BYTES:
            yield start, place + 1
            start, size = place + 1, 0
    if start < records.num_rows:
        yield start, records.num_rows


def _apply_portion(
    task: Task, records: pa.Table, next_offsets: Mapping[TopicPartition, int], delivered: Delivered
) -> None:
    versions = versions_of(records, task) if task.versions else []
    if task.versions:
        records = newest(records)
    read = events_of(records, task)
    events = read.events
    # A job of the earlier shape, where the destination has no fence, may have stored the same event without the new columns.
    overwrite_equal_tags = task.overwrite_equal_tags or read.has_translated
    outcome = _sink(task).apply(
        Batch(
            events,
            next_offsets=next_offsets,
            fence=task.fence,
            overwrite_equal_tags=overwrite_equal_tags,
            versions=versions,
        )
    )
    rejections = [*outcome.rejections, *read.refused]
    delivered.applied += outcome.applied
    delivered.stale += outcome.stale
    if delivered.rejected:
        # Of an earlier window, whose rows came again in a newer version: what became of that one counts.
        tags = _tags(task, events)
        delivered.rejected = [
            one for one in delivered.rejected if tags.get((one.position.topic, one.key), "") < one.tag
        ]
    if task.rejected_before:
        delivered.resolved += _resolved(task, events, rejections)
    if rejections:
        delivered.rejected += _rejected(rejections, records)
        check_rejections(task.sink, delivered.rejected)


def _rejected(rejections: Sequence[Rejection], records: pa.Table) -> Iterator[RejectedRecord]:
    """The rejected events' records."""
    at = zip(*(records.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    place_of = {Position(*position): place for place, position in enumerate(at)}
    keys, values = records.column("key"), records.column("value")
    for rejection in rejections:
        event = rejection.event
        place = place_of[event.position]
        key, value = keys[place].as_py(), values[place].as_py()
        yield RejectedRecord(event.position, key, value, event.tag, rejection.reason)


def _tags(task: Task, events: Events) -> dict[tuple[str, bytes], str]:
    topics = {table: topic for topic, table in task.tables.items()}
    return {
        (topics[of_table.table], key): tag
        for of_table in events.tables
        for key, tag in zip(of_table.keys, of_table.tags, strict=True)
    }


def _resolved(task: Task, events: Events, rejections: Sequence[Rejection]) -> Iterator[tuple[str, bytes]]:
    """Earlier rejections whose row the sink has now taken, in the rejected version or a newer one."""
    refused = {rejection.event.position for rejection in rejections}
    topics = {table: topic for topic, table in task.tables.items()}
    for of_table in events.tables:
        topic = topics[of_table.table]
        for place, key in enumerate(of_table.keys):
            tag = task.rejected_before.get((topic, key))
            if tag is not None and of_table.tags[place] >= tag and of_table[place].position not in refused:
                yield topic, key


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
_unsettled: set[tuple[str, int]] = set()
"""Those that were opened since garbage was collected last."""


def _sink(task: Task) -> Sink:
    identity = (task.sink, task.generation)
    known = _open.get(identity)
    purpose = (task.run, task.settings)
    if known is not None and known[0] == purpose:
        return known[1]
    _forget(task)
    retries = Retries(
        sleep=time.sleep,
        monotonic=time.monotonic,
        random=random.random,
        on_wait=_wait_quietly,
        give_up_after_s=task.retry_s,
    )
    sink = retrying(task.open(task.sink, task.settings, task.generation), retries).sink
    _open[identity] = (purpose, sink)
    _unsettled.add(identity)
    return sink


def _settle() -> None:
    """Keep PySpark's collection of garbage, which follows every task, from looking at what stays: 70 ms with SQLAlchemy loaded.

    Only after a sink was opened and has been used, since its libraries are loaded by then. What earlier ones left is freed.
    """
    if _unsettled:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _unsettled.clear()


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
