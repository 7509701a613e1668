"""From where a generation reads the log. A new start is a new *reading*, with a checkpoint of its own and an offset for every partition.

Going back is always safe: what has been applied is known by its tag. Going forward leaves something out, and that is kept with the
progress: the watermark stays before the gap until it has been read after all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from sinks.contract import CoordinationRecords, Progress, TopicPartition

_NOTE: Final = "reading"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The ``number``-th start of a generation; ``start`` is None for the log's beginning.

    ``overwrite_equal_tags`` says that events which the destination has in the same version are to be written again.
    """

    number: int = 0
    start: Offsets | None = None
    overwrite_equal_tags: bool = False

    @property
    def directory(self) -> str:
        """What is added to the generation in the name of its checkpoint."""
        return f"-{self.number}" if self.number else ""


def load_start_position(records: CoordinationRecords, generation: int) -> StartPosition:
    """The reading that is under way."""
    text = records.load(f"g{generation}.{_NOTE}")
    if text is None:
        return StartPosition()
    note: dict[str, Any] = orjson.loads(text)
    start = note["start"]
    return StartPosition(
        note["number"],
        None if start is None else {(topic, partition): offset for topic, partition, offset in start},
        note["overwrite_equal_tags"],
    )


def begin_at_start_position(
    records: CoordinationRecords, generation: int, start: Offsets | None, *, overwrite_equal_tags: bool = False
) -> StartPosition:
    """Start anew; the next job of the generation reads from there."""
    reading = StartPosition(load_start_position(records, generation).number + 1, start, overwrite_equal_tags)
    _save(records, generation, reading)
    return reading


def end_replay(records: CoordinationRecords, generation: int) -> None:
    """From now on, a row of the same tag is left as it is again."""
    _save(records, generation, replace(load_start_position(records, generation), overwrite_equal_tags=False))


def _save(records: CoordinationRecords, generation: int, reading: StartPosition) -> None:
    start = reading.start
    pairs = None if start is None else [[topic, partition, offset] for (topic, partition), offset in start.items()]
    note = {"number": reading.number, "start": pairs, "overwrite_equal_tags": reading.overwrite_equal_tags}
    records.save(f"g{generation}.{_NOTE}", orjson.dumps(note).decode())


def offsets_behind_lsn(records: Iterable[ProgressRecord], lsn: int, partitions: Iterable[TopicPartition]) -> Offsets:
    """Where to read on for everything that was committed after ``lsn``, and as little as possible of what was before.

    ``records`` are all that the progress topic still holds, in order. A partition of which they know nothing is read from its start.
    """
    bounds: dict[TopicPartition, int] = {}
    for record in records:
        if record.lsn > lsn:
            break
        for topic, ends in record.bounds.items():
            bounds.update({(topic, partition): end for partition, end in enumerate(ends)})
    return {at: bounds.get(at, 0) for at in partitions}


def skipped_by(start: Offsets | None, progress: Progress | None) -> Mapping[TopicPartition, int]:
    """Partitions of which something before ``start`` has not been applied, with the offset behind what has been beyond the gap."""
    if start is None:
        return {}
    applied = {} if progress is None else progress.next_offsets
    beyond = {} if progress is None else progress.skipped
    return {at: max(offset, beyond.get(at, 0)) for at, offset in start.items() if offset > applied.get(at, 0)}
