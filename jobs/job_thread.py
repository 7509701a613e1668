"""A sink's job in a thread of its own, and what becomes known of its end."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession

from cdc.model.errors import ConfigurationError, Fenced, LockstepError
from jobs.executor.result import Failure
from jobs.generations.lease import NewerJob
from jobs.generations.status import clear_stop, clear_takeover, save_stop, save_takeover
from jobs.query.job import SinkJob
from jobs.query.sink_plan import SinkPlan
from jobs.report import Report, Reporter, SinkFailed, SinkStarted, SinkStopped
from jobs.spark.session import SparkEnded, has_jvm_ended
from sinks.contract import CoordinationRecords


class JobThread:
    """A SinkJob in a thread of its own. ``failure`` is what it ended with, once it isn't alive any more.

    ``newer`` is then the job that has ended it, if one has.
    """

    def __init__(self, plan: SinkPlan, spark: SparkSession, *, report: Reporter) -> None:
        self.plan = plan
        self.failure: LockstepError | None = None
        self.newer: NewerJob | None = None
        self._stop = threading.Event()
        self._spark = spark
        self._job = SinkJob(plan, spark, stop=self._stop, report=self._tell)
        self._report = report
        self._thread = threading.Thread(target=self._work, name=f"sink-{plan.name}-g{plan.generation}")
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def was_asked_to_stop(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float) -> None:
        """Until it has ended, but no longer than this."""
        self._thread.join(seconds)

    def ask_to_stop(self) -> None:
        self._stop.set()

    def forget_takeover(self) -> None:
        """It was told to stop after a newer one had ended it: nobody need start it again."""
        self._note(clear_takeover)

    def stop(self) -> None:
        """End it after the running batch."""
        self._stop.set()
        self._thread.join()

    def _tell(self, report: Report) -> None:
        if isinstance(report, SinkStarted):
            self._note(clear_stop)
        self._report(report)

    def _note(self, note: Callable[[CoordinationRecords, int], None]) -> None:
        """Let who looks at the sink know. Where the destination takes nothing, the log alone says it."""
        with suppress(LockstepError):
            opened = self.plan.opened()
            try:
                note(opened.records, self.plan.generation)
            finally:
                opened.sink.close()

    def _work(self) -> None:
        try:
            self._job.run()
        except (Fenced, ConfigurationError) as error:
            self.failure = error
        except LockstepError as error:
            self.failure = SparkEnded() if has_jvm_ended(self._spark, error) else error
        except Exception as error:
            # A bug of ours must not take the other sinks with it.
            self.failure = SparkEnded() if has_jvm_ended(self._spark, error) else Failure.of(error).error()
        if self.failure is None:
            self._report(SinkStopped(self.plan.name, self.plan.generation))
        else:
            now_ms = time.time_ns() // 1_000_000
            if not isinstance(self.failure, Fenced):
                self._note(partial(save_stop, error=self.failure, now_ms=now_ms))
            elif self.plan.go_live and not self.plan.once:  # else it is over with the command that it belongs to
                self._note(partial(save_takeover, now_ms=now_ms))
                self.newer = NewerJob()
            if not isinstance(self.failure, SparkEnded):  # which is every sink's: the driver tells it once
                self._report(SinkFailed(self.plan.name, self.plan.generation, self.failure))
