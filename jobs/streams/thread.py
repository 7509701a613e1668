"""A stream query's job in a thread of its own."""

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from pyspark.sql import SparkSession

from cdc.model.errors import Fenced, LockstepError
from jobs.clock import now_ms
from jobs.ending_thread import EndingThread
from jobs.generations.lease import NewerJob
from jobs.generations.status import clear_stop, clear_takeover, save_stop, save_takeover
from jobs.report import Report, Reporter, SinkFailed, SinkStarted, SinkStopped
from jobs.spark.session import SparkEnded
from jobs.streams.builds import newest_generation
from jobs.streams.job import StreamJob
from jobs.streams.plan import StreamQueryPlan
from sinks.contract import CoordinationRecords


class StreamThread(EndingThread):
    """Runs a stream query from now on.

    ``newer`` is the job that has ended it, if one has, as it is seen at each build that it may work on.
    """

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, *, report: Reporter) -> None:
        super().__init__(f"stream-{plan.name}", spark, report=report)
        self.plan = plan
        self.newer: dict[int, NewerJob] = {}
        self._job = StreamJob(plan, spark, stop=self._stop, report=self._tell)
        self.start()

    def forget_takeover(self) -> None:
        """It was told to stop after a newer one had ended it, or starts again: nobody need start it."""
        for generation in self.newer:
            self._note(clear_takeover, generation)

    def _tell(self, report: Report) -> None:
        if isinstance(report, SinkStarted):
            self._note(clear_stop, self._job.generation)
        self._report(report)

    def _note(self, note: Callable[[CoordinationRecords, int], None], generation: int | None = None) -> None:
        """Let who looks at this build of the result know, the newest one by default.

        Where that can't be stored the log alone says it.
        """
        with suppress(LockstepError), closing((opened := self.plan.opened(1)).sink):
            number = newest_generation(self.plan, opened) if generation is None else generation
            if number is not None:
                note(opened.records, number)

    def _run(self) -> None:
        self._job.run()

    def _at_end(self) -> None:
        if self.failure is None:
            self._report(SinkStopped(self.plan.name, self._job.generation))
            return
        at_ms = now_ms()
        if not isinstance(self.failure, Fenced):
            self._note(partial(save_stop, error=self.failure, now_ms=at_ms))
        elif not self.plan.once:  # else it is over with the command that it belongs to
            self._note(partial(save_takeover, now_ms=at_ms), self._job.generation)
            self.newer = {self._job.generation: NewerJob()}
        if not isinstance(self.failure, SparkEnded):  # which is every sink's: the driver tells it once
            self._report(SinkFailed(self.plan.name, None, self.failure))
