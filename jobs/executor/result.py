"""A task's result for the driver, and its form in Arrow: counts, offsets, rejected events and errors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.model.errors import (
    DataLost,
    Fenced,
    LockstepError,
    NeedsRebuild,
    Overtaken,
    PositionMismatch,
    Unavailable,
    UnsupportedChange,
    bug,
)
from cdc.model.event import Position
from cdc.model.table import TableName
from jobs.executor.shape_history import ShapesOutdated
from sinks.contract import TablesRefused, TopicPartition
from views.figures import ViewFigures

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_SCHEMA: Final = "facts string, value binary"
"""Spark's schema of a task's result: JSON, and for a rejection the event's original value."""

REJECTIONS_MAX: Final = 10_000
"""The most rejections in one batch. More mean a wrong mapping: the job stops, and the batch doesn't count as done."""

VALUES_BYTES_MAX: Final = 8 * 1024 * 1024
"""The most bytes of rejected events' values in a task's result. The driver reads the others from the log, one at a
time. A view's row isn't in the log, so its task ends at this size and the next one goes on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the driver. ``table`` is the table to blame, None if the error concerns all of them."""

    kind: str
    message: str
    hint: str | None = None
    retry_after_s: float = 0.0
    table: TableName | None = None

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """The failure of an error, without text that may quote a row."""
        if isinstance(error, Unavailable):
            kind = "DataLost" if isinstance(error, DataLost) else "Unavailable"
            return cls(kind, error.message, error.hint, error.retry_after_s)
        if isinstance(error, LockstepError):
            return cls(type(error).__name__, error.message, error.hint)
        failure = bug(error)
        return cls(type(error).__name__, failure.message, failure.hint)

    @classmethod
    def all_of(cls, error: Exception) -> "list[Failure]":
        """One failure for each table that the error is about."""
        if isinstance(error, TablesRefused):
            return [replace(cls.of(each), table=table) for table, each in error.errors.items()]
        return [cls.of(error)]

    def to_json(self) -> list[Any]:
        table = None if self.table is None else [self.table.schema, self.table.name]
        return [self.kind, self.message, self.hint, self.retry_after_s, table]

    @classmethod
    def from_json(cls, fields: list[Any]) -> "Failure":
        *failure, table = fields
        kind, message, hint, retry_after_s = failure
        return cls(kind, message, hint, retry_after_s, None if table is None else TableName(*table))

    def error(self) -> LockstepError:
        """The error again, of a class as close to its own as matters to the driver."""
        for unavailable in (Unavailable, DataLost):
            if self.kind == unavailable.__name__:
                return unavailable(self.message, hint=self.hint, retry_after_s=self.retry_after_s)
        for cls in (Fenced, Overtaken, PositionMismatch, NeedsRebuild, UnsupportedChange, ShapesOutdated):
            if self.kind == cls.__name__:
                return cls(self.message, hint=self.hint)
        return LockstepError(self.message, hint=self.hint)


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """A ``Rejection`` as it reaches the driver: ``key`` and ``value`` are its record's own bytes. A tombstone has no
    value. With ``is_in_log`` the value was too large to send. ``tag`` has 28 hex digits."""

    position: Position
    key: bytes
    value: bytes | None
    tag: str
    reason: str
    is_in_log: bool = False

    def to_json(self) -> list[Any]:
        at = self.position
        value = None if self.value is None else self.value.decode()
        return [at.topic, at.partition, at.offset, self.key.decode(), value, self.tag, self.reason, self.is_in_log]

    @classmethod
    def from_json(cls, fields: list[Any]) -> "RejectedEvent":
        *position, key, value, tag, reason, is_in_log = fields
        given = None if value is None else value.encode()
        return cls(Position(*position), key.encode(), given, tag, reason, is_in_log)


_COUNTS: Final = ("rows", "applied", "stale")
_FLAGS: Final = ("lacks_record", "awaits_copy", "has_more")
"""Fields of a result: sums over tasks, and whether one of the tasks had it."""
_AS_THEY_ARE: Final = (*_COUNTS, "commit_time_ms", *_FLAGS, "shard")


@dataclass(slots=True)
class Result:
    """The result of a task, or of a whole batch. ``rows`` counts records; ``applied`` and ``stale`` count folded
    events. ``commit_time_ms`` is the newest event's, in milliseconds since 1970."""

    rows: int = 0
    applied: int = 0
    stale: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    commit_time_ms: int = 0
    rejected: list[RejectedEvent] = field(default_factory=list)
    resolved: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and key of earlier rejections that this batch has made void."""
    lacks_record: bool = False
    """For a view or a consistent sink: the newest events aren't applied, since no newer progress record came."""
    awaits_copy: bool = False
    """The reason for ``lacks_record`` is a copy of one of its tables, not that nobody writes such records."""
    has_more: bool = False
    """For a view: the task ended only for the size of its rejections, and must go on once they are stored."""
    failures: list[Failure] = field(default_factory=list)
    view: ViewFigures | None = None
    """For a view's task: the figures at its end."""
    shard: int | None = None
    """The task's shard of a view; None if the view isn't divided, and in the sum of several tasks."""
    reached: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    """``next_offsets`` of each shard. Each of them reads all partitions."""
    views: dict[int, ViewFigures] = field(default_factory=dict)
    """``view`` of each shard."""

    def add(self, other: "Result") -> None:
        """Add another task's result. Two tasks never share a partition, except those of a view's shards."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("commit_time_ms", *_FLAGS):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        if other.shard is None:
            self.next_offsets |= other.next_offsets
            self.view = other.view or self.view
        else:
            if other.next_offsets:
                self.reached[other.shard] = other.next_offsets
            if other.view is not None:
                self.views[other.shard] = other.view
        self.reached |= other.reached
        self.views |= other.views
        self.rejected += other.rejected
        self.resolved += other.resolved
        self.failures += other.failures


def without_large_values(rejected: Iterable[RejectedEvent]) -> Iterator[RejectedEvent]:
    """The same events, with no more bytes of values than a task returns: a few large rows are no reason to stop."""
    size = 0
    for event in rejected:
        size += len(event.value or b"")
        yield event if event.value is None or size <= VALUES_BYTES_MAX else replace(event, value=None, is_in_log=True)


def check_rejections(
    sink: str, rejected: Sequence[RejectedEvent], tables: Mapping[str, TableName] | None = None
) -> None:
    """Raise LockstepError if so many were rejected that single rows can't be to blame. With ``tables``, by topic, raise
    TablesRefused if one table has at least half of them."""
    if len(rejected) <= REJECTIONS_MAX:
        return
    ((topic, count),) = Counter(event.position.topic for event in rejected).most_common(1)
    first = next(event for event in rejected if event.position.topic == topic)
    error = LockstepError(
        f"sink {sink!r} rejected {len(rejected)} events of one batch, which isn't the rows' fault; "
        f"the first reason: {first.reason}",
        hint="mend what the reason says and start the job again; the batch is read again, nothing was skipped",
    )
    if tables is None or topic not in tables or 2 * count < len(rejected):
        raise error
    raise TablesRefused({tables[topic]: error})


def to_arrow(result: Result) -> "pa.RecordBatch":
    """A row with counts, offsets and failures, then a row per rejection, in ``RESULT_SCHEMA``."""
    import pyarrow as pa  # commands without a task import this module too

    whole: dict[str, Any] = {
        **{name: getattr(result, name) for name in _AS_THEY_ARE},
        "next_offsets": [[*partition, offset] for partition, offset in result.next_offsets.items()],
        "resolved": [[topic, key.decode()] for topic, key in result.resolved],
        "failures": [failure.to_json() for failure in result.failures],
        "view": None if result.view is None else result.view.to_json(),
    }
    facts = [whole, *({"rejected": replace(event, value=None).to_json()} for event in result.rejected)]
    values = [None, *(event.value for event in result.rejected)]
    return pa.RecordBatch.from_arrays(
        [pa.array([orjson.dumps(fact).decode() for fact in facts], pa.string()), pa.array(values, pa.binary())],
        schema=pa.schema([("facts", pa.string()), ("value", pa.binary())]),
    )


def from_arrow(table: "pa.Table") -> Result:
    """The results of all tasks of a batch -> one result."""
    total = Result()
    for text, value in zip(table.column("facts").to_pylist(), table.column("value").to_pylist(), strict=True):
        fact = orjson.loads(text)
        if "rejected" in fact:
            total.rejected.append(replace(RejectedEvent.from_json(fact["rejected"]), value=value))
        else:
            total.add(
                Result(
                    **{name: fact[name] for name in _AS_THEY_ARE},
                    next_offsets={(topic, partition): offset for topic, partition, offset in fact["next_offsets"]},
                    resolved=[(topic, key.encode()) for topic, key in fact["resolved"]],
                    failures=[Failure.from_json(failure) for failure in fact["failures"]],
                    view=None if fact["view"] is None else ViewFigures.from_json(fact["view"]),
                )
            )
    return total
