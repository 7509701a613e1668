"""What a generation without progress has begun to read, and since when: the coordination record ``g<n>.first_read``.

A job writes it before its first task. From then on there may be rows, even if no batch ever completes, and their
deletes are missed if the topics aren't read again for longer than they retain tombstones. Progress can't say so, since
it says that something was applied.

In a view the state goes on: a whole state may have rows without their deletes. Until one of its states is whole, each
job builds it from the log's beginning, and begins the record anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from sinks.contract import CoordinationRecords, Progress, TopicPartition
from sinks.progress_json import dump_progress, load_progress

_NOTHING: Final = Progress({}, 0, 0, 0, {})


def load_first_read(records: CoordinationRecords, generation: int) -> Progress | None:
    """As progress with nothing applied; None if no read has begun. Raises what the destination raises."""
    text = records.load(first_read_name(generation))
    return None if text is None else load_progress(text)


def first_read(
    before: Progress | None, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str], *, now_ms: int
) -> Progress:
    """The record once these partitions are read too. ``before`` is the record until then. Pure."""
    known = before or replace(_NOTHING, updated_at_ms=now_ms)
    return replace(
        known,
        next_offsets={**dict.fromkeys(partitions, 0), **known.next_offsets},
        topic_ids={**topic_ids, **known.topic_ids},
    )


def dump_first_read(read: Progress) -> str:
    return dump_progress(read).decode()


def first_read_name(generation: int) -> str:
    return f"g{generation}.first_read"
