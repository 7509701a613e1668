"""The state of sinks' standing searches: which are refused, and whether any process reports them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, Self

from cdc.model.errors import LockstepError
from cdc.model.timeouts import SEARCHES_SILENT_S
from extensions.searches.searchable import searchable
from extensions.searches.stored import Search, SearchStatus, StoredSearches
from lockstep.config import Config
from monitor.conditions import Condition, Severity
from monitor.metrics.definitions import Definition, dashboard_gauge
from monitor.watching import Figure, Found
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings

_SILENT: Final = "searches-silent"
_REFUSED: Final = "search-refused"

METRICS: Final[tuple[Definition, ...]] = (
    dashboard_gauge("standing_searches", "1", "Standing searches of the sink.", ("sink",)),
    dashboard_gauge("searches_matching_documents", "1", "Documents that match, those of each search.", ("sink",)),
    dashboard_gauge("searches_refused", "1", "Standing searches that are refused and not reported.", ("sink",)),
    dashboard_gauge(
        "searches_silent_seconds", "s", "Since when the sink's standing searches aren't reported.", ("sink",)
    ),
)


@dataclass(frozen=True, slots=True)
class StandingSearches:
    """The searches of one sink. ``refused`` says why a search isn't reported, by its name.

    ``matching`` is the sum of matching documents over all searches, as reported on the topic of matches. ``silent_s``
    is the time without a sign of life, in seconds, as far back as this process has looked. ``waiting`` says what is in
    the way of reports, "" if unknown.
    """

    count: int
    matching: int
    refused: Mapping[str, str]
    silent_s: float
    waiting: str = ""

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SEARCHES_SILENT_S

    def figures(self, sink: str) -> Iterator[Figure]:
        """For metrics, in the order of ``METRICS``."""
        values = (self.count, self.matching, len(self.refused), self.silent_s)
        return (Figure(definition, value, (sink,)) for definition, value in zip(METRICS, values, strict=True))

    def conditions(self, sink: str) -> Iterator[Condition]:
        if self.is_silent:
            yield Condition(
                _SILENT,
                sink,
                Severity.CRITICAL,
                f"no process reports the {self.count:,} standing searches of {sink}"
                + (f": {self.waiting}" if self.waiting else ""),
                f"`lockstep run` does where [searches] names {sink}, or `lockstep searches watch {sink}`",
                passes=True,
            )
        if self.refused:
            first = min(self.refused)
            others = len(self.refused) - 1
            yield Condition(
                _REFUSED,
                sink,
                Severity.WARNING,
                f"not reported: search {first} of {sink}"
                + (f" and {others:,} others" if others else "")
                + f": {self.refused[first]}",
                f"`lockstep searches list {sink}` shows all; remove it, and add it with another query",
                passes=True,
            )


class Stored(Protocol):
    """What is read; the protocol of ``StoredSearches``."""

    def load(self) -> Mapping[str, Search]: ...

    def load_status(self) -> SearchStatus: ...


class SinkSearches:
    """Looks at the searches of one sink. For one thread at a time."""

    def __init__(
        self,
        stored: Stored,
        *,
        close: Callable[[], None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``close`` closes the connection of ``stored``."""
        self._stored = stored
        self.close = close
        self._monotonic_s = monotonic_s
        self._sign: tuple[int, float] | None = None
        """The last sign of life, by its author's clock, and when it was first seen, by ours."""

    @classmethod
    def of_sink(cls, name: str, settings: OpenSearchSettings) -> Self:
        """Connects at the first look."""
        indexes = OpenSearchIndexes(name, settings, 1)
        return cls(StoredSearches(indexes.bookkeeping), close=indexes.client.close)

    def look(self) -> StandingSearches | None:
        """The present state; None if there is no search. Raises as ``StoredSearches``."""
        now = self._monotonic_s()
        searches = self._stored.load()
        if not searches:
            self._sign = None
            return None
        status = self._stored.load_status()
        # A process that begins again and again, and fails each time, gives signs of life as well.
        if self._sign is None or (self._sign[0] != status.at_ms and not status.waiting):
            self._sign = status.at_ms, now
        refused = {name: reason for name, reason in status.refused.items() if name in searches}
        silent_s, matching = now - self._sign[1], sum(status.matching.values())
        return StandingSearches(len(searches), matching, refused, silent_s, status.waiting)


class SearchesWatch:
    """A ``monitor.watching.Watch`` of every sink that can have searches."""

    def __init__(self, opened: Mapping[str, Callable[[], SinkSearches]]) -> None:
        """``opened`` connects, by the sink's name. It is called again if it raises, as without a password."""
        self._unopened = dict(opened)
        self._opened: dict[str, SinkSearches] = {}

    def look(self) -> Found:
        conditions, figures, unknown = list[Condition](), list[Figure](), set[tuple[str, str | None]]()
        for name in (*self._opened, *self._unopened):
            try:
                searches = self._of(name).look()
            except LockstepError:
                unknown |= {(_SILENT, name), (_REFUSED, name)}
                continue
            if searches is not None:
                conditions += searches.conditions(name)
                figures += searches.figures(name)
        return Found(tuple(conditions), tuple(figures), frozenset(unknown))

    def _of(self, name: str) -> SinkSearches:
        if name not in self._opened:
            self._opened[name] = self._unopened[name]()
            del self._unopened[name]
        return self._opened[name]

    def close(self) -> None:
        for searches in self._opened.values():
            searches.close()


def searches_watch(config: Config) -> SearchesWatch:
    return SearchesWatch({name: partial(SinkSearches.of_sink, name, each) for name, each in searchable(config).items()})


def metrics() -> Sequence[Definition]:
    return METRICS
