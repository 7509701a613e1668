"""Moves the position from which a generation reads the log, by order of a user: rewrites its progress. Pure. Going back
is always safe: tags show what was already applied. Going forward leaves out a part of the log, and progress records
that: the watermark stays before the gap until the gap is read after all."""

from collections.abc import Iterable
from dataclasses import replace

from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from sinks.contract import Progress, TopicPartition


def offsets_after_lsn(
    records: Iterable[ProgressRecord], lsn: int, partitions: Iterable[TopicPartition], *, epoch: int = 0
) -> Offsets:
    """The offsets that cover everything committed after ``lsn``, and as little as possible of what was before.

    ``records`` are all that the progress topic still holds, in order. ``lsn`` belongs to this ``epoch``; everything of
    an earlier epoch was before it. A partition without a record is read from its start.

    A record's bounds may include a part of the transaction after its LSN, since a large transaction is published in
    several parts. That transaction was committed by the next record's LSN. So bounds count only once a record follows
    with a greater LSN that isn't beyond ``lsn``.
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


def moved_to(progress: Progress, start: Offsets) -> Progress:
    """The progress of a generation whose next job reads these partitions from ``start`` on."""
    skipped = {
        **{at: end for at, end in progress.skipped.items() if at not in start},
        **{
            at: max(offset, progress.skipped.get(at, 0))
            for at, offset in start.items()
            if offset > progress.next_offsets.get(at, 0)
        },
    }
    applied = {**progress.next_offsets, **skipped}
    reads_again = {**progress.reads_again, **start}
    return replace(
        progress,
        skipped=skipped,
        reads_again={at: offset for at, offset in reads_again.items() if offset < applied.get(at, 0)},
    )
