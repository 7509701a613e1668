"""A sink's job in a thread of its own, and the records that it leaves in the sink at its end."""

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from pyspark.sql import SparkSession

from cdc.model.errors import Fenced, LockstepError
from jobs.clock import now_ms
from jobs.ending_thread import EndingThread
from jobs.generations.lease import NewerJob
from jobs.generations.status import clear_stop, clear_takeover, save_stop, save_takeover
from jobs.query.job import SinkJob
from jobs.query.sink_plan import SinkPlan
from jobs.report import Report, Reporter, SinkFailed, SinkStarted, SinkStopped
from jobs.spark.session import SparkEnded
from sinks.contract import CoordinationRecords


class JobThread(EndingThread):
    """Runs a SinkJob from now on. ``newer`` is the job that has ended it, if any."""

    def __init__(self, plan: SinkPlan, spark: SparkSession, *, report: Reporter) -> None:
        super().__init__(f"sink-{plan.name}-g{plan.generation}", spark, report=report)
        self.plan = plan
        self.newer: NewerJob | None = None
        self._job = SinkJob(plan, spark, stop=self._stop, report=self._forward)
        self.start()

    def forget_takeover(self) -> None:
        """It was asked to stop after a newer job had ended it, so nobody need start it again."""
        self._note(clear_takeover)

    def _run(self) -> None:
        self._job.run()

    def _at_end(self) -> None:
        if self.failure is None:
            self._report(SinkStopped(self.plan.name, self.plan.generation))
            return
        at_ms = now_ms()
        if not isinstance(self.failure, Fenced):
            self._note(partial(save_stop, error=self.failure, now_ms=at_ms))
        elif self.plan.go_live and not self.plan.once:  # otherwise it ends with its command
            self._note(partial(save_takeover, now_ms=at_ms))
            self.newer = NewerJob()
        if not isinstance(self.failure, SparkEnded):  # it concerns every sink: the driver reports it once
            self._report(SinkFailed(self.plan.name, self.plan.generation, self.failure))

    def _forward(self, report: Report) -> None:
        if isinstance(report, SinkStarted):
            self._note(clear_stop)
        self._report(report)

    def _note(self, note: Callable[[CoordinationRecords, int], None]) -> None:
        """Leave a record for readers of the sink. If the destination takes nothing, only the log says it."""
        with suppress(LockstepError), closing((opened := self.plan.opened()).sink):
            note(opened.records, self.plan.generation)
