"""What a task returns to the driver, and its form in Arrow: counts, offsets, rejected events and errors."""

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
"""Spark's schema of what a task returns: JSON, and for a rejection the event's original value."""

REJECTIONS_MAX: Final = 10_000
"""Rejections of one batch. More of them mean a wrong mapping: the job stops, and the batch doesn't count as done."""

VALUES_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much of rejected events' values a task returns. The driver reads the others from the log, one at a time.

A row of a view isn't in the log: its task ends there, and the next one goes on.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the driver. ``table`` is the one that it is about, None where it is about all of them."""

    kind: str
    message: str
    hint: str | None = None
    retry_after_s: float = 0.0
    table: TableName | None = None

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """An error without what may quote a row."""
        if isinstance(error, Unavailable):
            kind = "DataLost" if isinstance(error, DataLost) else "Unavailable"
            return cls(kind, error.message, error.hint, error.retry_after_s)
        if isinstance(error, LockstepError):
            return cls(type(error).__name__, error.message, error.hint)
        told = bug(error)
        return cls(type(error).__name__, told.message, told.hint)

    @classmethod
    def all_of(cls, error: Exception) -> "list[Failure]":
        """One for each table that the error is about."""
        if isinstance(error, TablesRefused):
            return [replace(cls.of(each), table=table) for table, each in error.errors.items()]
        return [cls.of(error)]

    def to_json(self) -> list[Any]:
        table = None if self.table is None else [self.table.schema, self.table.name]
        return [self.kind, self.message, self.hint, self.retry_after_s, table]

    @classmethod
    def from_json(cls, fields: list[Any]) -> "Failure":
        *told, table = fields
        kind, message, hint, retry_after_s = told
        return cls(kind, message, hint, retry_after_s, None if table is None else TableName(*table))

    def error(self) -> LockstepError:
        """The error again, as near to its own class as matters to the driver."""
        for unavailable in (Unavailable, DataLost):
            if self.kind == unavailable.__name__:
                return unavailable(self.message, hint=self.hint, retry_after_s=self.retry_after_s)
        for cls in (Fenced, Overtaken, PositionMismatch, NeedsRebuild, UnsupportedChange, ShapesOutdated):
            if self.kind == cls.__name__:
                return cls(self.message, hint=self.hint)
        return LockstepError(self.message, hint=self.hint)


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """A ``Rejection`` as it reaches the driver: ``key`` and ``value`` are its record's own bytes.

    A tombstone has no value. With ``is_in_log`` the value was too large to come along. ``tag`` has 28 hex digits.
    """

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
"""Fields of a result: what several tasks had together, and whether one of them had it."""
_AS_THEY_ARE: Final = (*_COUNTS, "commit_time_ms", *_FLAGS, "shard")
"""In JSON."""


@dataclass(slots=True)
class Result:
    """What became of the records of a task, or of a whole batch.

    ``rows`` counts records; ``applied`` and ``stale`` count folded events. ``commit_time_ms`` is the newest of them, in
    milliseconds since 1970.
    """

    rows: int = 0
    applied: int = 0
    stale: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    commit_time_ms: int = 0
    rejected: list[RejectedEvent] = field(default_factory=list)
    resolved: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and key of earlier rejections that this batch has made void."""
    lacks_record: bool = False
    """Of a view, or a consistent sink: no progress record came that is newer than all that was read, so the newest
    events aren't taken in."""
    awaits_copy: bool = False
    """Why, where it isn't that nobody writes such records: one of its tables is being copied."""
    has_more: bool = False
    """Of a view: the task has ended for the size of its rejections alone, and is to go on once they are kept."""
    failures: list[Failure] = field(default_factory=list)
    view: ViewFigures | None = None
    """Of a view's task, as of its end."""
    shard: int | None = None
    """Which shard of a view the task keeps; None where it isn't divided, and for what several tasks returned."""
    reached: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    """``next_offsets`` of each shard. Each of them reads all partitions."""
    views: dict[int, ViewFigures] = field(default_factory=dict)
    """``view`` of each shard."""

    def add(self, other: "Result") -> None:
        """Take another task's results in. Two tasks never share a partition, but for those of a view's shards."""
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
    """The same events, whose values are no more than a task returns: a few large rows are no reason to stop."""
    size = 0
    for event in rejected:
        size += len(event.value or b"")
        yield event if event.value is None or size <= VALUES_BYTES_MAX else replace(event, value=None, is_in_log=True)


def check_rejections(
    sink: str, rejected: Sequence[RejectedEvent], tables: Mapping[str, TableName] | None = None
) -> None:
    """Raise LockstepError when so many were rejected that it can't be the rows.

    With ``tables``, by topic, it is TablesRefused for the one that most of them are of.
    """
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
    import pyarrow as pa  # not with the words above, which commands read that have no task

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
    """What all tasks of a batch returned -> one result."""
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
