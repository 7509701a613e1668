"""From where a generation reads the log. Each start position has a number and a checkpoint of its own.

Going back is always safe: what has been applied is known by its tag. Going forward leaves something out, and that is
kept with the progress: the watermark stays before the gap until it has been read after all.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from sinks.contract import CoordinationRecords, Progress, TopicPartition

_RECORD: Final = "start_position"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The ``number``-th start of a generation; ``offsets`` names every partition, None is the log's beginning.

    ``run`` tells it from another one of that number: a destination that is put back has forgotten its newest starts,
    and their checkpoints are there still.
    """

    number: int = 0
    offsets: Offsets | None = None
    topics: frozenset[str] | None = None
    """Those that are read from here. Others in ``offsets`` are set aside, and go on from there one day. None: all."""
    run: str = ""

    @property
    def directory(self) -> str:
        """What the name of its checkpoint has after the generation's."""
        return "".join(f"-{part}" for part in (self.number, self.run) if part)


def load_start_position(records: CoordinationRecords, generation: int) -> StartPosition:
    """The generation's newest start position."""
    text = records.load(f"g{generation}.{_RECORD}")
    if text is None:
        return StartPosition()
    fields: dict[str, Any] = orjson.loads(text)
    offsets = fields["offsets"]
    return StartPosition(
        fields["number"],
        None if offsets is None else {(topic, partition): offset for topic, partition, offset in offsets},
        None if fields["topics"] is None else frozenset(fields["topics"]),
        fields["run"],
    )


def begin_at_start_position(
    records: CoordinationRecords,
    generation: int,
    offsets: Offsets | None,
    *,
    topics: frozenset[str] | None = None,
) -> StartPosition:
    """The next job of the generation reads from these offsets, with a new checkpoint."""
    number = load_start_position(records, generation).number + 1
    position = StartPosition(number, offsets, topics, run=uuid.uuid4().hex[:8])
    _save(records, generation, position)
    return position


def _save(records: CoordinationRecords, generation: int, position: StartPosition) -> None:
    offsets = None
    if position.offsets is not None:
        offsets = [[topic, partition, offset] for (topic, partition), offset in position.offsets.items()]
    fields = {
        "number": position.number,
        "offsets": offsets,
        "topics": None if position.topics is None else sorted(position.topics),
        "run": position.run,
    }
    records.save(f"g{generation}.{_RECORD}", orjson.dumps(fields).decode())


def offsets_after_lsn(
    records: Iterable[ProgressRecord], lsn: int, partitions: Iterable[TopicPartition], *, epoch: int = 0
) -> Offsets:
    """Where to read on for everything that was committed after ``lsn``, and as little as possible of what was before.

    ``records`` are all that the progress topic still holds, in order. ``lsn`` is one of this ``epoch``; all that was
    published in an earlier one was before it. A partition that is in no record is read from its start.

    The bounds of a record may hold a part of the transaction after its LSN, which is published in several parts where
    it is large. That one was committed by the next record's LSN: so bounds count once there is a record with a greater
    one that isn't beyond ``lsn``.
    """
    bounds: dict[TopicPartition, int] = {}
    newest: dict[TopicPartition, int] = {}  # of the records with ``newest_lsn``
    newest_lsn = 0
    for record in records:
        before = record.epoch != epoch
        if not before and record.lsn > lsn:
            break
        if not before and record.lsn > newest_lsn:
            bounds.update(newest)
            newest.clear()
            newest_lsn = record.lsn
        known = bounds if before else newest
        for topic, ends in record.bounds.items():
            known.update({(topic, partition): end for partition, end in enumerate(ends)})
    return {partition: bounds.get(partition, 0) for partition in partitions}


def offsets_of_topics(
    topics: Iterable[TopicPartition], start: StartPosition, committed: Offsets | None, progress: Progress | None
) -> Offsets:
    """Where to read on when other topics are read than from this ``start`` on. Pure.

    ``topics`` are the partitions that are read from now on, ``committed`` is how far the ones were that were read until
    now, None where nothing is known of that. Those that aren't read any more keep their position, for when they are
    again. A topic that comes back goes on no further than the destination says: it may have been put back meanwhile.
    """
    known = {**(start.offsets or {}), **(committed or {})}
    was_read = {topic for topic, _ in committed or {}}
    applied = {} if progress is None else progress.next_offsets
    read = {at: known.get(at, 0) if at[0] in was_read else min(known.get(at, 0), applied.get(at, 0)) for at in topics}
    return {**known, **read}


def skipped_by(start: Offsets | None, progress: Progress | None) -> Mapping[TopicPartition, int]:
    """Partitions of which something before ``start`` isn't applied, with the end of what is applied after the gap."""
    if start is None:
        return {}
    applied = {} if progress is None else progress.next_offsets
    beyond = {} if progress is None else progress.skipped
    return {
        partition: max(offset, beyond.get(partition, 0))
        for partition, offset in start.items()
        if offset > applied.get(partition, 0)
    }
