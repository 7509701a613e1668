"""The batches of a stream query: each one's final rows go to a sink before Spark commits it.

The order of a batch: records without a part in it go to the side topic, rows go to the sink and then to their own
topic, the figures are stored, Spark commits. A job that is killed anywhere runs the batch again with the same offsets
and the same watermark. Records on the topics then have the same keys and values, and rows the same tag.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table
from extensions.streams.executor.results import apply_results
from extensions.streams.executor.task_input import StreamInput
from extensions.streams.executor.topics import check_topic_ids
from extensions.streams.jobs.checkpoint import Checkpoint, PlannedBatch
from extensions.streams.jobs.frames import LATE, MALFORMED
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.reading import SideTopic
from extensions.streams.jobs.records import figures_name
from extensions.streams.jobs.report import StreamReport
from extensions.streams.jobs.resume import Begun, Figures, check_checkpoint, load_figures
from jobs.clock import now_ms
from jobs.executor.result import RESULT_SCHEMA, Result, from_arrow
from jobs.executor.task_input import Task
from jobs.generations.lease import GenerationLease
from jobs.generations.read_so_far import ReadSoFar
from jobs.spark.arrow_map import ArrowMap


class Batches:
    """The batches of one run, in order. ``figures`` cover all finished batches; ``read`` counts records read."""

    def __init__(
        self,
        plan: StreamQueryPlan,
        lease: GenerationLease,
        generation: int,
        begun: Begun,
        *,
        checkpoint: Checkpoint,
        sources: int,
        cluster: TopicAdmin,
    ) -> None:
        """Raises LockstepError when the checkpoint doesn't match the figures. ``sources`` is the number of streams."""
        self._plan = plan
        self._lease = lease
        self._generation = generation
        self._begun = begun
        self._checkpoint = checkpoint
        self._sources = sources
        self._cluster = cluster
        self._late_of: tuple[int, int] = (-1, 0)
        """A batch, and how many of its late events went to the side topic."""
        self.figures = load_figures(lease.record, generation)
        self._check_checkpoint()
        self.read = ReadSoFar(sum(self.figures.offsets.values()))

    def _check_checkpoint(self) -> None:
        newest, batch = self._checkpoint.newest_planned(), self.figures.batch
        known = None if batch < 0 else self._planned(batch)
        ends, committed = None if known is None else known.ends, self._checkpoint.newest_committed()
        check_checkpoint(self._plan.name, self.figures, planned=newest, committed=committed, ends=ends)

    def run(
        self,
        frame: DataFrame,
        batch_id: int,
        recent_progress: Iterable[Any],
        side: SideTopic,
        apply: Callable[[DataFrame, int], Result],
    ) -> StreamReport:
        """Do a batch; when this returns, all of it is durable. ``recent_progress`` is Spark's report on earlier
        batches. Raises LockstepError, and Unavailable if the job has to begin again.
        """
        self._lease.check()
        self._check_figures()
        state_rows = self._compare_dropped(recent_progress)
        this = self._planned(batch_id)
        before = self._planned(batch_id - 1) if batch_id else None
        if this is None or (batch_id and before is None):
            raise LockstepError(f"the checkpoint {self._checkpoint.location} has no offsets of batch {batch_id}")
        # If a topic was recreated since, the planned offsets would mean other records now.
        self._check_topics()
        self.read = ReadSoFar(sum(this.ends.values()))
        starts = self._begun.start if before is None else before.ends
        counts = side.write(frame.sparkSession, starts, this.ends, None if before is None else before.watermark_ms)
        result = apply(frame, batch_id)
        # Also if it was recreated during the batch. Spark doesn't commit the batch then.
        self._check_topics()
        self._late_of = batch_id, counts[LATE]
        done = Figures(
            batch=batch_id,
            watermark_ms=this.watermark_ms or None,
            at_ms=now_ms(),
            results=result.applied + result.stale,
            late=counts[LATE],
            malformed=counts[MALFORMED],
            refused=result.rows - result.applied - result.stale,
            state_rows=state_rows,
            offsets=this.ends,
            starts=starts,
        )
        self.figures = self.figures.after(done)
        self._lease.save_claimed(figures_name(self._generation), self.figures.text())
        return StreamReport(
            sink=self._plan.name,
            generation=self._generation,
            batch_id=batch_id,
            results=done.results,
            late=done.late,
            malformed=done.malformed,
            refused=done.refused,
            state_rows=done.state_rows,
            watermark_ms=done.watermark_ms,
        )

    def _planned(self, batch_id: int) -> PlannedBatch | None:
        return self._checkpoint.planned(batch_id, sources=self._sources)

    def _check_figures(self) -> None:
        """Raise Unavailable if the store has other figures than this job because it was put back. The job begins again
        then, and finds out whether it may go on. Raises Fenced if the figures are a newer job's.
        """
        if load_figures(self._lease.record, self._generation) != self.figures:
            self._lease.look()
            raise Unavailable(f"the result of stream query {self._plan.name!r} was put back while its job ran")

    def _check_topics(self) -> None:
        """Raise PositionMismatch if a topic was recreated since the result was begun."""
        known = self._begun.topic_ids
        check_topic_ids(self._plan.name, known, self._cluster.topic_ids(sorted(known)))

    def _compare_dropped(self, recent_progress: Iterable[Any]) -> int:
        """How many rows Spark's state has, as of the last batch. Raises LockstepError if Spark dropped another number
        of events than went to the side topic: every one has to be there.
        """
        batch_id, late = self._late_of
        kept, dropped = self.figures.state_rows, 0
        for progress in recent_progress:
            if progress.batchId == batch_id:
                operators = progress.stateOperators
                dropped = max(dropped, sum(operator.numRowsDroppedByWatermark for operator in operators))
                kept = sum(operator.numRowsTotal for operator in operators)
        if batch_id >= 0 and dropped != late:
            raise LockstepError(
                f"Spark has dropped {dropped} late events of stream query {self._plan.name!r} in batch {batch_id}, and"
                f" {late} went to the side topic",
                hint="this is a bug of Lockstep's; report it with the query",
            )
        return kept


def applied(task: Task, stream: StreamInput, table: Table, frame: DataFrame, batch_id: int) -> Result:
    """Let tasks apply a batch's rows. Raises one of their errors, Unavailable only if there is no other."""
    work = ArrowMap(partial(apply_results, task, stream, table, batch_id), RESULT_SCHEMA)
    result = from_arrow(work(frame).toArrow())
    if result.failures:
        errors = [failure.error() for failure in result.failures]
        raise min(errors, key=lambda error: isinstance(error, Unavailable))
    return result
