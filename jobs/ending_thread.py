"""A thread of its own for a job, what becomes known of its end, and whether it is to start again after that."""

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
"""How often a driver looks whether jobs are to start or to end. A warehouse looks at all its views for that."""


class EndingThread(ABC):
    """Runs ``_run`` until it returns or raises, then ``_at_end``, in a thread that begins with ``start``.

    A bug in one job ends that job alone.
    """

    def __init__(self, name: str, spark: SparkSession, *, report: Reporter) -> None:
        # What it ended with, once it isn't alive any more; None where it just ended.
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
        """Until it has ended, but no longer than this."""
        self._thread.join(seconds)

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        """End it after the running batch."""
        self.ask_to_stop()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """What it does."""

    @abstractmethod
    def _at_end(self) -> None:
        """What it leaves, once ``failure`` is known."""

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
    """Whether a job is to start again that a newer one had ended.

    It never is while that one may run: the two would take over from each other without end. One that has ended by
    an error may come again by itself, unless it was one of ``apply --once``.
    """
    if newer.ends_by_itself is not None and not newer.is_told:
        message = f"another job applies to generation {number} in its place, and it goes on once that one is done"
        report(SinkWaiting(sink, message, LOOK_S))
        newer.is_told = True
    try:
        newer.look(records, number)
        return newer.has_ended and (bool(newer.ends_by_itself) or not has_error(records, number))
    except LockstepError:  # the next look tells
        return False
