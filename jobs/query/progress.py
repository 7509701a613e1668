"""A sink's progress as the driver maintains it: offsets after each batch, the watermark as soon as it is known."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.clock import now_ms
from jobs.generations.read_so_far import ReadSoFar
from jobs.offsets import Offsets
from jobs.query.applied_log import AppliedLog
from jobs.query.held_watermark import HeldWatermark
from jobs.query.log_facts import LogFacts
from jobs.query.progress_at_start import ProgressAtStart
from jobs.query.read_mark import ReadMark
from jobs.query.returned_topics import ReturnedTopics
from sinks.contract import NOTHING_WRITTEN, Generations, Progress, TopicPartition
from sinks.stored_progress import behind_the_watermark

RENEWAL_MS: Final = 60_000
"""Progress is saved at least this often, so that its age says how long a sink was away, not how long it was idle."""


class ProgressKeeper:
    """Saves progress in the destination. Called by the batches' thread and by the thread that follows the watermark."""

    def __init__(
        self,
        generations: Generations,
        start: ProgressAtStart,
        log: LogFacts,
        *,
        sink: str,
        check_claim: Callable[[], None],
        now_ms: Callable[[], int] = now_ms,
        lacks_columns: bool = False,
        result: TableName | None = None,
    ) -> None:
        """``check_claim`` is called before anything is stored, and raises Fenced if another job has taken over. With
        ``lacks_columns`` the stored watermark waits for ``release_watermark``. ``result`` is the table of a view's
        rows."""
        self._generations = generations
        self._check_claim = check_claim
        self._now_ms = now_ms
        # Neither the sink's client nor the parts below are thread-safe.
        self._lock = threading.Lock()
        # The progress in the destination.
        self._stored = start.progress
        # What is stored next, except what the parts below say.
        self._next = start.progress
        self._saved_at_ms = now_ms()
        self._new = start.new
        self._applied = AppliedLog(start.progress, start.watermark, log.topics)
        self._returned = ReturnedTopics(sink, log, start.progress.left_at_ms, start.watermark)
        self._held = HeldWatermark(
            start.watermark, log.topics.keys(), lacks_columns=lacks_columns, waits_for_table=start.waits_for_table
        )
        self._read_mark = ReadMark(self._applied.offsets, start.watermark, has_lsn=not start.waits_for_table)
        # The sink's tables by topic. Saving progress names those that are whole.
        self._tables = {topic: result or name for topic, name in log.table_of.items()}
        # Up to where batches have applied everything, once that is stored.
        self._reached: Offsets = {}
        # The next offsets that tasks have stored with their rows.
        self._written: Offsets = {}

    def read_to(self, ends: Offsets) -> None:
        """Everything below these offsets was read, but isn't applied yet. Never waits for a destination that hangs.
        What was left out on purpose doesn't count."""
        self._read_mark.reach({at: end for at, end in ends.items() if at not in self._applied.skipped})

    def read_so_far(self) -> ReadSoFar:
        """Never waits for a destination that hangs."""
        return self._read_mark.so_far()

    def begin(self) -> None:
        """Store which topics are read for the first time, and since when. Raises as ``save_progress``. Call it before
        the first task. From then on the sink may have their rows, even if no batch completes, so it would miss deletes
        if a topic isn't read for longer than it retains tombstones."""
        with self._lock:
            if self._new:
                self._save(self._progress())
                self._new = frozenset()

    def release_watermark(self) -> None:
        """Older rows are now as at the source: from now on the stored watermark is true of all rows."""
        with self._lock:
            self._held.release()

    @property
    def has_caught_up(self) -> bool:
        """Whether everything known is applied, once ``learn`` had records."""
        with self._lock:
            return self._applied.has_caught_up

    @property
    def resuming(self) -> frozenset[str]:
        """The topics that are read again, or for the first time, and haven't caught up yet."""
        with self._lock:
            return self._returned.resuming

    @property
    def advanced(self) -> frozenset[str]:
        """The topics with anything applied since this object was made."""
        with self._lock:
            return self._applied.advanced

    @property
    def complete_at_ms(self) -> int:
        """The time as of which the whole log had been applied, in milliseconds since 1970."""
        with self._lock:
            return self._returned.complete_at_ms(self._applied.complete_at_ms)

    @property
    def is_behind(self) -> bool:
        """Whether a known progress record isn't applied yet. Never waits for a destination that hangs."""
        return self._applied.is_behind

    @property
    def commit_time_ms(self) -> int:
        """The commit time of the newest transaction that is applied whole, in milliseconds since 1970."""
        with self._lock:
            return self._applied.watermark.commit_time_ms

    @property
    def positions(self) -> Offsets:
        """The next offset of each partition."""
        with self._lock:
            return self._applied.positions

    @property
    def reached(self) -> Offsets:
        """As ``positions``, for partitions that batches have reported and whose progress is stored."""
        with self._lock:
            return dict(self._reached)

    @property
    def shards(self) -> Sequence[Mapping[TopicPartition, int]]:
        with self._lock:
            return self._next.shards

    def batch_applied(
        self,
        ends: Offsets,
        *,
        rejected: int,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        shards: Sequence[Mapping[TopicPartition, int]] = (),
    ) -> Progress:
        """Everything below ``ends`` is applied: store that, and return the progress. ``written`` are the next offsets
        that the batch's tasks have stored with its rows. ``shards`` are those of a view's shards. Raises as
        ``save_progress``, and PositionMismatch if the batch was read so late that deletes may be missing."""
        with self._lock:
            unapplied = self._applied.unapplied(ends)
            # Check before anything is stored, so that the next start finds the same.
            others_at_ms = self._applied.read_at_ms or self._applied.complete_at_ms
            self._returned.check_deletes(unapplied, others_at_ms=others_at_ms, now_ms=self._now_ms())
            self._next = replace(self._next, shards=tuple(shards))
            _advance(self._written, written)
            if unapplied:  # what is read again was counted already
                self._count_rejected(rejected)
            self.read_to(ends)
            self._applied.apply(ends)
            self._returned.note(has_all=False)  # only ``learn`` has looked for new records
            progress = self._save(self._progress())
            _advance(self._reached, ends)
            return progress

    def count_rejected(self, rejected: int) -> None:
        """Add events that were rejected in the middle of a batch. Stored with the next progress."""
        with self._lock:
            self._count_rejected(rejected)

    def _count_rejected(self, rejected: int) -> None:
        self._next = replace(self._next, rejected=self._next.rejected + rejected)

    def learn(
        self, records: Iterable[ProgressRecord], *, selection: str = "", known_at_ms: int | None = None
    ) -> Progress | None:
        """Take new progress records. Stores and returns the progress if the watermark rises, or after a long time. The
        records are all that were committed by ``known_at_ms``; None means by now. ``selection`` identifies the captured
        tables as of these records; the sink's own tables are the same as before."""
        with self._lock:
            now_ms = self._now_ms() if known_at_ms is None else min(known_at_ms, self._now_ms())
            records = list(records)
            self._read_mark.learn(records, now_ms=now_ms)
            self._applied.learn(records, now_ms=now_ms)
            self._returned.note(has_all=self._applied.has_all)
            self._next = replace(
                self._next,
                selection=selection or self._next.selection,
                log_epoch=max([self._next.log_epoch, *(record.epoch for record in records)]),
            )
            # This includes what a destination refused to store before.
            progress, stored = self._progress(), self._stored
            has_moved = _differ(progress, stored, "epoch", "watermark_lsn", "joining", "left_at_ms")
            # What is applied next may be of another epoch of the log, or of other tables.
            is_due = _differ(progress, stored, "selection", "log_epoch")
            is_due |= self._now_ms() - self._saved_at_ms >= RENEWAL_MS
            return self._save(progress) if has_moved or (is_due and any(self._applied.offsets.values())) else None

    def _progress(self) -> Progress:
        position = self._held.position
        return replace(
            self._next,
            next_offsets=dict(self._applied.offsets),
            watermark_lsn=position.lsn,
            commit_time_ms=position.commit_time_ms,
            updated_at_ms=self._applied.complete_at_ms,
            skipped=dict(self._applied.skipped),
            reads_again=dict(self._applied.again),
            left_at_ms=self._returned.left_at_ms,
            epoch=position.epoch,
            read_at_ms=self._applied.read_at_ms,
            joining=self._held.joining,
        )

    def _save(self, progress: Progress) -> Progress:
        self._check_claim()
        behind = behind_the_watermark(progress)
        whole = set(self._tables.values()) - {self._tables[topic] for topic in behind if topic in self._tables}
        self._generations.save_progress(progress, written=self._written, whole=whole)
        self._stored = progress
        self._saved_at_ms = self._now_ms()
        return progress


def _advance(offsets: Offsets, ends: Mapping[TopicPartition, int]) -> None:
    offsets.update({at: max(end, offsets.get(at, 0)) for at, end in ends.items()})


def _differ(progress: Progress, stored: Progress, *fields: str) -> bool:
    return any(getattr(progress, name) != getattr(stored, name) for name in fields)
