"""Where the shards of a view are: each with the next offsets that its sink was told of. The view is where all are.

The sink's progress has those of each shard. Without them a shard's state that was put back to where the last shard is
would seem to be good, and the sink may have later rows of it. They are stored with all other progress or not at all: a
sink that was put back says of each shard where it was then.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from jobs.offsets import Offsets
from sinks.contract import Progress, TopicPartition
from views.figures import ViewFigures, together


class ViewShards:
    """Those of one view. Called by the batches' thread, and by the one that listens to tasks."""

    def __init__(self, reached: Sequence[Mapping[TopicPartition, int]]) -> None:
        """``reached`` are those of each shard as they are stored, empty for one that has told nothing yet."""
        self._lock = threading.Lock()
        self._saving = threading.Lock()  # else what is older could take the place of what is newer
        self._reached: list[Offsets] = [dict(offsets) for offsets in reached]
        self._stored: list[Offsets] = [dict(offsets) for offsets in reached]
        self._figures: dict[int, ViewFigures] = {}

    @classmethod
    def of_progress(
        cls, stored: Sequence[Mapping[TopicPartition, int]], *, count: int, reached: Mapping[TopicPartition, int]
    ) -> Self:
        """So many shards with what is ``stored`` of them, none of which is behind the view, which has ``reached`` this.

        Where so many aren't stored, all are where the view is.
        """
        known = stored if len(stored) == count else [reached] * count
        return cls([{**reached, **{at: max(end, reached.get(at, 0)) for at, end in own.items()}} for own in known])

    @property
    def count(self) -> int:
        return len(self._reached)

    def reach(self, shard: int, offsets: Mapping[TopicPartition, int]) -> None:
        """A shard has told how far it is, of those partitions that have moved. It may be told late, or again."""
        with self._lock:
            own = self._reached[shard]
            own.update({at: max(offset, own.get(at, 0)) for at, offset in offsets.items()})

    def store(self, save: Callable[[Offsets, Sequence[Offsets]], Progress]) -> Progress:
        """Have progress saved: where the view is, and where each shard is. Returns what ``save`` does.

        Raises what that raises, and nothing counts as stored then.
        """
        with self._saving:
            with self._lock:
                least, reached = self._least(), [dict(offsets) for offsets in self._reached]
            progress = save(least, reached)
            with self._lock:
                self._stored = reached
            return progress

    def stored(self, shard: int) -> Offsets:
        """The next offsets of one shard, as far as they are stored in the destination."""
        with self._lock:
            return dict(self._stored[shard])

    @property
    def least(self) -> Offsets:
        """Up to where all shards are; of partitions that all have told of."""
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
        """Whether it waits for others: it is nowhere behind any of them, and before some."""
        with self._lock:
            own, least = self._reached[shard], self._least()
            is_first = all(own.get(at, 0) >= offset for other in self._reached for at, offset in other.items())
            return is_first and own != least

    def figures(self, shard: int, figures: ViewFigures) -> ViewFigures | None:
        """A shard's own are these. Those of the view; None before all shards have told theirs.

        While a state is built, that is told of at once.
        """
        with self._lock:
            known = self._figures.get(shard)
            if known is None or known.at_ms <= figures.at_ms:
                self._figures[shard] = figures
            of_shards = list(self._figures.values())
            is_building = any(each.building is not None for each in of_shards)
            return together(of_shards) if is_building or len(of_shards) == self.count else None
