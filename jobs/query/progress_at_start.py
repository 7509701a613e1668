"""What a sink's stored progress means when a query begins: of which topics it is true, and as of when."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from cdc.kafka.topic_names import table_topic
from jobs.generations.held_tables import HeldTable
from jobs.offsets import Offsets
from jobs.query.log_facts import LogFacts
from jobs.query.watermark import Watermark
from sinks.contract import Progress

NONE_HELD: Final[Mapping[str, HeldTable]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProgressAtStart:
    """What a query begins with."""

    progress: Progress
    """The stored progress, changed by this start. ``joining`` stays as stored, so that a difference gets stored."""
    watermark: Watermark
    """The watermark of what this query reads."""
    new: Set[str]
    """The topics that are read for the first time by a sink that had others before."""
    waits_for_table: bool
    """Whether the watermark stays where it is for the whole query, since a table of the sink isn't read."""


def progress_at_start(
    pipeline: str,
    log: LogFacts,
    stored: Progress | None,
    *,
    now_ms: int,
    log_epoch: int = 0,
    held_tables: Mapping[str, HeldTable] = NONE_HELD,
    selection: str = "",
) -> ProgressAtStart:
    """What a query begins with at ``stored``. Pure. ``log_epoch`` is the log's newest epoch, which the sink may go on
    with. It is stored with the first batch, which reads beyond the epoch's start. ``held_tables`` are by topic.
    ``selection`` identifies the captured tables as far as known."""
    # A watermark says that all tables are applied up to it. If a table joins or returns, the watermark doesn't move and
    # isn't true of that table yet. For paused tables it has waited.
    awaited = {topic for topic, held in held_tables.items() if held.is_read and held.awaited}
    held = {topic for topic, held in held_tables.items() if held.holds_watermark}
    passed_over = {topic for topic in held if not held_tables[topic].awaited}
    # Nothing is applied of a table that waits for its copy, so the watermark waits for it.
    uncopied = [table_topic(pipeline, name) for name in log.uncopied]
    joining = () if stored is None else _joining(stored, log, {*uncopied, *held}, passed_over, awaited=awaited)
    known = Progress({}, 0, 0, now_ms, {}) if stored is None else stored
    was_read = {topic for topic, _ in known.next_offsets}
    # A topic that was never read is read from its beginning from now on, however long the others wait.
    new = set[str]() if stored is None else log.topics.keys() - was_read
    progress = replace(
        known,
        next_offsets={**known.next_offsets, **{at: 0 for at in log.partitions if at[0] in new}},
        # Includes unread topics: when they are read again, only their ids tell whether they are the same.
        topic_ids={topic: known.topic_ids[topic] for topic in was_read & known.topic_ids.keys()} | log.topic_ids,
        left_at_ms=_left_at_ms(stored, log.topics) | dict.fromkeys(new, now_ms),
        selection=selection or known.selection,
        log_epoch=max(known.log_epoch, known.epoch, log_epoch),
    )
    watermark = Watermark(
        [*log.table_of, *uncopied],
        epoch=known.epoch,
        lsn=known.watermark_lsn,
        commit_time_ms=known.commit_time_ms,
        joining=joining,
    )
    return ProgressAtStart(progress, watermark, new, waits_for_table=bool(held))


def as_of_start(stored: Progress | None, ends: Offsets, now_ms: int) -> Progress | None:
    """The stored progress. If nothing is unread at the start, all is applied as of now, however long the sink was away.
    Otherwise the next records would seem to have waited as long: records are learned beside the batches."""
    if stored is None:
        return None
    positions = stored.positions
    # A topic that was never read lacks nothing: it is read from its beginning from now on. Topics that are read again,
    # or for the first time, have a time of their own.
    has_read = {topic for topic, _ in positions} - stored.left_at_ms.keys()
    if any(at[0] in has_read and positions.get(at, 0) < end for at, end in ends.items()):
        return stored
    left_at_ms = _left_at_ms(stored, {topic for topic, _ in ends})
    if stored.skipped:
        return replace(stored, read_at_ms=now_ms, left_at_ms=left_at_ms)
    return replace(stored, updated_at_ms=now_ms, left_at_ms=left_at_ms)


def _joining(
    stored: Progress, log: LogFacts, unread: Set[str], passed_over: Set[str], *, awaited: Set[str]
) -> set[str]:
    """The topics of which the stored watermark isn't true, among those that are read and the ``unread`` ones that it
    waits for. These include the ``passed_over`` topics, for which it didn't wait before. ``awaited`` topics are read
    again, and it did wait for them."""
    if not stored.watermark_lsn:
        return set()
    came_back = (stored.left_at_ms.keys() & log.topics.keys()) - awaited
    never_read = unread - {topic for topic, _ in stored.next_offsets}
    new = {topic for topic, partition in log.partitions if (topic, partition) not in stored.next_offsets}
    return new | came_back | never_read | passed_over | (set(stored.joining) & {*log.topics, *unread})


def left_topics(stored: Progress | None) -> set[str]:
    """The topics that weren't read for a while and that the watermark didn't wait for. It waits for a topic that is
    read for the first time. While there is no watermark, it has passed nothing."""
    if stored is None or not stored.watermark_lsn:
        return set()
    return stored.left_at_ms.keys() - set(stored.joining)


def _left_at_ms(stored: Progress | None, read_topics: Collection[str]) -> dict[str, int]:
    """The unread topics of which the destination has rows, each with the time since when it isn't read. Topics that are
    read again keep their time: until they have caught up, deletes since then may be missing."""
    if stored is None:
        return {}
    gone = {topic for topic, _ in stored.next_offsets} - set(read_topics)
    return dict.fromkeys(gone, stored.updated_at_ms) | dict(stored.left_at_ms)
