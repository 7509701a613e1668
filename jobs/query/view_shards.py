"""The positions of a view's shards: for each, the next offsets that it has reported. The view is where all shards are.

The sink's progress has the offsets of each shard. Without them a shard's state that was put back to the slowest shard's
position would seem good, although the sink may have later rows of it. They are stored together with all other progress:
a sink that was put back says where each shard was then.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from jobs.offsets import Offsets
from sinks.contract import Progress, TopicPartition
from views.figures import ViewFigures, together


class ViewShards:
    """The shards of one view. Called by the batches' thread, and by the one that listens to tasks."""

    def __init__(self, reached: Sequence[Mapping[TopicPartition, int]]) -> None:
        """``reached`` are the stored offsets of each shard, empty for a shard that has reported nothing yet."""
        self._lock = threading.Lock()
        self._saving = threading.Lock()  # otherwise older progress could replace newer
        self._reached: list[Offsets] = [dict(offsets) for offsets in reached]
        self._stored: list[Offsets] = [dict(offsets) for offsets in reached]
        self._figures: dict[int, ViewFigures] = {}

    @classmethod
    def of_progress(
        cls, stored: Sequence[Mapping[TopicPartition, int]], *, count: int, reached: Mapping[TopicPartition, int]
    ) -> Self:
        """``count`` shards at their ``stored`` offsets, but none behind the view, which is at ``reached``. If another
        number of shards is stored, all are where the view is."""
        known = stored if len(stored) == count else [reached] * count
        return cls([{**reached, **{at: max(end, reached.get(at, 0)) for at, end in own.items()}} for own in known])

    @property
    def count(self) -> int:
        return len(self._reached)

    def reach(self, shard: int, offsets: Mapping[TopicPartition, int]) -> None:
        """A shard reports its offsets in the partitions that have moved. Reports may be late, or repeated."""
        with self._lock:
            own = self._reached[shard]
            own.update({at: max(offset, own.get(at, 0)) for at, offset in offsets.items()})

    def store(self, save: Callable[[Offsets, Sequence[Offsets]], Progress]) -> Progress:
        """Call ``save`` with the view's offsets and those of each shard, and return its result. If it raises, nothing
        counts as stored."""
        with self._saving:
            with self._lock:
                least, reached = self._least(), [dict(offsets) for offsets in self._reached]
            progress = save(least, reached)
            with self._lock:
                self._stored = reached
            return progress

    def stored(self, shard: int) -> Offsets:
        """The next offsets of one shard that are stored in the destination."""
        with self._lock:
            return dict(self._stored[shard])

    @property
    def least(self) -> Offsets:
        """The offsets that all shards have reached, in partitions that all have reported."""
        with self._lock:
            return self._least()

    def _least(self) -> Offsets:
        first, *others = self._reached
        return {
            at: min(offset, *(other[at] for other in others))
            for at, offset in first.items()
            if all(at in other for other in others)
        }

    def is_ahead(self, shard: int) -> bool:
        """Whether the shard waits for others: it is behind none of them, and ahead of some."""
        with self._lock:
            own, least = self._reached[shard], self._least()
            is_first = all(own.get(at, 0) >= offset for other in self._reached for at, offset in other.items())
            return is_first and own != least

    def figures(self, shard: int, figures: ViewFigures) -> ViewFigures | None:
        """Take a shard's figures, and return the view's: None until all shards have some, unless a state is built."""
        with self._lock:
            known = self._figures.get(shard)
            if known is None or known.at_ms <= figures.at_ms:
                self._figures[shard] = figures
            of_shards = list(self._figures.values())
            is_building = any(each.building is not None for each in of_shards)
            return together(of_shards) if is_building or len(of_shards) == self.count else None
