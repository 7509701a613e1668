"""From where a generation is to read the log, as somebody orders: its progress is written anew. Pure.

Going back is always safe: what has been applied is known by its tag. Going forward leaves something out, and that is
part of the progress: the watermark stays before the gap until it has been read after all.
"""

from collections.abc import Iterable
from dataclasses import replace

from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from sinks.contract import Progress, TopicPartition


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
