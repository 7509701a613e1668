"""Records of a view's tables, and the progress records that divide them into whole transactions. Pure.

A progress record is a *cut*: everything of all transactions committed before its LSN lies below its bounds. So once all
partitions are read up to there, the events below that LSN are whole transactions, and the others wait.

The log may be compacted while it is read. A late reader then misses rows of a moment, because newer events have
replaced them. So a reader that was behind takes the first cut that is newer than everything it read until it was at the
log's end. A reader that reads all the time is behind too, if more is published than it can take in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from cdc.model.tag import SNAPSHOT_SEQ, TRANSACTION_LENGTH, Tag
from cdc.protocol.control_records import ProgressRecord
from jobs.executor.append_only import with_event_keys
from jobs.executor.window import newest, with_tags
from jobs.offsets import Offsets
from sinks.contract import TopicPartition

# pyarrow makes its compute functions at import, so their stubs lack most of them.
_compute: Any = pyarrow.compute

_COPIED: Final = f"{SNAPSHOT_SEQ:08x}".encode()
"""How the tags of a copy's rows end."""

_PASS_S: Final = 5.0
"""A pass over the log that took longer is followed by another one, for what came meanwhile."""

_LATE_S: Final = 30.0
"""A reader that needs longer to reach a record's bounds is behind. Kafka's cleaner pauses for half as long."""

_CUTS_MAX: Final = 10_000
"""How many cuts may wait to be reached. Beyond that every other one is dropped: the view then moves in larger steps."""

NEVER: Final = ""
"""Less than every tag."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A progress record up to which all transactions are complete."""

    epoch: int
    lsn: int
    commit_time_ms: int
    bounds: Offsets

    @property
    def tag(self) -> str:
        """The greatest complete tag: rows of a copy exactly at the LSN are included."""
        return str(Tag(self.epoch, self.lsn, SNAPSHOT_SEQ))


@dataclass(frozen=True, slots=True)
class Taken:
    """The newest event of each key below a cut, and where each partition is to be read again. ``transactions`` is the
    number of transactions of these events."""

    records: pa.Table | None
    next_offsets: Offsets
    transactions: int = 0


class _Cuts:
    """The progress records of these topics that aren't reached yet."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = frozenset(topics)
        # The bounds of each record include those of all before it.
        self._required: Offsets = {}
        # Each with whether it holds for all of the topics.
        self._waiting: list[tuple[Cut, bool]] = []
        # The oldest cut, and since when it is the oldest.
        self._oldest: tuple[Cut | None, float] = None, 0.0
        # How many were reached.
        self.reached = 0
        # Whether the newest one holds for all of the topics.
        self.is_copied = True

    def add(self, record: ProgressRecord) -> None:
        for topic in self._topics & record.bounds.keys():
            for partition, bound in enumerate(record.bounds[topic]):
                self._required[topic, partition] = max(bound, self._required.get((topic, partition), 0))
        self.is_copied = not self._topics.intersection(record.uncopied)
        cut = Cut(record.epoch, record.lsn, record.commit_time_ms, dict(self._required))
        self._waiting.append((cut, self.is_copied))
        if len(self._waiting) > _CUTS_MAX:
            # Bounds only grow, so no cut asks for more than a later one. The last one stays.
            self._waiting = self._waiting[1::2] if len(self._waiting) % 2 == 0 else self._waiting[::2]

    def is_late(self, now_s: float) -> bool:
        """As ``ViewLog.is_late``."""
        oldest = self._waiting[0][0] if self._waiting else None
        if oldest is not self._oldest[0]:
            self._oldest = oldest, now_s
        return oldest is not None and now_s - self._oldest[1] > _LATE_S

    def take(self, offsets: Offsets) -> list[Cut]:
        """The cuts that are reached if everything below these offsets is read, and that hold for all of the topics."""
        covered = 0
        for cut, _ in self._waiting:
            if any(offsets.get(at, 0) < bound for at, bound in cut.bounds.items()):
                break  # bounds only grow
            covered += 1
        done, self._waiting = self._waiting[:covered], self._waiting[covered:]
        self.reached += covered
        return [cut for cut, is_complete in done if is_complete]


class ViewLog:
    """What was read and isn't taken in yet. ``topics`` are the view's tables', ``position`` is where it began."""

    def __init__(
        self,
        topics: Iterable[str],
        position: Mapping[TopicPartition, int],
        *,
        append_only: frozenset[str] = frozenset(),
        floor: str = NEVER,
    ) -> None:
        """No cut older than the tag ``floor`` is taken."""
        self._append_only = append_only
        self._reached: Offsets = dict(position)
        self._cuts = _Cuts(topics)
        self._batches: list[pa.RecordBatch] = []
        self._tagged: list[pa.Table] = []
        self._copies: dict[tuple[TopicPartition, str], int] = {}
        self._newest_tag = NEVER
        self._target: Offsets | None = None
        self._began_s = 0.0
        self._floor = floor
        self.rows = 0
        """How many records were read."""
        self.bytes = 0
        """Of the records that wait."""

    # --- reading ---

    def catch_up(self, ends: Offsets, now_s: float) -> None:
        """The reader is behind: it reads at least to these ends of the log."""
        self._target, self._began_s = dict(ends), now_s

    @property
    def awaits_copy(self) -> bool:
        """Whether one of the tables waits for its copy, as of the newest progress record."""
        return not self._cuts.is_copied

    @property
    def came(self) -> int:
        """Grows whenever records are read, or a progress record's bounds are reached. It stands still for a task that
        is cut off, but grows for one that waits for a table's copy."""
        return self.rows + self._cuts.reached

    @property
    def is_behind(self) -> bool:
        """Whether the end to catch up to isn't reached, or must be asked for again."""
        return self._target is not None

    @property
    def is_at_target(self) -> bool:
        """Whether the end to catch up to is reached."""
        return self._target is None or all(self._reached.get(at, 0) >= end for at, end in self._target.items())

    def has_caught_up(self, now_s: float) -> bool:
        """Called at the target: whether the pass was short enough that little can have come meanwhile. If not, the ends
        must be asked for again. From now on, only cuts newer than everything read count."""
        if now_s - self._began_s > _PASS_S:
            return False
        self._target = None
        self._floor = max(self._floor, self._newest_tag)
        return True

    def is_late(self, now_s: float) -> bool:
        """Whether the oldest cut has waited too long to be reached. Called again and again."""
        return self._cuts.is_late(now_s)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records of one partition, in its order. Raises LockstepError for a record without a tag."""
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        if self.is_behind:
            self._newest_tag = max(self._newest_tag, _max(with_tags(pa.Table.from_batches([batch])).column("tag")))

    def reach(self, ends: Offsets) -> None:
        """Everything of these partitions below these offsets is read."""
        for at, end in ends.items():
            self._reached[at] = max(end, self._reached.get(at, 0))

    def add_record(self, record: ProgressRecord) -> None:
        """Add the next progress record. The first one bounds all topics, as ``ProgressReader``'s does."""
        self._cuts.add(record)

    # --- taking ---

    def cut(self) -> Cut | None:
        """The newest cut that can be taken; it and all before are forgotten. Raises LockstepError for a missing tag."""
        if self.is_behind:
            return None
        complete = [cut for cut in self._cuts.take(self._reached) if cut.tag >= self._floor]
        if not complete:
            return None
        self._look_for_copies(complete[0].tag)
        found = next((cut for cut in reversed(complete) if not self._below(cut.bounds, newer_than=cut.tag)), None)
        # Bounds only grow, so these copies are below the bounds of every later record.
        for at, tag in self._below(complete[-1].bounds, newer_than=NEVER):
            self._floor = max(self._floor, tag)
            del self._copies[at, tag]
        return found

    def take(self, cut: Cut) -> Taken:
        """What is below the cut. The remainder waits, and comes again to a reader that begins at ``next_offsets``."""
        records, waiting, transactions = self._split(cut.tag)
        next_offsets = dict(self._reached)
        for batch in waiting:
            at: TopicPartition = (batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())
            next_offsets[at] = min(batch.column("offset")[0].as_py(), next_offsets[at])
        return Taken(records, next_offsets, transactions)

    def take_all(self) -> pa.Table | None:
        """Everything, for a caller that then takes only newer cuts."""
        return self._split(None)[0]

    @property
    def waits(self) -> bool:
        """Whether records wait for a cut."""
        return bool(self._batches or self._tagged)

    @property
    def next_offsets(self) -> Offsets:
        """Where each partition goes on."""
        return dict(self._reached)

    def _look_for_copies(self, tag: str) -> None:
        """Find where rows of a copy newer than the tag begin in each partition, among the new records."""
        if not self._batches:
            return
        tagged = self._with_tags()
        tags = tagged.column("tag")
        is_later = _compute.greater(tags, pa.scalar(tag.encode(), pa.binary()))
        is_copied = _compute.and_(is_later, _compute.ends_with(tags, pattern=_COPIED))
        if _compute.any(is_copied).as_py():
            begins = tagged.filter(is_copied).group_by(["topic", "partition", "tag"]).aggregate([("offset", "min")])
            for row in begins.to_pylist():
                at = (row["topic"], row["partition"]), row["tag"].decode()
                self._copies[at] = min(row["offset_min"], self._copies.get(at, row["offset_min"]))

    def _below(self, bounds: Offsets, *, newer_than: str) -> list[tuple[TopicPartition, str]]:
        """The copies with rows below these bounds."""
        return [
            (at, tag) for (at, tag), offset in self._copies.items() if tag > newer_than and offset < bounds.get(at, 0)
        ]

    def _with_tags(self) -> pa.Table:
        """The new records with their tags; they go on waiting."""
        tagged = with_tags(pa.Table.from_batches(self._batches))
        self._tagged.append(tagged)
        self._batches = []
        self.bytes += tagged.column("tag").nbytes
        return tagged

    def _split(self, until: str | None) -> tuple[pa.Table | None, Sequence[pa.RecordBatch], int]:
        if not self.waits:
            return None, (), 0
        if self._batches:
            self._with_tags()
        tagged = pa.concat_tables(self._tagged)
        self._tagged, self._copies, self.bytes = [], {}, 0
        if until is None:
            self._floor = max(self._floor, _max(tagged.column("tag")))
            return _newest(tagged, self._append_only), (), 0
        is_complete = _compute.less_equal(tagged.column("tag"), pa.scalar(until.encode(), pa.binary()))
        if _compute.all(is_complete).as_py():
            return _newest(tagged, self._append_only), (), _transactions(tagged)
        waiting = tagged.filter(_compute.invert(is_complete)).drop_columns(["tag"])
        # Each waiting batch belongs to one partition, as it did when it came.
        self._batches = list(chain.from_iterable(_of_partitions(batch) for batch in waiting.to_batches()))
        self.bytes = sum(batch.nbytes for batch in self._batches)
        complete = tagged.filter(is_complete)
        return (
            (_newest(complete, self._append_only) if complete.num_rows else None),
            self._batches,
            _transactions(complete),
        )


def _newest(tagged: pa.Table, append_only: frozenset[str]) -> pa.Table:
    return newest(with_event_keys(tagged, append_only) if append_only else tagged)


def _of_partitions(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    places = list(zip(batch.column("topic").to_pylist(), batch.column("partition").to_pylist(), strict=True))
    start = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[start]:
            yield batch.slice(start, index - start)
            start = index


def _transactions(tagged: pa.Table) -> int:
    """The number of transactions of these records. Rows of a copy count as one."""
    return int(_compute.count_distinct(_compute.binary_slice(tagged.column("tag"), 0, TRANSACTION_LENGTH)).as_py())


def _max(tags: pa.ChunkedArray) -> str:
    greatest: bytes = max(tags.to_pylist())
    return greatest.decode()
