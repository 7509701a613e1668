"""What one process does at each look at the pipeline: it tells what is wrong, and compares sinks when that is due."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdc.model.errors import LockstepError
from lockstep.config import Config
from lockstep.stream_queries import stream_query_plans
from lockstep.verify_schedule import VerifySchedule
from monitor.alerts.conditions import Condition
from monitor.alerts.facts import FactsCollector
from monitor.alerts.watch import AlertWatch
from monitor.lag import LagReport
from monitor.stream_queries import StreamQueryStatus, StreamQueryWatch


class Attendant:
    """Is given each lag report. Of several processes of a machine one tells; the others only look."""

    def __init__(self, alerts: AlertWatch, schedule: VerifySchedule, queries: StreamQueryWatch) -> None:
        self._alerts = alerts
        self._schedule = schedule
        self._queries = queries

    @property
    def open(self) -> tuple[Condition, ...]:
        """What was wrong at the last look."""
        return self._alerts.open

    @property
    def stream_queries(self) -> Sequence[StreamQueryStatus]:
        """What is known of stream queries; nothing before the first answer."""
        return self._queries.latest() or ()

    def look(self, report: LagReport | LockstepError) -> None:
        """Take the next report, or the error that came in its place. Waits for nobody."""
        now_ms = time.time_ns() // 1_000_000
        self._alerts.look(report, now_ms=now_ms)
        if isinstance(report, LagReport) and self._alerts.tells:
            self._schedule.look(report, now_ms=now_ms)


@contextlib.contextmanager
def open_attendant(config: Config, path: Path) -> Iterator[Attendant]:
    """Until the end of the block, which may take seconds. ``path`` is the configuration's file."""
    schedule = VerifySchedule(config, path)
    with (
        contextlib.closing(schedule),
        FactsCollector(
            config.as_pipeline(), config.stores, state_directories(config), with_standby=config.alerts.standby
        ) as facts,
        StreamQueryWatch(partial(stream_query_plans, config)) as queries,
        AlertWatch(
            config.pipeline.name,
            config.alerts,
            config.alerts_directory,
            facts=lambda: replace(facts.latest(), stream_queries=queries.latest()),
            verify=config.verify,
            retained_max_bytes=config.source.slot_guard.warn,
        ) as alerts,
    ):
        yield Attendant(alerts, schedule, queries)


def state_directories(config: Config) -> list[Path]:
    """The directories that Lockstep writes to on this machine."""
    directories = [config.as_pipeline().values_directory, config.alerts_directory]
    if "://" not in config.spark.checkpoint_directory:
        directories.append(Path(config.spark.checkpoint_directory))
    if config.views:
        directories.append(config.spark.view_directory)
    return directories
