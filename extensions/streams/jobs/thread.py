"""A stream query's job in a thread of its own, beside the jobs of sinks in a driver."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from cdc.model.errors import Fenced, LockstepError
from extensions.streams.jobs.builds import newest_generation
from extensions.streams.jobs.job import StreamJob
from extensions.streams.jobs.plan import StreamQueryPlan
from jobs.clock import now_ms
from jobs.ending_thread import EndingThread, goes_on_after
from jobs.generations.lease import NewerJob
from jobs.generations.status import clear_stop, clear_takeover, save_stop, save_takeover
from jobs.report import Report, Reporter, SinkFailed, SinkStarted, SinkStopped
from jobs.spark.session import SparkEnded
from sinks.contract import CoordinationRecords
from sinks.registry import SinkSettings


class StreamThread(EndingThread):
    """Starts itself. ``newer`` is the job that ended it, if any, as seen at each build that it may work on."""

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, *, report: Reporter) -> None:
        super().__init__(f"stream-{plan.name}", spark, report=report)
        self.plan = plan
        self.newer: dict[int, NewerJob] = {}
        self._job = StreamJob(plan, spark, stop=self._stop, report=self._forward)
        self.start()

    def forget_takeover(self) -> None:
        """Delete the record that a newer job took over: this job was stopped, or starts again."""
        for generation in self.newer:
            self._note(clear_takeover, generation)

    def _forward(self, report: Report) -> None:
        if isinstance(report, SinkStarted):
            self._note(clear_stop, self._job.generation)
        self._report(report)

    def _note(self, note: Callable[[CoordinationRecords, int], None], generation: int | None = None) -> None:
        """Write a record for observers of a build, by default the newest. If the store fails, only the log has it."""
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
        elif not self.plan.once:  # otherwise it ends with the command that it belongs to
            self._note(partial(save_takeover, now_ms=at_ms), self._job.generation)
            self.newer = {self._job.generation: NewerJob()}
        if not isinstance(self.failure, SparkEnded):  # it concerns every sink: the driver reports it once
            self._report(SinkFailed(self.plan.name, None, self.failure))


class _Supervised:
    """A ``jobs.extension_jobs.RunningJob``. If a job that is done had ended the thread, another thread takes over."""

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, report: Reporter) -> None:
        self._spark = spark
        self._report = report
        self._thread = StreamThread(plan, spark, report=report)

    @property
    def failure(self) -> LockstepError | None:
        return self._thread.failure

    @property
    def is_over(self) -> bool:
        thread = self._thread
        return not thread.is_alive and not any(newer.ends_by_itself is not False for newer in thread.newer.values())

    def look(self) -> None:
        """Once the newer job works on a newer build, it gives no more signs of life at the build that it took over."""
        thread = self._thread
        if thread.is_alive or not thread.newer:
            return
        plan = thread.plan
        with suppress(LockstepError), closing((opened := plan.opened(1)).sink):  # if it is away, the next look tells
            newest = newest_generation(plan, opened)
            if newest is not None:
                thread.newer.setdefault(newest, NewerJob())
            goes_on = [
                goes_on_after(plan.name, newer, opened.records, number, report=self._report)
                for number, newer in thread.newer.items()
            ]
            if all(goes_on):
                thread.forget_takeover()
                self._thread = StreamThread(plan, self._spark, report=self._report)

    def ask_to_stop(self) -> None:
        self._thread.ask_to_stop()

    def stop(self, *, for_good: bool) -> None:
        self._thread.stop()
        if for_good:
            self._thread.forget_takeover()


@dataclass(frozen=True, slots=True)
class StreamQueryJob:
    plan: StreamQueryPlan

    @property
    def settings(self) -> SinkSettings:
        return self.plan.settings

    def begin(self, spark: SparkSession, report: Reporter) -> _Supervised:
        return _Supervised(self.plan, spark, report)
