"""What one process does at each look at the pipeline: it tells what is wrong, and compares sinks when that is due."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdc.model.errors import LockstepError
from lockstep.config import Config
from lockstep.extension import installed
from lockstep.stream_queries import stream_query_plans
from lockstep.verify_schedule import VerifySchedule
from monitor.condition_facts import FactsCollector
from monitor.condition_watch import ConditionWatch
from monitor.conditions import Condition, Facts
from monitor.lag import LagReport
from monitor.stream_queries import StreamQueryStatus, StreamQueryWatch
from monitor.watching import Figure, Watching


class Attendant:
    """Is given each lag report. Of several processes of a machine one reports; the others only look."""

    def __init__(
        self,
        conditions: ConditionWatch,
        schedule: VerifySchedule,
        queries: StreamQueryWatch,
        watches: Sequence[Watching],
    ) -> None:
        self._conditions = conditions
        self._schedule = schedule
        self._queries = queries
        self._watches = watches

    @property
    def open(self) -> tuple[Condition, ...]:
        """What was wrong at the last look."""
        return self._conditions.open

    @property
    def stream_queries(self) -> Sequence[StreamQueryStatus]:
        """What is known of stream queries; nothing before the first answer."""
        return self._queries.latest() or ()

    @property
    def figures(self) -> Iterator[Figure]:
        """What extensions have found, for metrics."""
        return (figure for watch in self._watches for figure in watch.latest().figures)

    def look(self, report: LagReport | LockstepError) -> None:
        """Take the next report, or the error that came in its place. Waits for nobody."""
        now_ms = time.time_ns() // 1_000_000
        self._conditions.look(report, now_ms=now_ms)
        if isinstance(report, LagReport) and self._conditions.reports:
            self._schedule.look(report, now_ms=now_ms)


@contextlib.contextmanager
def open_attendant(config: Config, path: Path) -> Iterator[Attendant]:
    """Until the end of the block, which may take seconds. ``path`` is the configuration's file."""
    schedule = VerifySchedule(config, path)
    watches: list[Watching] = []

    def all_facts() -> Facts:
        found = [watch.latest() for watch in watches]
        return replace(
            facts.latest(),
            stream_queries=queries.latest(),
            added=tuple(condition for each in found for condition in each.conditions),
            added_names=frozenset().union(*(watch.names for watch in watches)),
            added_unknown=frozenset().union(*(each.unknown for each in found)),
        )

    with (
        contextlib.ExitStack() as closing,
        contextlib.closing(schedule),
        FactsCollector(
            config.as_pipeline(), config.stores, state_directories(config), with_standby=config.conditions.standby
        ) as facts,
        StreamQueryWatch(partial(stream_query_plans, config)) as queries,
        ConditionWatch(
            config.conditions,
            config.watch_directory,
            reporters=[each.reporter(config) for each in installed() if each.reporter is not None],
            facts=all_facts,
            verify=config.verify,
            retained_max_bytes=config.source.slot_guard.warn,
        ) as conditions,
    ):
        for each in installed():
            if each.watch is not None:
                watches.append(closing.enter_context(Watching(each.conditions, partial(each.watch, config))))
        yield Attendant(conditions, schedule, queries, watches)


def state_directories(config: Config) -> list[Path]:
    """The directories that Lockstep writes to on this machine."""
    directories = [config.as_pipeline().values_directory, config.watch_directory]
    if "://" not in config.spark.checkpoint_directory:
        directories.append(Path(config.spark.checkpoint_directory))
    if config.views:
        directories.append(config.spark.view_directory)
    return directories
