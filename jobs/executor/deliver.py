"""Applies records, the newest of each key, to the sink, and collects the results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from cdc.model.errors import (
    ConfigurationError,
    Fenced,
    LockstepError,
    PerhapsStoreRefuses,
    PositionMismatch,
    StoreRefuses,
    Unavailable,
    UnsupportedChange,
)
from cdc.model.event import Events, Position, TableEvents
from cdc.model.table import TableName
from jobs.executor.decode import decode
from jobs.executor.open_sinks import close_sink, sink_for
from jobs.executor.result import (
    RejectedEvent,
    Result,
    check_rejections,
    without_large_values,
)
from jobs.executor.row_versions import versions_of
from jobs.executor.shape_history import ShapesOutdated
from jobs.executor.task_input import Task
from jobs.executor.window import newest
from sinks.contract import Batch, Outcome, Rejection, Sink, TablesRefused, TopicPartition

# pyarrow makes its compute functions at import, so their stubs lack most of them.
_compute: Any = pyarrow.compute

_OF_NO_TABLE: Final = (
    *(Unavailable, Fenced, PositionMismatch, ShapesOutdated),
    *(StoreRefuses, ConfigurationError, UnsupportedChange),
)
"""Errors about the whole destination, the way there, another job, or what was read: no single table is to blame."""

PORTION_BYTES: Final = 24 * 1024 * 1024
"""How much of a window becomes Python objects at once: these take several times the memory."""


def portions(records: pa.Table) -> Iterator[tuple[int, int]]:
    """First index and end of slices of about ``PORTION_BYTES``, each with at least one record."""
    if records.num_rows and records.column("value").nbytes < PORTION_BYTES:
        yield 0, records.num_rows
        return
    start = size = 0
    for index, length in enumerate(_compute.binary_length(records.column("value")).to_pylist()):
        size += length or 0
        if size >= PORTION_BYTES:
            yield start, index + 1
            start, size = index + 1, 0
    if start < records.num_rows:
        yield start, records.num_rows


def apply_portion(
    task: Task, sink: Sink, records: pa.Table, next_offsets: Mapping[TopicPartition, int], result: Result
) -> None:
    """Apply these records, and add the outcome to ``result``. Raises LockstepError."""
    versions = versions_of(records, task) if task.versions else []
    if task.versions:
        records = newest(records)
    decoded = decode(records, task)
    events = decoded.events
    # If the destination has no fence, a job of the earlier shape may have stored the event without new columns.
    whole = Batch(
        events,
        fence=task.fence,
        overwrite_equal_tags=decoded.has_translated,
        versions=versions,
        identities=task.identities,
    )
    *before, last = _without_open_rejections(task, whole) if task.rejected_before else [whole]
    outcomes = [_applied(task, sink, batch) for batch in (*before, replace(last, next_offsets=next_offsets))]
    rejections = [*(rejection for outcome in outcomes for rejection in outcome.rejections), *decoded.rejections]
    result.applied += sum(outcome.applied for outcome in outcomes)
    result.stale += sum(outcome.stale for outcome in outcomes)
    if result.rejected:
        # Rows of an earlier window that came again in a newer version: the newer one's outcome counts.
        tags = tags_of(task, events)
        result.rejected = [
            event for event in result.rejected if tags.get((event.position.topic, event.key), "") < event.tag
        ]
    if task.rejected_before:
        result.resolved += _resolved(task, events, rejections)
    if rejections:
        result.rejected = list(without_large_values([*result.rejected, *with_records(rejections, records)]))
        # If a row came and was left out again after that, the newer rejection replaces the open one.
        again = {(event.position.topic, event.key) for event in result.rejected}
        result.resolved = [row for row in result.resolved if row not in again]
        check_rejections(task.sink, result.rejected, None if task.steps is not None else task.tables)


def _applied(task: Task, sink: Sink, batch: Batch) -> Outcome:
    """Apply a batch. Raises TablesRefused with the tables that the destination refuses on their own, if any. A step is
    never repeated: a consistent sink stops as a whole."""
    try:
        return sink.apply(batch)
    except _OF_NO_TABLE:
        raise
    except LockstepError:
        if task.steps is not None:
            raise
        close_sink(task)  # it may be in the middle of something
        errors = _refused_alone(sink_for(task), batch)
        if not errors:
            raise
        raise TablesRefused(errors) from None


def _refused_alone(sink: Sink, batch: Batch) -> dict[TableName, LockstepError]:
    """The tables of a batch that the destination refuses, each with its error. Applies each table on its own to find
    out. What succeeds comes again with the batch, since the offsets aren't stored with it. Raises StoreRefuses if the
    destination lacks rights or memory for every one of several tables."""
    versions = {each.events.table: [each] for each in batch.versions}
    events = {each.table: each for each in Events.of(batch.events).tables}
    errors: dict[TableName, LockstepError] = {}
    for table in sorted({*events, *versions}):
        own = Events([events[table]] if table in events else [])
        try:
            sink.apply(replace(batch, events=own, versions=versions.get(table, []), next_offsets={}))
        except _OF_NO_TABLE:
            raise
        except LockstepError as error:
            errors[table] = error
    are_all_refused = len(errors) == len({*events, *versions}) > 1
    if are_all_refused and all(isinstance(error, PerhapsStoreRefuses) for error in errors.values()):
        first = next(iter(errors.values()))
        raise StoreRefuses(first.message, hint=first.hint)
    return errors


def _without_open_rejections(task: Task, batch: Batch) -> Iterator[Batch]:
    """Split a batch: first the events whose rejection is open, if any, then all others. The destination may have been
    allowed to forget deleted rows up to a tag above theirs, since all but these was applied. An event that is refused
    again must not pass for one that the destination has: its rejection would be closed."""
    topics = {table: topic for topic, table in task.tables.items()}

    def parts(events: TableEvents) -> tuple[list[int], list[int]]:
        """The indexes of events with an open rejection, and of the others."""
        topic = topics[events.table]
        found: tuple[list[int], list[int]] = [], []
        for index, (key, tag) in enumerate(zip(events.keys, events.tags, strict=True)):
            found[task.rejected_before.get((topic, key)) != tag].append(index)
        return found

    tables = [(events, parts(events)) for events in Events.of(batch.events).tables]
    if not any(was_rejected for _, (was_rejected, _) in tables):
        yield batch
        return
    versions = [(each, parts(each.events)) for each in batch.versions]
    for number in range(2):
        yield replace(
            batch,
            events=Events(events.select(of_table[number]) for events, of_table in tables),
            versions=[each.select(of_table[number]) for each, of_table in versions],
            never_applied=batch.never_applied or number == 0,
        )


def with_records(rejections: Sequence[Rejection], records: pa.Table) -> Iterator[RejectedEvent]:
    """The rejections with their records' keys and values."""
    positions = zip(*(records.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    index_of = {Position(*position): index for index, position in enumerate(positions)}
    keys, values = records.column("key"), records.column("value")
    for rejection in rejections:
        event = rejection.event
        index = index_of[event.position]
        key, value = keys[index].as_py(), values[index].as_py()
        yield RejectedEvent(event.position, key, value, event.tag, rejection.reason)


def tags_of(task: Task, events: Events) -> dict[tuple[str, bytes], str]:
    """The last tag of each topic and key."""
    topics = {table: topic for topic, table in task.tables.items()}
    return {
        (topics[table_events.table], key): tag
        for table_events in events.tables
        for key, tag in zip(table_events.keys, table_events.tags, strict=True)
    }


def _resolved(task: Task, events: Events, rejections: Sequence[Rejection]) -> Iterator[tuple[str, bytes]]:
    """Open rejections whose row the sink has now taken, in the rejected version or a newer one."""
    rejected = {rejection.event.position for rejection in rejections}
    topics = {table: topic for topic, table in task.tables.items()}
    for table_events in events.tables:
        topic = topics[table_events.table]
        for index, key in enumerate(table_events.keys):
            tag = task.rejected_before.get((topic, key))
            if tag is not None and table_events.tags[index] >= tag and table_events[index].position not in rejected:
                yield topic, key
