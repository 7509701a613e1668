"""What one process does at each look at the pipeline: it reports what is wrong."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdc.model.errors import LockstepError
from lockstep.config import Config
from lockstep.extension import Extension, installed
from monitor.condition_facts import FACTS_EVERY_S, FactsLook
from monitor.condition_watch import ConditionWatch
from monitor.conditions import Condition, Facts
from monitor.lag import LagReport
from monitor.watching import Figure, Found, Panel, Watching


class Watcher:
    """Takes each lag report. Among the processes of a machine one reports; the others only look."""

    def __init__(
        self,
        conditions: ConditionWatch,
        added: "Sequence[Watching[Found]]",
    ) -> None:
        self._conditions = conditions
        self._added = added

    @property
    def open(self) -> tuple[Condition, ...]:
        return self._conditions.open

    @property
    def panels(self) -> list[Panel]:
        """What extensions have found, for the page. Empty before their first answer."""
        return [watch.latest.panel for watch in self._added if watch.latest.panel is not None]

    @property
    def figures(self) -> Iterator[Figure]:
        return (figure for watch in self._added for figure in watch.latest.figures)

    def look(self, report: LagReport | LockstepError) -> None:
        """Take the next report, or the error that came in its place. Doesn't block."""
        self._conditions.look(report, now_ms=time.time_ns() // 1_000_000)


@contextlib.contextmanager
def open_watcher(config: Config) -> Iterator[Watcher]:
    """A watcher until the block ends. Ending the block may take seconds."""
    watched = [each for each in installed() if each.watch is not None]
    names = frozenset(name for each in watched for name in each.conditions)

    def all_facts() -> Facts:
        found = [watching.latest for watching in added]
        return replace(
            facts.latest,
            added=tuple(condition for each in found for condition in each.conditions),
            added_names=names,
            added_unknown=frozenset().union(*(each.unknown for each in found)),
        )

    def looked_at() -> FactsLook:
        standby = config.conditions.standby
        return FactsLook(config.as_pipeline(), config.stores, state_directories(config), with_standby=standby)

    with contextlib.ExitStack() as closing:
        facts = closing.enter_context(Watching("facts", looked_at, Facts(None, None), every_s=FACTS_EVERY_S))
        added = [closing.enter_context(_watching(each, config)) for each in watched]
        conditions = closing.enter_context(
            ConditionWatch(
                config.conditions,
                config.watch_directory,
                reporters=[each.reporter(config) for each in installed() if each.reporter is not None],
                facts=all_facts,
            )
        )
        yield Watcher(conditions, added)


def _watching(extension: Extension, config: Config) -> Watching[Found]:
    assert extension.watch is not None
    nothing = Found(unknown=frozenset((name, None) for name in extension.conditions))
    return Watching(extension.name, partial(extension.watch, config), nothing, every_s=extension.watch_every_s)


def state_directories(config: Config) -> list[Path]:
    directories = [config.as_pipeline().values_directory, config.watch_directory]
    if config.added_stores and "://" not in config.spark.checkpoint_directory:
        directories.append(Path(config.spark.checkpoint_directory))
    if config.views:
        directories.append(config.spark.view_directory)
    return directories
