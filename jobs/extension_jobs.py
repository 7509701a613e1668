"""Jobs of extensions that a driver runs in its Spark session beside those of its sinks."""

from typing import Protocol

from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from jobs.report import Reporter
from sinks.registry import SinkSettings


class RunningJob(Protocol):
    """A job at work. All methods but ``stop`` return at once."""

    @property
    def failure(self) -> LockstepError | None:
        """The error that ended it; None if it runs, or just ended."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and doesn't start again by itself."""
        ...

    def look(self) -> None:
        """Start again if that is due. Called every few seconds."""
        ...

    def ask_to_stop(self) -> None:
        """Called for all jobs before the first ``stop``."""
        ...

    def stop(self, *, for_good: bool) -> None:
        """End it after the running batch. ``for_good``: the driver was asked to end."""
        ...


class JobBeside(Protocol):
    """A job that is to run. Nothing is opened before it begins."""

    @property
    def settings(self) -> SinkSettings:
        """The settings of the sink that it writes to."""
        ...

    def begin(self, spark: SparkSession, report: Reporter) -> RunningJob:
        """Called once, when the session is open."""
        ...
