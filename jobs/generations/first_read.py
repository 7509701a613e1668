"""What a generation reads that has no progress yet, and since when: the coordination record ``g<n>.first_read``.

A job writes it before its first task. Rows may be there from then on, also when no batch ever comes to its end. Their
deletes are missed where the topics aren't read again for longer than they keep tombstones. Progress says that something
was applied, so it can't tell that.

Of a view it is the state that goes on: one that is whole may have rows without their deletes. Before any of its states
is whole, each job builds it from the log's beginning, and begins the record anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from sinks.contract import CoordinationRecords, Progress, TopicPartition
from sinks.progress_json import dump_progress, load_progress

_NOTHING: Final = Progress({}, 0, 0, 0, {})


def load_first_read(records: CoordinationRecords, generation: int) -> Progress | None:
    """As the progress of a generation that has none: nothing is applied of all that was begun. None: nothing was.

    Raises what the destination raises.
    """
    text = records.load(first_read_name(generation))
    return None if text is None else load_progress(text)


def first_read(
    before: Progress | None, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str], *, now_ms: int
) -> Progress:
    """What the record says once these partitions are read too. ``before`` is what it says until then. Pure."""
    known = before or replace(_NOTHING, updated_at_ms=now_ms)
    return replace(
        known,
        next_offsets={**dict.fromkeys(partitions, 0), **known.next_offsets},
        topic_ids={**topic_ids, **known.topic_ids},
    )


def dump_first_read(read: Progress) -> str:
    """The text of the record."""
    return dump_progress(read).decode()


def first_read_name(generation: int) -> str:
    """The coordination record."""
    return f"g{generation}.first_read"
