"""How much of the log is applied, and the time as of which all of it was. Pure.

Whether a sink may resume depends on that time: tombstones written after it may be gone by now. So it isn't the time of
saving: a sink with a backlog, or one that waits for its server while this process lives, must not look up to date.

The time stops for good when a part of the log is left out on purpose: once tombstones of that part may be gone, it
can't be read any more. A second time judges what comes after the gap.
"""

from collections.abc import Iterable, Mapping, Sequence

from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from jobs.query.watermark import Watermark
from sinks.contract import Progress, TopicPartition


class AppliedLog:
    """What a sink has applied of its topics."""

    def __init__(self, begins_with: Progress, watermark: Watermark, read_topics: Iterable[str]) -> None:
        # What to read next. A partition with a gap stays where it is here: nothing after the gap counts as complete.
        self.offsets: Offsets = dict(begins_with.next_offsets)
        # Partitions with a part left out on purpose -> the end of what is applied after that part.
        self.skipped: Offsets = dict(begins_with.skipped)
        # Where the partitions that are read again go on.
        self.again: Offsets = dict(begins_with.reads_again)
        # The topics with anything applied since this object was made.
        self.advanced = frozenset[str]()
        # Whether a known progress record isn't applied yet. Other threads read this at any time.
        self.is_behind = False
        self.watermark = watermark
        self._whole = _CompleteSince(watermark, begins_with.updated_at_ms)
        self._behind_gap: _CompleteSince | None = None
        if self.skipped:
            read_at_ms = begins_with.read_at_ms or begins_with.updated_at_ms
            self._behind_gap = _CompleteSince(Watermark(read_topics), read_at_ms)

    @property
    def complete_at_ms(self) -> int:
        """The time as of which all of the log had been applied, in milliseconds since 1970."""
        return self._whole.at_ms

    @property
    def read_at_ms(self) -> int:
        """As ``complete_at_ms``, without what was left out; 0 if nothing was left out."""
        return 0 if self._behind_gap is None else self._behind_gap.at_ms

    @property
    def has_caught_up(self) -> bool:
        """Whether everything known is applied, once ``learn`` had records. What was left out doesn't count."""
        return self._whole.has_learned and not self.is_behind

    @property
    def has_all(self) -> bool:
        """As ``has_caught_up``, and nothing was left out."""
        return self._whole.has_learned and self.watermark.behind_since_ms is None

    @property
    def positions(self) -> Offsets:
        """The next offset of each partition."""
        return {**self.offsets, **self.skipped, **self.again}

    def unapplied(self, ends: Offsets) -> set[str]:
        """The topics with anything unapplied below ``ends``. What was left out doesn't count."""
        return {at[0] for at, end in ends.items() if self.skipped.get(at, self.offsets.get(at, 0)) < end}

    def apply(self, ends: Offsets) -> None:
        """Everything below ``ends`` is applied. Reading the log again takes nothing back."""
        if unapplied := self.unapplied(ends):
            self.advanced |= unapplied
            for at, end in ends.items():
                reached = self.skipped if at in self.skipped else self.offsets
                reached[at] = max(end, reached.get(at, 0))
        if self.again:
            applied = {**self.offsets, **self.skipped}
            again = {at: max(offset, ends.get(at, 0)) for at, offset in self.again.items()}
            self.again = {at: offset for at, offset in again.items() if offset < applied.get(at, 0)}
        self._whole.advance(self.offsets)
        if self._behind_gap is not None:
            self._behind_gap.advance({**self.offsets, **self.skipped})
        self._look()

    def learn(self, records: Sequence[ProgressRecord], *, now_ms: int) -> None:
        """Take new progress records: all that were committed by ``now_ms``."""
        self._whole.learn(records, self.offsets, now_ms=now_ms)
        if self._behind_gap is not None:
            self._behind_gap.learn(records, {**self.offsets, **self.skipped}, now_ms=now_ms)
        self._look()

    def _look(self) -> None:
        known = self.watermark if self._behind_gap is None else self._behind_gap.watermark
        self.is_behind = known.behind_since_ms is not None


class _CompleteSince:
    """A watermark, and the last time at which nothing was behind it."""

    def __init__(self, watermark: Watermark, at_ms: int) -> None:
        self.watermark = watermark
        self.at_ms = at_ms
        self.has_learned = False

    def learn(self, records: Sequence[ProgressRecord], applied: Mapping[TopicPartition, int], *, now_ms: int) -> None:
        for record in records:
            # The first record covers all that was published while this sink was away.
            self.watermark.add(record, learned_at_ms=now_ms if self.has_learned else self.at_ms)
            self.has_learned = True
        self.watermark.advance(applied)
        since_ms = self.watermark.behind_since_ms
        self.at_ms = now_ms if since_ms is None else since_ms

    def advance(self, applied: Mapping[TopicPartition, int]) -> None:
        # Never the present time, even if nothing is left: only ``learn`` looks for new records.
        self.watermark.advance(applied)
        self.at_ms = self.watermark.behind_since_ms or self.at_ms
