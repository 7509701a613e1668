"""A job in a thread of its own: how it ended, and whether it should start again."""

import threading
from abc import ABC, abstractmethod
from typing import Final

from pyspark.sql import SparkSession

from cdc.model.errors import ConfigurationError, Fenced, LockstepError
from jobs.executor.result import Failure
from jobs.generations.lease import NewerJob
from jobs.generations.status import has_error
from jobs.report import Reporter, SinkWaiting
from jobs.spark.session import SparkEnded, has_jvm_ended
from sinks.contract import CoordinationRecords

LOOK_S: Final = 2.0
"""How often a driver looks whether jobs must start or end. A warehouse looks at all its views for that."""


class EndingThread(ABC):
    """Runs ``_run`` to its end, then ``_at_end``, in a thread that begins with ``start``. A bug ends only this job."""

    def __init__(self, name: str, spark: SparkSession, *, report: Reporter) -> None:
        # The error that ended it, once it isn't alive any more; None if it just ended.
        self.failure: LockstepError | None = None
        self._spark = spark
        self._report = report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def was_asked_to_stop(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, but at most so long."""
        self._thread.join(seconds)

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        """End it after the running batch."""
        self.ask_to_stop()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """The job's work."""

    @abstractmethod
    def _at_end(self) -> None:
        """Called once ``failure`` is known."""

    def _work(self) -> None:
        try:
            self._run()
        except (Fenced, ConfigurationError) as error:
            self.failure = error
        except Exception as error:
            if has_jvm_ended(self._spark, error):
                self.failure = SparkEnded()
            else:
                self.failure = error if isinstance(error, LockstepError) else Failure.of(error).error()
        self._at_end()


def goes_on_after(sink: str, newer: NewerJob, records: CoordinationRecords, number: int, *, report: Reporter) -> bool:
    """Whether a job that a newer one had ended should start again. Never while the newer one may run: the two would
    take over from each other without end. A newer job that ended with an error may start again by itself, unless it was
    one of ``apply --once``."""
    if newer.ends_by_itself is not None and not newer.is_told:
        message = f"another job applies to generation {number} in its place, and it goes on once that one is done"
        report(SinkWaiting(sink, message, LOOK_S))
        newer.is_told = True
    try:
        newer.look(records, number)
        return newer.has_ended and (bool(newer.ends_by_itself) or not has_error(records, number))
    except LockstepError:  # the next look tells
        return False
