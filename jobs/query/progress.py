"""A sink's progress as the driver keeps it: offsets after each batch, the watermark as soon as it is known."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.read_so_far import ReadSoFar
from jobs.offsets import Offsets
from jobs.query.read_mark import ReadMark
from jobs.query.resume_check import check_deletes_are_there
from jobs.query.watermark import Watermark
from sinks.contract import NOTHING_WRITTEN, Generations, Progress, TopicPartition
from sinks.stored_progress import behind_the_watermark

RENEWAL_MS: Final = 60_000
"""Progress is saved at least this often, so that its age tells how long a sink was away, not how long it was idle."""

# ``updated_at_ms`` decides whether a sink may resume: has it read on since tombstones were written that may be gone?
# So it isn't the time of saving but the time as of which all of the log has been applied. A sink with a backlog, or
# one that waits for its server while this process lives on, must not look up to date.
#
# Where a part of the log was left out on purpose, that time stays: once tombstones of the part may be gone, it can't be
# read after all. What comes behind it is judged by a time of its own, ``read_at_ms``.


class ProgressKeeper:
    """Saves progress in the destination. Called by the batches' thread and by the thread that follows the watermark."""

    def __init__(
        self,
        generations: Generations,
        watermark: Watermark,
        *,
        stored: Progress | None,
        topic_ids: Mapping[str, str],
        now_ms: Callable[[], int],
        sink: str,
        check_claim: Callable[[], None],
        retention_ms: Mapping[str, int],
        log_epoch: int = 0,
        skipped: Mapping[TopicPartition, int] | None = None,
        left_at_ms: Mapping[str, int] | None = None,
        holds_watermark: bool = False,
        is_paused: bool = False,
        selection: str = "",
        tables: Mapping[str, TableName] | None = None,
        partitions: Iterable[TopicPartition] = (),
    ) -> None:
        """``check_claim`` is called before anything is stored. It raises Fenced when another job has taken over.

        ``topic_ids`` are those of the topics that are read. ``retention_ms``: how long each topic keeps tombstones.

        ``log_epoch`` is the log's as of the start, and is stored with the first batch: what that reads is beyond where
        the epoch began.

        ``holds_watermark``: what is stored of it stays as it is until ``release_watermark``.

        ``is_paused``: it stays so for as long as this keeper is used, since a table of the sink isn't read.

        ``selection`` tells which tables are captured as far as is known, as in Progress. ``tables`` are the sink's by
        the topics that they are read from, of which those are told that are whole.

        ``skipped`` are the partitions of which this start position leaves something out, and ``left_at_ms`` has the
        topics that are read no longer, both as in Progress. Those among them that are read again are judged by that
        time until nothing is behind.

        ``partitions`` are those of the topics that are read. Topics that never were are judged by now: of what was
        deleted before, no row can be here.
        """
        self._sink = sink
        self._check_claim = check_claim
        self._retention_ms = dict(retention_ms)
        self._generations = generations
        self._watermark = watermark
        # Those of topics that aren't read now too: when they are again, only this tells whether they are the same.
        self._topic_ids = _ids_of_read(stored) | dict(topic_ids)
        self._now_ms = now_ms
        self._lock = threading.Lock()  # the sink's client and the watermark aren't made for two threads
        self._applied: Offsets = {} if stored is None else dict(stored.next_offsets)
        self._skipped: Offsets = dict(skipped or {})
        self._left_at_ms = dict(left_at_ms or {})
        self._new = frozenset[str]()
        self._advanced = frozenset[str]()
        self._reached: Offsets = {}
        self._written: dict[TopicPartition, int] = {}
        self._shards: Sequence[Mapping[TopicPartition, int]] = () if stored is None else stored.shards
        self._rejected = 0 if stored is None else stored.rejected
        self._saved_at_ms = now_ms()
        self._complete_at_ms = self._saved_at_ms if stored is None else stored.updated_at_ms
        self._read_at_ms = self._complete_at_ms if stored is None else stored.read_at_ms or stored.updated_at_ms
        self._beyond = Watermark(topic_ids) if self._skipped else None
        self._learned_any = False
        self._is_behind = False
        self._held = _position(watermark) if holds_watermark or is_paused else None
        self._log_epoch = log_epoch if stored is None else max(stored.log_epoch, stored.epoch, log_epoch)
        self._selection = selection
        self._tables = dict(tables or {})
        self._is_paused = is_paused
        self._lacks_columns = holds_watermark
        self._read = frozenset(topic_ids)
        self._saved_joining = () if stored is None else stored.joining
        if stored is not None:
            # What was never read is read from its beginning from now on, however long the others wait.
            self._new = frozenset(topic_ids).difference(topic for topic, _ in self._applied)
            self._applied |= {at: 0 for at in partitions if at[0] in self._new}
            self._left_at_ms |= dict.fromkeys(self._new, self._saved_at_ms)
        self._resuming = frozenset(topic_ids) & self._left_at_ms.keys()
        self._began_joining = frozenset(watermark.joining)
        self._owes_watermark = False
        self._read_mark = ReadMark(self._applied, watermark, tells_lsn=not is_paused)

    def read_to(self, ends: Offsets) -> None:
        """Everything below these offsets was read, and isn't applied yet. Doesn't wait for a destination that hangs.

        What a start position left out isn't counted.
        """
        self._read_mark.reach({at: end for at, end in ends.items() if at not in self._skipped})

    def read_so_far(self) -> ReadSoFar:
        """Doesn't wait for a destination that hangs either."""
        return self._read_mark.so_far()

    def begin(self) -> None:
        """Store which topics are read for the first time, and since when. Raises as ``save_progress``.

        Call it before the first task. Rows of them may be here from then on, also when no batch comes to its end: their
        deletes are missed where the topic isn't read for longer than it keeps tombstones.
        """
        with self._lock:
            if self._new:
                self._save()
                self._new = frozenset()

    def release_watermark(self) -> None:
        """Rows from before are as at the source too: from now on the watermark says how far all of them are."""
        with self._lock:
            self._lacks_columns = False
            if self._is_paused:
                return
            self._owes_watermark = self._held is not None
            self._held = None

    @property
    def has_caught_up(self) -> bool:
        """Whether all that is known of is applied, once somebody has looked."""
        with self._lock:
            return self._learned_any and not self._is_behind

    @property
    def resuming(self) -> frozenset[str]:
        """The topics that were read again and haven't got all yet."""
        with self._lock:
            return self._resuming

    @property
    def advanced(self) -> frozenset[str]:
        """The topics of which a batch has applied something since this was made."""
        with self._lock:
            return self._advanced

    @property
    def complete_at_ms(self) -> int:
        """The time as of which the whole log had been applied, in milliseconds since 1970."""
        with self._lock:
            return min([self._complete_at_ms, *(self._left_at_ms[topic] for topic in self._resuming)])

    @property
    def is_behind(self) -> bool:
        """Whether a progress record is known that isn't applied yet. Doesn't wait for a destination that hangs."""
        return self._is_behind

    @property
    def commit_time_ms(self) -> int:
        """When the newest transaction was committed of those that are applied whole, in milliseconds since 1970."""
        with self._lock:
            return self._watermark.commit_time_ms

    def lacks(self, ends: Offsets) -> bool:
        """Whether anything below ``ends`` isn't applied yet. What a start position left out isn't counted."""
        with self._lock:
            return any(self._skipped.get(at, self._applied.get(at, 0)) < end for at, end in ends.items())

    @property
    def reached(self) -> Offsets:
        """Where those partitions are read on that a batch has told of: everything before is applied, and stored so."""
        with self._lock:
            return dict(self._reached)

    @property
    def shards(self) -> Sequence[Mapping[TopicPartition, int]]:
        """The next offsets of a view's shards, as Progress has them."""
        with self._lock:
            return self._shards

    def batch_applied(
        self,
        ends: Offsets,
        *,
        rejected: int,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        shards: Sequence[Mapping[TopicPartition, int]] = (),
    ) -> Progress:
        """Everything below ``ends`` is applied: store and return that.

        ``written`` are the next offsets that the batch's tasks have stored with its rows. ``shards`` are those of a
        view's, as Progress has them.

        Raises as ``save_progress``, and PositionMismatch when the batch was read so late that deletes may be missing.
        Must return before Spark commits the batch: a destination whose progress is older than the checkpoint has lost
        data.
        """
        with self._lock:
            self._check_deletes(ends)
            self._shards = shards
            self._written.update({at: max(end, self._written.get(at, 0)) for at, end in written.items()})
            # After a crash between this and Spark's commit the batch comes again: its rejections are counted already.
            # A log that is read again from its start takes nothing back.
            if any(self._skipped.get(at, self._applied.get(at, 0)) < end for at, end in ends.items()):
                self._rejected += rejected
                self._advanced |= {at[0] for at, end in ends.items() if self._applied.get(at, 0) < end}
                for at, end in ends.items():
                    # Behind a gap nothing counts as complete, so the watermark stays where it is.
                    reached = self._skipped if at in self._skipped else self._applied
                    reached[at] = max(end, reached.get(at, 0))
            self.read_to(ends)
            self._watermark.advance(self._applied)
            # Not now, even when nothing is left: only ``learn`` has looked for what is new.
            self._complete_at_ms = self._watermark.behind_since_ms or self._complete_at_ms
            if self._beyond is not None:
                self._beyond.advance({**self._applied, **self._skipped})
                self._read_at_ms = self._beyond.behind_since_ms or self._read_at_ms
            self._note_whether_behind()
            self._forget_when_left(self._joined())
            progress = self._save()
            for at, end in ends.items():
                self._reached[at] = max(end, self._reached.get(at, 0))
            return progress

    def count_rejected(self, rejected: int) -> None:
        """So many events were rejected in the middle of a batch. It is stored with what is stored next."""
        with self._lock:
            self._rejected += rejected

    def learn(
        self, records: Iterable[ProgressRecord], *, selection: str = "", known_at_ms: int | None = None
    ) -> Progress | None:
        """Take new progress records; store and return the progress when the watermark rises, or after a long time.

        They are all that were committed by ``known_at_ms``; None: by now.
        ``selection`` is of the tables that are captured as of these records. The sink has the same of them as before.
        """
        with self._lock:
            now_ms = self._now_ms() if known_at_ms is None else min(known_at_ms, self._now_ms())
            records = list(records)
            self._read_mark.learn(records, now_ms=now_ms)
            is_other = selection not in ("", self._selection)
            self._selection = selection or self._selection
            known_epoch = self._log_epoch
            self._log_epoch = max([known_epoch, *(record.epoch for record in records)])
            for record in records:
                # The first covers all that was published while this sink was away.
                at_ms = now_ms if self._learned_any else self._complete_at_ms
                self._watermark.add(record, learned_at_ms=at_ms)
                if self._beyond is not None:
                    self._beyond.add(record, learned_at_ms=now_ms if self._learned_any else self._read_at_ms)
                self._learned_any = True
            has_risen = self._watermark.advance(self._applied)
            has_caught_up = self._held is not None and self._joining() != self._saved_joining
            raised = (has_risen and self._held is None) or self._owes_watermark or has_caught_up
            # At once: what is applied next is of the new epoch.
            raised |= self._log_epoch > known_epoch and any(self._applied.values())
            behind_since_ms = self._watermark.behind_since_ms
            self._complete_at_ms = now_ms if behind_since_ms is None else behind_since_ms
            if self._beyond is not None:
                self._beyond.advance({**self._applied, **self._skipped})
                behind_since_ms = self._beyond.behind_since_ms
                self._read_at_ms = now_ms if behind_since_ms is None else behind_since_ms
            self._note_whether_behind()
            has_all = self._learned_any and self._watermark.behind_since_ms is None
            if caught_up := self._resuming if has_all else self._joined():
                self._forget_when_left(caught_up)
                raised = True
            is_due = is_other or self._now_ms() - self._saved_at_ms >= RENEWAL_MS
            self._owes_watermark = raised  # until it is saved, which a destination may refuse now
            if raised or (is_due and any(self._applied.values())):
                return self._save()
            return None

    def _joined(self) -> frozenset[str]:
        """The topics that the watermark has become true of: what they lack now, they lack like all others."""
        return self._resuming & self._began_joining.difference(self._watermark.joining)

    def _forget_when_left(self, topics: frozenset[str]) -> None:
        self._left_at_ms = {topic: at_ms for topic, at_ms in self._left_at_ms.items() if topic not in topics}
        self._resuming -= topics

    def _note_whether_behind(self) -> None:
        self._is_behind = (self._beyond or self._watermark).behind_since_ms is not None

    def _check_deletes(self, ends: Offsets) -> None:
        # Nothing is stored before this, so that the next start finds the same.
        topics = {at[0] for at, end in ends.items() if self._skipped.get(at, self._applied.get(at, 0)) < end}
        complete_at_ms = self._complete_at_ms if self._beyond is None else self._read_at_ms
        now_ms = self._now_ms()
        for topic in sorted(topics):
            at_ms = complete_at_ms
            if topic in self._resuming:
                at_ms = self._left_at_ms[topic]
            check_deletes_are_there(self._sink, {topic}, self._retention_ms, complete_at_ms=at_ms, now_ms=now_ms)

    def _save(self) -> Progress:
        epoch, lsn, commit_time_ms, _ = self._held or _position(self._watermark)
        joining = self._joining()
        progress = Progress(
            next_offsets=dict(self._applied),
            watermark_lsn=lsn,
            commit_time_ms=commit_time_ms,
            updated_at_ms=self._complete_at_ms,
            topic_ids=self._topic_ids,
            rejected=self._rejected,
            skipped=dict(self._skipped),
            left_at_ms=self._left_at_ms,
            epoch=epoch,
            read_at_ms=0 if self._beyond is None else self._read_at_ms,
            joining=joining,
            selection=self._selection,
            shards=tuple(self._shards),
            log_epoch=self._log_epoch,
        )
        self._check_claim()
        behind = behind_the_watermark(progress)
        whole = set(self._tables.values()) - {self._tables[topic] for topic in behind if topic in self._tables}
        self._generations.save_progress(progress, written=self._written, whole=whole)
        self._owes_watermark = False
        self._saved_joining = joining
        self._saved_at_ms = self._now_ms()
        return progress

    def _joining(self) -> tuple[str, ...]:
        """The topics of which the watermark that is stored isn't true yet.

        What is read may have all below it, while it waits for a table that isn't read. Where rows lack columns nobody
        knows that.
        """
        behind = self._watermark.joining
        if self._held is None:
            return behind
        *_, held = self._held
        return held if self._lacks_columns else tuple(at for at in held if at not in self._read or at in behind)


def _position(mark: Watermark) -> tuple[int, int, int, tuple[str, ...]]:
    return mark.epoch, mark.lsn, mark.commit_time_ms, mark.joining


def _ids_of_read(progress: Progress | None) -> dict[str, str]:
    """The ids of the topics that were ever read, as they were last."""
    if progress is None:
        return {}
    read = {topic for topic, _ in progress.next_offsets}
    return {topic: topic_id for topic, topic_id in progress.topic_ids.items() if topic in read}
