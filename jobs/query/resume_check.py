"""Whether a sink may go on where it was. Refuses every case in which events would be missing unnoticed. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import PositionMismatch
from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from sinks.contract import Progress, TopicPartition

FOR_EVER_MS: Final = 1 << 62
"""How long a topic that isn't compacted retains a tombstone, or a version: compaction removes neither."""

_NOTHING: Final = Progress({}, 0, 0, 0, {})

_CLOCKS_DIFFER_MS: Final = 600_000
"""How much the clocks of two synchronized machines may differ, or a clock may be set back."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the brokers say of a topic now."""

    topic_id: str
    partitions: int
    delete_retention_ms: int
    compaction_lag_ms: int = 0
    """Records younger than this are there, whatever came after them."""


def check_resume(
    sink: str,
    progress: Progress | None,
    *,
    topics: Mapping[str, TopicFacts],
    begins: Offsets,
    ends: Offsets,
    now_ms: int,
) -> None:
    """Raise PositionMismatch if going on would lose something; the hint is the way out. ``progress`` is the
    destination's; None means to read everything. ``topics`` are those to read, with their present begins and ends."""
    known = progress or _NOTHING
    _check_log_is_whole(sink, known, begins)
    _check_topics(sink, known, topics)
    check_read_is_there(sink, known.reached, ends)  # after ``_check_topics``, since a recreated topic may be shorter
    _check_absence(sink, known, topics=topics, ends=ends, now_ms=now_ms)


def _check_log_is_whole(sink: str, progress: Progress, begins: Offsets) -> None:
    """What is still to be read must exist. Compaction leaves a topic's beginning, so somebody deleted records."""
    positions = progress.positions
    for at, begin in sorted(begins.items()):
        if (first_wanted := positions.get(at, 0)) < begin:
            topic, partition = at
            raise PositionMismatch(
                f"topic {topic}, partition {partition}, begins at {begin}: the records from {first_wanted} on, which"
                f" sink {sink!r} has still to read, were deleted",
                hint="rows that weren't written since are missing in the log: let capture copy the table again"
                " (lockstep snapshot table TABLE), then build with `lockstep rebuild --trimmed`, which compares"
                " with the source",
            )


def check_read_is_there(sink: str, read: Mapping[TopicPartition, int], ends: Offsets) -> None:
    """Raise PositionMismatch if partitions end before what was ``read``: later records there would be skipped."""
    for at, end in sorted(ends.items()):
        if read.get(at, 0) > end:
            raise _put_back(sink, at, read=read[at], end=end)


def check_epochs(sink: str, progress: Progress, records: Iterable[ProgressRecord]) -> None:
    """Raise PositionMismatch if the sink had read more than existed when an epoch began that it doesn't know.
    ``records`` are all in the progress topic, in order. An epoch's first record says where each topic stood then."""
    epoch = known_epoch(progress)
    for record in records:
        if record.epoch <= epoch:
            continue
        epoch = record.epoch
        ends = {(topic, number): end for topic, of in record.bounds.items() for number, end in enumerate(of)}
        for at, read in sorted(progress.next_offsets.items()):
            if read > ends.get(at, read):
                raise _put_back(sink, at, read=read, end=ends[at], then=" when capture was recovered")


def known_epoch(progress: Progress) -> int:
    """The newest epoch of the log that a sink knows."""
    return max(progress.epoch, progress.log_epoch)


def _put_back(sink: str, at: TopicPartition, *, read: int, end: int, then: str = "") -> PositionMismatch:
    topic, partition = at
    return PositionMismatch(
        f"sink {sink!r} has read topic {topic}, partition {partition}, up to {read}, but the end was {end}{then}:"
        " Kafka was put back to an earlier copy, or has lost its newest records",
        hint="the sink may have rows that no topic has. Start capture, and where it stops, do what it says; then"
        f" {_rebuild(sink, 'rows that only the lost records had would stay')}",
    )


def check_same_topics(sink: str, known: Mapping[str, TopicFacts], now: Mapping[str, tuple[str, int]]) -> None:
    """Raise PositionMismatch if a topic that a running job reads was recreated, or has another number of partitions.
    ``now`` has the topics' ids and numbers of partitions. Nothing else would notice: reading goes on at its offsets,
    past the new topic's first records."""
    for topic, facts in known.items():
        topic_id, partitions = now.get(topic, (facts.topic_id, facts.partitions))
        if topic_id != facts.topic_id:
            raise _recreated(sink, topic)
        if partitions != facts.partitions:
            raise _other_partitions(sink, topic, now=partitions, before=facts.partitions)


def _check_topics(sink: str, progress: Progress, topics: Mapping[str, TopicFacts]) -> None:
    for topic, facts in topics.items():
        known_topic_id = progress.topic_ids.get(topic)
        if known_topic_id is not None and known_topic_id != facts.topic_id:
            raise _recreated(sink, topic)
        known_partitions = sum(1 for name, _ in progress.next_offsets if name == topic)
        if known_partitions and known_partitions != facts.partitions:
            raise _other_partitions(sink, topic, now=facts.partitions, before=known_partitions)


def _recreated(sink: str, topic: str) -> PositionMismatch:
    return PositionMismatch(
        f"topic {topic} was recreated since sink {sink!r} read it last",
        hint="a recreated topic lacks the rows that weren't written since: have capture copy its table"
        f" (lockstep snapshot table TABLE), then lockstep rebuild {sink} --switch",
    )


def _other_partitions(sink: str, topic: str, *, now: int, before: int) -> PositionMismatch:
    return PositionMismatch(
        f"topic {topic} has {now} partitions, sink {sink!r} has read {before}",
        hint="with another number of partitions keys move between them and their order is lost; "
        "recreate the topic with a new snapshot, then rebuild the sink",
    )


def _check_absence(
    sink: str, progress: Progress, *, topics: Mapping[str, TopicFacts], ends: Offsets, now_ms: int
) -> None:
    complete_at_ms = (progress.read_at_ms or progress.updated_at_ms) if progress.skipped else progress.updated_at_ms
    # What was left out isn't to be read. Among rows that are read again, one may be there whose delete isn't read again
    # yet.
    for (topic, partition), next_offset in progress.positions.items():
        facts = topics.get(topic)
        # A topic that wasn't read for a while was away, however fresh the others are.
        away_ms = now_ms - progress.left_at_ms.get(topic, complete_at_ms)
        # If nothing was written since, no tombstone can be gone.
        if facts is None or facts.delete_retention_ms == FOR_EVER_MS or next_offset >= ends.get((topic, partition), 0):
            continue
        if away_ms < -_CLOCKS_DIFFER_MS:
            raise PositionMismatch(
                f"sink {sink!r} was applied up to a time that is {-away_ms / 3_600_000:.1f} hours ahead of this"
                " clock: how long it was away isn't known, and deletes may be missing",
                hint="set the clock, if it is behind; else "
                + _rebuild(sink, "rows that were deleted in between would stay"),
            )
        if away_ms <= facts.delete_retention_ms:
            continue
        raise PositionMismatch(
            f"sink {sink!r} was away for {away_ms / 3_600_000:.1f} hours; topic {topic} keeps tombstones for "
            f"{facts.delete_retention_ms / 3_600_000:.1f} hours, so deletes may be missing",
            hint=_rebuild(sink, "rows that were deleted in between would stay"),
        )


def check_deletes_are_there(
    sink: str, topics: Collection[str], retention_ms: Mapping[str, int], *, complete_at_ms: int, now_ms: int
) -> None:
    """Raise PositionMismatch if records of these ``topics`` were read too late to be sure of all deletes.

    Everything written up to ``complete_at_ms`` is applied. A topic retains a tombstone for a limited time; if it goes
    before it was read, its row stays. Nothing tells a job that it was too slow, or stopped with its machine: only the
    clock shows it.
    """
    for topic in sorted(topics):
        kept_ms = retention_ms.get(topic)
        if kept_ms is not None and now_ms - complete_at_ms > kept_ms:
            raise PositionMismatch(
                f"sink {sink!r} is {(now_ms - complete_at_ms) / 3_600_000:.1f} hours behind; topic {topic} keeps"
                f" tombstones for {kept_ms / 3_600_000:.1f} hours, so deletes may be missing",
                hint=_rebuild(sink, "rows that were deleted in between would stay")
                + "; where reading takes that long, first set delete.retention.ms of the topic to more",
            )


def _rebuild(sink: str, otherwise: str) -> str:
    return f"build it again from the log: lockstep rebuild {sink} --switch ({otherwise})"
