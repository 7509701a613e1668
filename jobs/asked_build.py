"""The driver's side of a build: runs the job that a rebuild requests while the request shows that it lives."""

import threading
from contextlib import closing, suppress
from dataclasses import asdict, replace

from pyspark.sql import SparkSession

from cdc.machine_load import patient
from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.timeouts import BUILD_SILENT_S
from jobs.ending_thread import EndingThread
from jobs.executor.result import Failure
from jobs.generations.build_request import (
    BEAT_S,
    BuildAnswer,
    BuildRequest,
    BuildState,
    Silence,
    load_request,
    save_answer,
    withdraw,
)
from jobs.job_thread import JobThread
from jobs.query.sink_plan import SinkPlan
from jobs.report import BatchApplied, Report, Reporter, SinkFailed, SinkStarted, SinkWaiting
from jobs.spark.session import SparkEnded
from sinks.contract import OpenedSink


class AskedBuild(EndingThread):
    """The job of a request, and a thread that answers the request. Ends when the job has, or the request is gone."""

    def __init__(self, plan: SinkPlan, spark: SparkSession, request: BuildRequest, *, report: Reporter) -> None:
        super().__init__(f"build-{plan.name}-g{plan.generation}", spark, report=report)
        self._plan = plan
        self._answer = BuildAnswer(request.run)
        self._lock = threading.Lock()  # the job reports from threads of its own
        self._job = JobThread(plan, spark, report=self._take_in)
        self.start()

    def ask_to_stop(self) -> None:
        """The driver ends: another one may begin the job again."""
        super().ask_to_stop()
        self._job.ask_to_stop()

    def _run(self) -> None:
        try:
            if (opened := self._opened()) is not None:
                with closing(opened.sink):
                    self._attend(opened)
        finally:
            self._job.stop()

    def _at_end(self) -> None:
        if self.failure is not None:  # the command doesn't know it, and goes on without this driver
            self._report(SinkFailed(self._plan.name, self._plan.generation, self.failure))

    def _opened(self) -> OpenedSink | None:
        """The store that has the request. None if it doesn't answer until the driver ends."""
        while True:
            try:
                return self._plan.opened()
            except Unavailable:
                if self._stop.wait(BEAT_S):
                    return None

    def _attend(self, opened: OpenedSink) -> None:
        """Answer until the job has ended. Stops the job once nobody requests it any more."""
        silence, is_gone, outages = Silence(), False, 0
        while self._job.is_alive:
            self._job.wait(BEAT_S)
            try:
                request = load_request(opened.records, self._plan.generation)
                is_gone = is_gone or silence.seconds(request, outages) > patient(BUILD_SILENT_S)
                if is_gone or request is None or request.run != self._answer.run:
                    self._job.ask_to_stop()
                self._report_build(opened)
            except LockstepError:  # a destination that doesn't answer now is asked again
                outages += 1
        if is_gone:
            with suppress(LockstepError):
                withdraw(opened.records, self._plan.generation, self._answer.run)
        else:
            self._report_end(opened)

    def _report_end(self, opened: OpenedSink) -> None:
        """Report how the job has ended. Waits for a destination that doesn't answer until the driver ends."""
        failure = self._job.failure
        if isinstance(failure, Fenced):  # by another driver, which answers now
            return
        if isinstance(failure, SparkEnded) or self._stop.is_set():  # a failure of the build comes again elsewhere
            end = replace(self._answer, state=BuildState.LEFT)
        elif failure is None:
            end = replace(self._answer, state=BuildState.DONE)
        else:
            end = replace(self._answer, state=BuildState.FAILED, failure=Failure.of(failure))
        self._answer = end  # nobody else changes it any more
        while True:
            try:
                self._report_build(opened)
            except Unavailable:
                if not self._stop.wait(BEAT_S):
                    continue
            except LockstepError:
                pass
            return

    def _report_build(self, opened: OpenedSink) -> None:
        with self._lock:
            self._answer = answer = replace(self._answer, beats=self._answer.beats + 1)
        save_answer(opened.records, self._plan.generation, answer)

    def _take_in(self, report: Report) -> None:
        with self._lock:
            match report:
                case SinkStarted():
                    self._answer = replace(self._answer, queries=self._answer.queries + 1, waiting="")
                case BatchApplied():
                    rows = self._answer.rows + report.rows
                    self._answer = replace(self._answer, rows=rows, batch=asdict(report), waiting="")
                case SinkWaiting():
                    self._answer = replace(self._answer, waiting=report.reason)
                case _:
                    pass
        if not isinstance(report, SinkFailed):  # whoever requested the job raises it
            self._report(report)
