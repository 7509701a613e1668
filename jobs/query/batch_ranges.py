"""Where the next batch of a query begins and ends: from the sink's progress up to the log's end."""

from collections.abc import Sequence
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import PositionMismatch, Unavailable
from jobs.offsets import Offsets
from jobs.query.progress import ProgressKeeper
from jobs.query.resume_check import check_read_is_there
from jobs.query.sink_plan import SinkPlan
from jobs.query.topic_watch import TopicWatch
from sinks.contract import TopicPartition

_TRIES: Final = 3
"""How often to ask brokers that report an end before what was read: after a change of leaders they may need a
moment."""


class BatchPlan:
    """Plans one batch after the other. Raises Unavailable if brokers don't answer."""

    def __init__(
        self,
        plan: SinkPlan,
        partitions: Sequence[TopicPartition],
        keeper: ProgressKeeper,
        topics: TopicWatch,
        cluster: TopicAdmin,
    ) -> None:
        self._sink, self._limits = plan.name, plan.limits
        self._once = plan.once
        self._partitions = partitions
        self._keeper = keeper
        self._topics = topics
        self._cluster = cluster
        # Whether to skip a beginning that the log may have lost, since nobody wants it.
        self._passes_lost = plan.trimmed
        # Where a ``once`` query ends.
        self._last_ends: Offsets | None = None
        # How often in a row the log ended before what was read.
        self._ended_before = 0

    def has_more(self) -> bool:
        """Whether the log's end differs from the reading position. It is lower if the log has lost records."""
        positions = self._keeper.positions
        return any(positions.get(at, 0) != end for at, end in self._cluster.committed_ends(self._partitions).items())

    def next(self) -> tuple[Offsets, Offsets]:
        """Where the next batch begins and ends in each partition. Raises PositionMismatch if a topic was recreated, or
        ends before what was read."""
        if self._passes_lost:
            self._pass_lost()
        known = self._keeper.positions
        starts = {at: known.get(at, 0) for at in self._partitions}
        ends = self._last_ends or self._ends_behind(starts)
        if self._once:
            self._last_ends = ends
        return starts, self._limits.ends(starts, ends)

    def _pass_lost(self) -> None:
        known, begins = self._keeper.positions, self._cluster.begin_offsets(self._partitions)
        reached = {at: known.get(at, 0) or begin for at, begin in begins.items()}
        if any(offset > known.get(at, 0) for at, offset in reached.items()):
            # With all partitions: otherwise the next query would take the topic for one with fewer partitions.
            self._keeper.batch_applied(reached, rejected=0)
        self._passes_lost = False

    def _ends_behind(self, starts: Offsets) -> Offsets:
        ends = self._cluster.committed_ends(self._partitions)
        try:
            check_read_is_there(self._sink, starts, ends)
        except PositionMismatch as lost:
            self._topics.check(self._cluster, {at[0] for at, end in ends.items() if starts[at] > end})
            self._ended_before += 1
            if self._ended_before == _TRIES:
                raise
            raise Unavailable(lost.message) from lost
        self._ended_before = 0
        return ends
