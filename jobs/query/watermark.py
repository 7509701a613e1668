"""Offsets back into an LSN: up to where has everything been applied? Pure.

Capture publishes progress records: everything committed up to ``lsn`` lies below these end offsets. A record is
*covered* once the sink has applied every partition in it up to its bound. The watermark is the newest record such that
it and all earlier ones are covered. A partition without traffic is in no record and holds nothing back. Offsets of
snapshot rows are in no record before the handoff's, and raise nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdc.protocol.control_records import ProgressRecord
from sinks.contract import TopicPartition

PENDING_MAX: Final = 10_000
"""How many records may wait to be covered. Beyond that, neighbours are merged: the watermark moves in larger steps."""


@dataclass(frozen=True, slots=True)
class _Pending:
    epoch: int
    lsn: int
    commit_time_ms: int
    is_complete: bool
    learned_at_ms: int
    bounds: Mapping[TopicPartition, int]


class Watermark:
    """The watermark of one sink. It goes back only for a new epoch, whose LSNs start a new line.

    A record that doesn't hold for one of the sink's tables, because that table waits for its copy, raises nothing.

    ``joining`` are the topics of which the watermark isn't true yet. It stays where it is until it is true of all, and
    ``joining`` is then empty, even if nothing was committed meanwhile.

    ``topics`` are those that the sink reads; bounds of others are ignored. The first added record must bound all of
    them, as ``ProgressReader``'s does: only its bounds tell what was published before it.
    """

    def __init__(
        self,
        topics: Iterable[str],
        *,
        epoch: int = 0,
        lsn: int = 0,
        commit_time_ms: int = 0,
        joining: Iterable[str] = (),
    ) -> None:
        self.epoch = epoch
        self.lsn = lsn
        self.commit_time_ms = commit_time_ms
        self.joining = tuple(sorted(joining))
        self._topics = frozenset(topics)
        self._pending: list[_Pending] = []

    def twin(self) -> "Watermark":
        """Another watermark at the same position, without any records."""
        return Watermark(
            self._topics, epoch=self.epoch, lsn=self.lsn, commit_time_ms=self.commit_time_ms, joining=self.joining
        )

    @property
    def behind_since_ms(self) -> int | None:
        """When the oldest uncovered record was learned; None if all are covered."""
        return self._pending[0].learned_at_ms if self._pending else None

    def add(self, record: ProgressRecord, *, learned_at_ms: int) -> None:
        """Take the next record of the progress topic."""
        bounds = {
            (topic, partition): bound
            for topic, ends in record.bounds.items()
            if topic in self._topics
            for partition, bound in enumerate(ends)
        }
        is_complete = not self._topics.intersection(record.uncopied)
        if not bounds and not is_complete and record.epoch == self._newest_epoch():
            return  # it asks for nothing, and raises nothing
        if not bounds and self._pending:
            # It asks for no more than the one before: a quiet table's sink keeps one record, not thousands.
            last = self._pending.pop()
            bounds, learned_at_ms = dict(last.bounds), last.learned_at_ms
        self._pending.append(
            _Pending(record.epoch, record.lsn, record.commit_time_ms, is_complete, learned_at_ms, bounds)
        )
        if len(self._pending) > PENDING_MAX:
            self._merge_neighbours()

    def advance(self, applied: Mapping[TopicPartition, int]) -> bool:
        """Move to the newest record that is covered, given that everything below these offsets is applied. Returns
        whether the watermark has changed."""
        covered = 0
        for record in self._pending:
            if any(applied.get(at, 0) < bound for at, bound in record.bounds.items()):
                break  # bounds only grow, so no later record is covered either
            covered += 1
        done, self._pending = self._pending[:covered], self._pending[covered:]
        before = self.epoch, self.lsn, self.joining
        for record in done:
            if record.epoch > self.epoch:
                # What earlier epochs published may be undone by now: nothing is known until it was copied.
                self.epoch, self.lsn, self.commit_time_ms = record.epoch, 0, 0
            if record.is_complete and (record.lsn > self.lsn or (self.joining and record.lsn == self.lsn)):
                self.lsn, self.commit_time_ms, self.joining = record.lsn, record.commit_time_ms, ()
        return (self.epoch, self.lsn, self.joining) != before

    def _newest_epoch(self) -> int:
        return self._pending[-1].epoch if self._pending else self.epoch

    def _merge_neighbours(self) -> None:
        self._pending = [_merged(*self._pending[index : index + 2]) for index in range(0, len(self._pending), 2)]


def _merged(*records: _Pending) -> _Pending:
    """One record that is covered when all of these are, with the newest one's LSN."""
    bounds: dict[TopicPartition, int] = {}
    for record in records:
        for at, bound in record.bounds.items():
            bounds[at] = max(bound, bounds.get(at, 0))
    return replace(records[-1], learned_at_ms=records[0].learned_at_ms, bounds=bounds)
