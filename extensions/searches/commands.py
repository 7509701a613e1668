"""``lockstep searches``: add, list and remove standing searches of a sink, and watch them."""

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

import orjson
from rich.table import Table

from cdc.model.errors import ConfigurationError, Fenced, LockstepError, Unavailable
from cdc.model.printable import visible
from cdc.model.table import TableName
from cdc.model.timeouts import SEARCHES_SILENT_S
from cdc.model.times import time_text
from extensions.searches.follower import Follower, Stopped
from extensions.searches.percolator import Percolator, trial_index
from extensions.searches.search_queries import query_problems
from extensions.searches.searchable import searchable
from extensions.searches.settings import SearchesSettings
from extensions.searches.signs import Silence
from extensions.searches.stored import Search, SearchStatus, StoredSearches
from lockstep.config import Config
from lockstep.generations import find, settings_of, settings_of_generation
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings

logger = logging.getLogger("lockstep.searches")

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_WAIT_S: Final = 0.25
_AGAIN_MAX_S: Final = 30.0
_SILENT_MS: Final = int(SEARCHES_SILENT_S * 1000)
_LOOK_EVERY_S: Final = 5.0
"""How often a waiting process looks whether another one still reports."""


class Stopping(Protocol):
    """Says when to stop, as ``lockstep.console.StopOnSignals``."""

    def __call__(self) -> bool: ...

    def wait(self, seconds: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class ListedSearch:
    """A search as it is now. ``matching`` is the number of reported matches; None before the first report. ``problem``
    says why it isn't reported; None if it is.
    """

    sink: str
    search: Search
    matching: int | None
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "search": self.search.name,
            "table": str(self.search.table),
            "query": self.search.query,
            "matching": self.matching,
            "problem": self.problem,
        }


def parse_search(name: str, table: str, query: str) -> Search:
    """A search from its text. Raises ConfigurationError with everything that is wrong with it."""
    problems = []
    if not _NAME.fullmatch(name):
        problems.append("its name is made of lower-case letters, digits, '_', '.' and '-', letter or digit first")
    parsed: Any = None
    try:
        parsed = orjson.loads(query)
    except orjson.JSONDecodeError as error:
        problems.append(f"its query isn't JSON: {error.msg}")
    else:
        problems += query_problems(parsed)
    try:
        of = TableName.parse(table)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise ConfigurationError(
            f"the search {visible(name)!r} can't stand",
            problems=problems,
            hint="docs/searches.md says which queries can",
        )
    return Search(name, of, parsed)


def add(config: Config, sink: str, search: Search, *, say: Callable[[str], None]) -> None:
    """Store a search. Its matches are reported from now on, beginning with the present ones. Raises LockstepError if
    the table's index can't take the query, or there is another search of this name.
    """
    with _open(config, sink) as indexes:
        number = indexes.live()
        if number is None:
            raise LockstepError(
                f"sink {sink!r} has nothing to be searched yet",
                hint=f"let `lockstep run` or `lockstep apply {sink}` build it first",
            )
        built_with = settings_of_generation(config, sink, find(config, sink, number))
        assert isinstance(built_with, OpenSearchSettings)
        live = OpenSearchIndexes(sink, built_with, number)
        try:
            if live.held(live.index(search.table)) is None:
                raise LockstepError(
                    f"sink {sink!r} has no table {search.table}", hint="name one of its tables, as schema.table"
                )
            stored = StoredSearches(indexes.bookkeeping)
            before = stored.load().get(search.name)
            if before is None:
                # Some queries fail only when they are stored and asked.
                trial = trial_index(live, search.table, stored.newest_claim(), uuid4().hex[:12])
                Percolator(live, search.table, trial).try_out(search.query)
        finally:
            live.client.close()
        is_new = stored.add(search)
        say(f"{sink} has a search {search.name} over {search.table}" + ("" if is_new else " already"))
        if sink not in config.section(SearchesSettings).sinks and not _is_watched(stored.load_status()):
            say(
                f"it isn't reported: name {sink} in sinks of [searches] for `lockstep run`, or start `lockstep"
                f" searches watch {sink}`"
            )


def remove(config: Config, sink: str, name: str) -> None:
    """Remove a search: every document ceases to match it. Raises LockstepError if there is none of this name."""
    with _open(config, sink) as indexes:
        if not StoredSearches(indexes.bookkeeping).remove(name):
            raise LockstepError(
                f"sink {sink!r} has no search {visible(name)!r}", hint="`lockstep searches list` shows those there are"
            )


def listed(config: Config, sinks: Sequence[str]) -> Iterator[ListedSearch]:
    """The searches of these sinks, by default of all sinks in OpenSearch, sorted by name."""
    for sink in sinks or searchable(config):
        with _open(config, sink) as indexes:
            stored = StoredSearches(indexes.bookkeeping)
            status = stored.load_status()
            for name, search in sorted(stored.load().items()):
                yield ListedSearch(sink, search, status.matching.get(name), problem_of(status, name))


def searches_table(searches: Sequence[ListedSearch]) -> Table:
    table = Table()
    for heading in ("sink", "search", "table", "matching", "query", ""):
        table.add_column(heading, overflow="fold")
    for each in searches:
        matching = "-" if each.matching is None else f"{each.matching:,}"
        query = visible(orjson.dumps(each.search.query).decode())
        table.add_row(each.sink, each.search.name, str(each.search.table), matching, query, each.problem or "")
    return table


def watch(config: Config, sinks: Sequence[str], *, stopping: Stopping) -> None:
    """Report which documents begin and cease to match the searches of these sinks, until stopped.

    Without names, the sinks are those of ``[searches]``. A sink that fails is tried again, and no other sink waits for
    it. If another process reports a sink, this one takes over once the other gives no sign any more. Raises
    ConfigurationError if there is no sink.
    """
    names = tuple(sinks) or config.section(SearchesSettings).sinks
    if not names:
        raise ConfigurationError(
            "[searches] names no sink", hint="name OpenSearch sinks in its setting sinks, or one here"
        )
    for name in names:
        _settings(config, name)
    watched = [_Watched(config, name, stopping) for name in names]
    try:
        while not stopping():
            looked = [each.step() for each in watched]
            if not any(looked):
                stopping.wait(_WAIT_S)
    finally:
        for each in watched:
            each.end()


class _Watched:
    """One sink and its follower. After an error it waits to try again; if fenced, for the other process's silence."""

    def __init__(self, config: Config, name: str, stopping: Stopping) -> None:
        self._config = config
        self._name = name
        self._stopping = stopping
        self._follower: Follower | None = None
        self._again_at = 0.0
        self._again_s = 1.0
        self._is_fenced = False
        """Another process reports this sink."""
        self._silence = Silence(monotonic=time.monotonic)

    def step(self) -> bool:
        if time.monotonic() < self._again_at or (self._is_fenced and not self._is_to_take_over()):
            return False
        try:
            if self._follower is None:
                self._follower = Follower(self._config, self._name, stopping=self._stopping)
            looked = self._follower.step()
        except Stopped:
            return False
        except LockstepError as error:
            fenced = self._whether_fenced(error)
            self.close()
            if fenced is not None:
                self._is_fenced = True
                self._silence.begin()
                self._again_at = time.monotonic() + _LOOK_EVERY_S
                logger.warning("%s; this one waits until it gives no sign any more", fenced.message)
                return False
            level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
            logger.log(level, "the searches of sink %s wait %.0f s: %s", self._name, self._again_s, error)
            self._again_at = time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, _AGAIN_MAX_S)
            return False
        self._again_s = 1.0
        self._silence.end()
        return looked

    def _is_to_take_over(self) -> bool:
        self._again_at = time.monotonic() + _LOOK_EVERY_S
        try:
            with _open(self._config, self._name) as indexes:
                is_silent = self._silence.is_long(StoredSearches(indexes.bookkeeping).load_status())
        except LockstepError:
            return False  # the sink doesn't answer now
        if is_silent:
            logger.warning("no process shows that it reports the searches of sink %s: taking over", self._name)
            self._is_fenced = False
            self._silence.lengthen()
        return is_silent

    def _whether_fenced(self, why: LockstepError) -> Fenced | None:
        if isinstance(why, Fenced):
            return why
        try:
            if self._follower is not None:
                self._follower.check_claim()
        except Fenced as error:
            return error
        except LockstepError:
            pass  # unknown: the next start fences, or is fenced
        return None

    def end(self) -> None:
        """Remove queries that only this process needs, if the sink answers; then close."""
        if self._follower is not None:
            with suppress(LockstepError):
                self._follower.remove_queries()
        self.close()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


def problem_of(status: SearchStatus, name: str) -> str | None:
    """Why this search isn't reported; None if it is."""
    if status.waiting:
        return f"it isn't reported now: {status.waiting}"
    if not _is_watched(status):
        since = "isn't reported" if not status.at_ms else f"hasn't been reported since {time_text(status.at_ms)}"
        return f"it {since}: `lockstep searches watch` reports it"
    return status.refused.get(name)


def _is_watched(status: SearchStatus) -> bool:
    return time.time_ns() // 1_000_000 - status.at_ms < _SILENT_MS


@contextmanager
def _open(config: Config, sink: str) -> Iterator[OpenSearchIndexes]:
    indexes = OpenSearchIndexes(sink, _settings(config, sink), 1)
    try:
        yield indexes
    finally:
        indexes.client.close()


def _settings(config: Config, sink: str) -> OpenSearchSettings:
    """Raises ConfigurationError for a sink that can't have searches."""
    settings, known = settings_of(config, sink), searchable(config)
    if sink not in known:
        what = "a view" if settings.view is not None else "no sink of tables in OpenSearch"
        raise ConfigurationError(
            f"{sink} is {what}, and can't have searches", hint=f"sinks that can: {', '.join(known) or 'none'}"
        )
    return known[sink]
