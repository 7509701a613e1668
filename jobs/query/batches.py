"""The batches of one query: where each begins and ends, what is stored of its result, and when the next one follows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from cdc.model.errors import DataLost, LockstepError, Unavailable
from jobs.executor.log_reader import Range, open_ranges, ranges, spread
from jobs.executor.result import RejectedEvent, Result, check_rejections
from jobs.executor.task_input import Task
from jobs.executor.view_shards import range_of_shard
from jobs.offsets import Offsets
from jobs.query.applied import Applied
from jobs.query.batch_ranges import BatchPlan
from jobs.query.delivery import Delivery
from jobs.query.failures import Backoff
from jobs.query.long_batch_listener import TaskSlots
from jobs.query.progress import ProgressKeeper
from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import QueryState
from jobs.query.whole_progress import WholeProgress
from jobs.spark.source import range_frame
from sinks.contract import NOTHING_WRITTEN, TopicPartition
from views.retention import whole_minutes

_PLANS_MAX: Final = 4
"""How often a query asks the brokers where its next batch ends, before it gives way to the next query."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a batch says about the next one."""

    had_any: bool = False
    """Whether it had work, so that more may follow soon."""
    may_rest: bool = True
    """Whether to wait for new records before the next batch."""
    looks_now: bool = False
    """Whether to look for new records at once."""


class Batches(Protocol):
    """The batches of one query."""

    def run(self, spark: SparkSession) -> Ran:
        """Run one batch; everything is durable when it returns. Raises LockstepError, and Stopping."""

    def has_more(self) -> bool:
        """Whether an idle query has something to do. Raises LockstepError."""


class Slots:
    """The task slots of this process that one query's batches hold all the time while they go on."""

    def __init__(self, slots: TaskSlots, *, count: int, tasks_at_once: int, goes_on: bool) -> None:
        self._slots = slots
        self._count = count
        self._tasks_at_once = tasks_at_once
        self._goes_on = goes_on

    def take(self) -> bool:
        """Whether the next batch goes on. If so, call ``give_back`` after it."""
        return self._goes_on and self._slots.take(self._tasks_at_once, self._count)

    def give_back(self) -> None:
        self._slots.give_back(self._count)


class RowBatches:
    """The batches of a sink that gets rows as they come. One task reads a few rows, several read a backlog."""

    def __init__(
        self,
        plan: SinkPlan,
        planned: BatchPlan,
        keeper: ProgressKeeper,
        delivery: Delivery,
        applied: Applied,
        slots: Slots,
        state: QueryState,
    ) -> None:
        self._once = plan.once
        self._limits = plan.limits
        self._plan = planned
        self._keeper = keeper
        self._delivery = delivery
        self._applied = applied
        self._slots = slots
        self._state = state

    def has_more(self) -> bool:
        return self._plan.has_more()

    def run(self, spark: SparkSession) -> Ran:
        starts, ends = self._planned()
        # Whether one task is quicker than one per partition. Offsets count gaps too, which only errs on the safe side.
        wanted_ranges = ranges(starts, ends)
        rows_at_most = self._state.planned_rows = sum(ends[part.at] - starts[part.at] for part in wanted_ranges)
        is_small = self._limits.is_small(rows_at_most)
        # Check before anything is applied, since a recreated topic doesn't continue the old one; and before a slot is
        # taken, which an error would leak.
        self._delivery.check({part.topic for part in wanted_ranges})
        goes_on = is_small and self._slots.take()
        # After a large batch there may be more without a progress record, such as rows of a first copy.
        ran = Ran(True, may_rest=not (goes_on or self._once), looks_now=not is_small)
        if not (goes_on or wanted_ranges):
            return replace(ran, had_any=False)
        self._applied.batch_id += 1
        if goes_on:
            result = self._go_on(spark, starts, ends)
            # A long batch reports positions past transaction markers, and no row has stored those.
            written: Mapping[TopicPartition, int] = NOTHING_WRITTEN
        else:
            # These tasks report nothing before their end, so what they are about to read counts as read.
            self._keeper.read_to(ends)
            tasks_max = self._limits.tasks(rows_at_most, cores=spark.sparkContext.defaultParallelism)
            records = range_frame(spark, spread(wanted_ranges, tasks_max=tasks_max))
            result = self._delivery.run(lambda: records, {part.topic for part in wanted_ranges}, goes_on=False)
            written = result.next_offsets
        self._applied.keep_rejections(result)
        reached = {at: max(end, result.next_offsets.get(at, 0)) for at, end in ends.items()}
        progress = self._keeper.batch_applied(reached, rejected=len(result.rejected), written=written)
        self._applied.report_part(result, progress)
        return ran

    def _go_on(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> Result:
        try:
            # Each attempt starts from the current position: the one before may have come far.
            return self._delivery.run(
                lambda: range_frame(spark, [open_ranges({**starts, **self._keeper.positions}, ends)]),
                {topic for topic, _ in ends},
                goes_on=True,
            )
        finally:
            self._slots.give_back()

    def _planned(self) -> tuple[Offsets, Offsets]:
        """Plan the next batch. Raises as ``BatchPlan.next``, but Unavailable only after some tries. The next query then
        finds out whether single topics are gone or unreadable, and goes on with the others."""
        backoff = Backoff()
        for _ in range(_PLANS_MAX - 1):
            try:
                return self._plan.next()
            except DataLost:
                raise
            except Unavailable as error:
                self._delivery.wait_out(error, backoff)
        return self._plan.next()


class WholeBatches:
    """The batches of a sink whose task decides what to read: a view's state, or the sink, knows its position."""

    def __init__(
        self,
        plan: SinkPlan,
        task: Task,
        planned: BatchPlan,
        progress: WholeProgress,
        delivery: Delivery,
        applied: Applied,
        slots: Slots,
        is_over: Callable[[], bool],
    ) -> None:
        """``is_over`` says whether the query is to end."""
        self._plan = plan
        self._task = task
        self._planned = planned
        self._progress = progress
        self._keeper = progress.keeper
        self._delivery = delivery
        self._applied = applied
        self._slots = slots
        self._is_over = is_over
        # The minute of the source's time up to which the last batch may have looked for rows that are too old.
        self._minute_ms = 0

    def has_more(self) -> bool:
        return self._planned.has_more() or self._time_has_passed()

    def run(self, spark: SparkSession) -> Ran:
        self._applied.batch_id += 1
        # Set before the tasks look: they know this time or a later one.
        self._minute_ms = max(self._minute_ms, whole_minutes(self._keeper.commit_time_ms))
        self._delivery.check(self._task.tables.keys())
        goes_on = self._slots.take()
        try:
            result = self._delivered(spark, goes_on=goes_on)
        finally:
            if goes_on:
                self._slots.give_back()
        self._progress.reach(result)
        self._applied.end_view(result)
        once, bulk = self._plan.once, self._plan.bulk
        if result.next_offsets:
            progress = self._progress.store(result.next_offsets, rejected=len(result.rejected))
            self._applied.report_part(result, progress)
            if result.lacks_record and once:
                self._applied.report_lacking(progress, awaits_copy=result.awaits_copy)
        elif result.lacks_record and once and not bulk:  # after a bulk load another job goes on
            what = "view" if self._task.steps is None else "sink"
            raise lacks_record(f"{what} {self._plan.name!r}", awaits_copy=result.awaits_copy)
        # It may have ended only because of rejections.
        return Ran(may_rest=not goes_on, looks_now=bool(result.rejected or result.resolved))

    def _delivered(self, spark: SparkSession, *, goes_on: bool) -> Result:
        """Run the batch. A task ends early when its rejections grow too large, and goes on once they are stored."""
        result = Result()
        refused: dict[tuple[str, bytes], RejectedEvent] = {}
        while True:
            part = self._delivery.run(lambda: self._ranges_of_shards(spark), self._task.tables.keys(), goes_on=goes_on)
            # Each part alone may have too few to be refused.
            refused = {at: event for at, event in refused.items() if at not in part.resolved}
            refused |= {(event.position.topic, event.key): event for event in part.rejected}
            check_rejections(self._task.sink, list(refused.values()))
            self._applied.keep_rejections(part)
            # There may be many parts, and these values are stored by now.
            part.rejected = [replace(event, value=None) for event in part.rejected]
            refused |= {(event.position.topic, event.key): event for event in part.rejected}
            result.add(part)
            if not part.has_more or self._is_over():
                return result

    def _ranges_of_shards(self, spark: SparkSession) -> DataFrame:
        """The offsets stored in the sink by now: a batch that goes on may have come far before an attempt failed."""
        if (shards := self._progress.shards) is not None:
            return range_frame(spark, [range_of_shard(number, shards.stored(number)) for number in range(shards.count)])
        return range_frame(spark, [[Range(*at, 0, offset) for at, offset in self._keeper.reached.items()]])

    def _time_has_passed(self) -> bool:
        """Whether rows of a view's tables may have become too old since the last batch, though no events came."""
        view = self._task.view
        if view is None or not view.plan.retained:
            return False
        return whole_minutes(self._keeper.commit_time_ms) > self._minute_ms


def lacks_record(what: str, *, awaits_copy: bool) -> LockstepError:
    """The error of a sink that applies whole transactions and has no complete one yet. Pure."""
    if awaits_copy:
        return LockstepError(
            f"{what} can't be built: one of its tables is being copied, and it begins when that copy is complete",
            hint="run this again once `lockstep lag` shows no copy any more; capture and the copy have to go on"
            " until then",
        )
    return LockstepError(
        f"{what} can't be built: no progress record is newer than all rows that were read",
        hint="start capture, which writes one: `lockstep run` or `lockstep capture`; then run this again",
    )
