"""Compares the progress in a destination with what a job has stored there and is about to store (pure).

A difference shows that the destination was put back or has failed over, or that another job writes there.
"""

from collections.abc import Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Final

from cdc.model.errors import DataLost, Overtaken
from cdc.model.tag import Tag
from sinks.contract import Progress, TopicPartition

_NOTHING: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


def check_stored(known: Progress | None, stored: Progress | None, *, following: Progress, destination: str) -> None:
    """Raise DataLost if ``stored`` is behind ``known``, which this job loaded or stored last: later rows may be lost
    too.

    Raise Overtaken if ``stored`` is ahead of ``following`` in the same partitions: another job has applied more, and
    storing ``following`` would hide that. A job that found nothing stored when it began may raise it too.
    """
    if known is not None and (stored is None or _is_behind(stored, known)):
        raise DataLost(
            f"{destination} lacks progress that this job has stored there: it was removed or put back to an earlier"
            " moment, or has failed over to a server that lacked its last writes"
        )
    if stored is not None and (
        _has_more(stored.next_offsets, following.next_offsets) or _has_more(stored.skipped, following.skipped)
    ):
        raise Overtaken(f"another job has applied more to {destination} than this one", hint="stop one of the two jobs")


def check_written(
    written: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int], *, destination: str
) -> None:
    """Raise DataLost if offsets ``stored`` with rows are behind those ``written``: rows are missing then."""
    for at, offset in written.items():
        if stored.get(at, 0) < offset:
            topic, partition = at
            raise DataLost(
                f"{destination} lacks rows of {topic}, partition {partition}, that this job has written: it holds what"
                f" was before offset {stored.get(at, 0)}, and was given what was before {offset}. It was put back to an"
                " earlier moment, or has failed over to a server that lacked its last writes, or another program has"
                " written over them"
            )


def _has_more(stored: Mapping[TopicPartition, int], following: Mapping[TopicPartition, int]) -> bool:
    return any(following.get(at, offset) < offset for at, offset in stored.items())


def _is_behind(progress: Progress, other: Progress) -> bool:
    """Compares also ``skipped`` and each shard of a view, since ``next_offsets`` may stay the same there."""
    return (
        _lacks(progress.next_offsets, other.next_offsets)
        or _lacks(progress.reached, other.skipped)
        or any(_lacks(own, known) for own, known in zip_longest(progress.shards, other.shards, fillvalue=_NOTHING))
    )


def _lacks(offsets: Mapping[TopicPartition, int], others: Mapping[TopicPartition, int]) -> bool:
    return any(offsets.get(at, 0) < offset for at, offset in others.items())


def behind_the_watermark(progress: Progress) -> set[str]:
    """The topics of which something below the watermark may not have been applied. Pure."""
    return {*progress.left_at_ms, *progress.joining, *(topic for topic, _ in progress.skipped)}


def applied_below(progress: Progress, topic: str | None = None) -> str | None:
    """The tag below which everything of this topic (None: of all topics) has been applied; None if unknown. Pure."""
    behind = behind_the_watermark(progress)
    if not progress.watermark_lsn or (behind if topic is None else topic in behind):
        return None
    return watermark_tag(progress)


def watermark_tag(progress: Progress) -> str:
    """The tag of the watermark, greater than the tags of all transactions before it. Pure."""
    return str(Tag(progress.epoch, progress.watermark_lsn, 0))
