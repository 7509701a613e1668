"""Where the view of a generation keeps its state: on the machine of its task."""

import shutil
from pathlib import Path

from cdc.model.errors import ConfigurationError
from jobs.settings import SparkSettings


def state_directory(spark: SparkSettings, *, pipeline: str, sink: str, generation: int) -> Path:
    """Where the view of a generation keeps its state."""
    return spark.view_directory.absolute() / pipeline / sink / f"g{generation}"


def remove_state(spark: SparkSettings, *, pipeline: str, sink: str, generation: int) -> None:
    """Remove the state of a generation that is dropped, as far as it is on this machine."""
    shutil.rmtree(state_directory(spark, pipeline=pipeline, sink=sink, generation=generation), ignore_errors=True)


def check_can_keep(spark: SparkSettings, name: str) -> None:
    """Raise ConfigurationError where the tasks of this view would each have a state of their own."""
    if not spark.is_local:
        raise ConfigurationError(
            f"view {name!r} keeps its state on the machine of its task, and this Spark is a cluster",
            hint='keep views in a job with a local master: spark.master = "local[2]"',
        )
