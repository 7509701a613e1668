"""The alerts of a configuration: what is looked at besides the lag, and who is told."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lockstep.config import Config
from monitor.alerts.facts import FactsCollector
from monitor.alerts.watch import AlertWatch


@contextlib.contextmanager
def open_watch(config: Config) -> Iterator[AlertWatch]:
    """What is given each lag report, until it is closed. One process of a machine tells; the others only look."""
    with (
        FactsCollector(
            config.as_pipeline(), config.sinks, state_directories(config), with_standby=config.alerts.standby
        ) as facts,
        AlertWatch(config.pipeline.name, config.alerts, facts=facts.latest) as watch,
    ):
        yield watch


def state_directories(config: Config) -> list[Path]:
    """The directories that Lockstep writes to on this machine."""
    directories = [Path(config.capture.values_directory), config.alerts.directory]
    if config.capture.spool_transactions:
        directories.append(Path(config.capture.spool_directory))
    if "://" not in config.spark.checkpoint_directory:
        directories.append(Path(config.spark.checkpoint_directory))
    return directories
