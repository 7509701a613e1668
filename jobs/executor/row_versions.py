"""Records with tags -> all versions, for tables whose versions the sink stores."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from cdc.event_format.decode import commit_time_ms_of, op_of
from cdc.model.event import TableEvents
from cdc.model.table import TableName
from jobs.clock import now_ms
from jobs.executor.decode import Decoded, decode_topic
from jobs.executor.task_input import Task
from sinks.contract import TableVersions

# pyarrow makes its compute functions at import, so their stubs lack most of them.
_compute: Any = pyarrow.compute


def versions_of(records: pa.Table, task: Task) -> list[TableVersions]:
    """One entry per table of ``task.versions`` that has records here. Raises as ``decode``."""
    topics = records.column("topic")
    distinct = topics.unique().to_pylist()
    return [
        _table_versions(
            records if len(distinct) == 1 else records.filter(_compute.equal(topics, topic)),
            topic,
            task.tables[topic],
            task,
        )
        for topic in distinct
        if task.tables[topic] in task.versions
    ]


def complete_from_ms(complete_at_ms: int, *, lag_ms: int, now_ms: int) -> int | None:
    """Since when compaction can't have removed any version that wasn't read by ``now_ms``; None if it removed none at
    all. Times are in milliseconds since 1970. ``complete_at_ms`` is when the whole log was last read, ``lag_ms`` how
    long, at least, topics retain each version."""
    return None if now_ms - complete_at_ms < lag_ms else now_ms - lag_ms


def _table_versions(records: pa.Table, topic: str, table: TableName, task: Task) -> TableVersions:
    decoded = decode_topic(records, topic, task)
    values: list[bytes | None] = records.column("value").to_pylist()
    published_ms = records.column("timestamp_ms")
    events = next(iter(decoded.events.tables), TableEvents.of(table, []))
    indexes = decoded.indexes[table]
    since_ms = complete_from_ms(task.complete_at_ms, lag_ms=task.compaction_lag_ms, now_ms=now_ms())
    # These versions reach no history, so it is complete after them at best.
    missing_until_ms = [time_ms + 1 for time_ms in _rejected_times_ms(records, values, decoded)]
    deleted = set()
    if None in values:
        deleted = {(events.keys[n], events.tags[n]) for n, index in enumerate(indexes) if values[index] is not None}
    kept, operations, committed_ms = [], [], []
    for n, index in enumerate(indexes):
        value = values[index]
        if value is None:
            if (events.keys[n], events.tags[n]) in deleted:
                continue  # the delete event says the same, and when
            operations.append("d")
            committed_ms.append(published_ms[index].as_py())
        else:
            operations.append("d" if events.rows[n] is None else op_of(value).decode())
            committed_ms.append(commit_time_ms_of(value))
            if operations[-1] == "r":  # nothing is known of what led to a copied row
                missing_until_ms.append(committed_ms[-1])
        kept.append(n)
    if len(kept) < len(events):
        events = events.select(kept)
    return TableVersions(events, operations, committed_ms, since_ms, max(missing_until_ms, default=None))


def _rejected_times_ms(records: pa.Table, values: Sequence[bytes | None], decoded: Decoded) -> list[int]:
    """The commit times of the rejected events."""
    if not decoded.rejections:
        return []
    rejected = {
        (rejection.event.position.partition, rejection.event.position.offset) for rejection in decoded.rejections
    }
    positions = zip(records.column("partition").to_pylist(), records.column("offset").to_pylist(), strict=True)
    return [
        commit_time_ms_of(value)
        for value, position in zip(values, positions, strict=True)
        if value and position in rejected
    ]
