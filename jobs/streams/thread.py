"""A stream query's job in a thread of its own."""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from pyspark.sql import SparkSession

from cdc.model.errors import ConfigurationError, Fenced, LockstepError
from jobs.executor.result import Failure
from jobs.generations.lease import NewerJob
from jobs.generations.status import clear_stop, clear_takeover, save_stop, save_takeover
from jobs.report import Report, Reporter, SinkFailed, SinkStarted, SinkStopped
from jobs.spark.session import SparkEnded, has_jvm_ended
from jobs.streams.job import StreamJob, newest_generation
from jobs.streams.plan import StreamQueryPlan
from sinks.contract import CoordinationRecords


class StreamThread:
    """Runs a stream query. ``failure`` is what it ended with, once it isn't alive any more.

    ``newer`` is then the job that has ended it, if one has, as it is seen at each build that it may work on.
    """

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, *, report: Reporter) -> None:
        self.plan = plan
        self.failure: LockstepError | None = None
        self.newer: dict[int, NewerJob] = {}
        self._spark = spark
        self._report = report
        self._stop = threading.Event()
        self._job = StreamJob(plan, spark, stop=self._stop, report=self._tell)
        self._thread = threading.Thread(target=self._work, name=f"stream-{plan.name}")
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        """End it after the running batch."""
        self._stop.set()
        self._thread.join()

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

    def _work(self) -> None:
        try:
            self._job.run()
        except (Fenced, ConfigurationError) as error:
            self.failure = error
        except LockstepError as error:
            self.failure = SparkEnded() if has_jvm_ended(self._spark, error) else error
        except Exception as error:
            # A bug of ours must not take the sinks with it.
            self.failure = SparkEnded() if has_jvm_ended(self._spark, error) else Failure.of(error).error()
        if self.failure is None:
            self._report(SinkStopped(self.plan.name, self._job.generation))
            return
        now_ms = time.time_ns() // 1_000_000
        if not isinstance(self.failure, Fenced):
            self._note(partial(save_stop, error=self.failure, now_ms=now_ms))
        elif not self.plan.once:  # else it is over with the command that it belongs to
            self._note(partial(save_takeover, now_ms=now_ms), self._job.generation)
            self.newer = {self._job.generation: NewerJob()}
        if not isinstance(self.failure, SparkEnded):  # which is every sink's: the driver tells it once
            self._report(SinkFailed(self.plan.name, None, self.failure))
