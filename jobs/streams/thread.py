"""A stream query's job in a thread of its own."""

import threading
import time
from contextlib import suppress

from pyspark.sql import SparkSession

from cdc.model.errors import ConfigurationError, Fenced, LockstepError
from jobs.executor.result import Failure
from jobs.generations.status import clear_stop, save_stop
from jobs.report import Report, Reporter, SinkFailed, SinkStarted, SinkStopped
from jobs.spark.session import SparkEnded, has_jvm_ended
from jobs.streams.job import StreamJob, newest_generation
from jobs.streams.plan import StreamQueryPlan


class StreamThread:
    """Runs a stream query. ``failure`` is what it ended with, once it isn't alive any more."""

    def __init__(self, plan: StreamQueryPlan, spark: SparkSession, *, report: Reporter) -> None:
        self.failure: LockstepError | None = None
        self._plan = plan
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

    def _tell(self, report: Report) -> None:
        if isinstance(report, SinkStarted):
            self._note(None)
        self._report(report)

    def _note(self, error: LockstepError | None) -> None:
        """Let who looks at the result know what its job has ended by. Where that can't be stored the log says it."""
        with suppress(LockstepError):
            opened = self._plan.opened(1)
            try:
                number = newest_generation(self._plan, opened)
                if number is not None and error is not None:
                    save_stop(opened.records, number, error=error, now_ms=time.time_ns() // 1_000_000)
                elif number is not None:
                    clear_stop(opened.records, number)
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
            # A bug of ours must not take the sinks with it.
            self.failure = SparkEnded() if has_jvm_ended(self._spark, error) else Failure.of(error).error()
        if self.failure is None:
            self._report(SinkStopped(self._plan.name, self._job.generation))
            return
        if not isinstance(self.failure, Fenced):
            self._note(self.failure)
        if not isinstance(self.failure, SparkEnded):  # which is every sink's: the driver tells it once
            self._report(SinkFailed(self._plan.name, None, self.failure))
