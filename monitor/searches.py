"""What is known of a sink's standing searches: which are set aside, and whether anybody tells of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cdc.model.timeouts import SEARCHES_SILENT_S
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.searches import Search, SearchStatus, StoredSearches
from sinks.opensearch.settings import OpenSearchSettings
from sinks.registry import SinkSettings

_LOOK_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class StandingSearches:
    """The searches of one sink. ``set_aside`` says why nobody is told of one, by its name.

    ``matching`` counts the documents that match each search, as was told on the topic of matches.
    ``silent_s`` is since when nobody has shown that he tells of them, in seconds, as far back as was looked.
    ``waiting`` says what is in the way of who would tell, "" where that isn't known.
    """

    count: int
    matching: int
    set_aside: Mapping[str, str]
    silent_s: float
    waiting: str = ""

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SEARCHES_SILENT_S


class Stored(Protocol):
    """What is looked at, as ``StoredSearches``."""

    def load(self) -> Mapping[str, Search]: ...

    def load_status(self) -> SearchStatus: ...


class SearchesWatch:
    """Looks at the searches of one sink now and then. For one thread at a time."""

    def __init__(
        self,
        stored: Stored,
        *,
        close: Callable[[], None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``close`` closes what ``stored`` is asked through."""
        self._stored = stored
        self.close = close
        self._monotonic_s = monotonic_s
        self._looked_at = float("-inf")
        self._known: StandingSearches | None = None
        self._sign: tuple[int, float] | None = None
        """The last sign of life, by the clock of who gave it, and when it was first seen, by ours."""

    @classmethod
    def of_sink(cls, name: str, settings: SinkSettings) -> Self:
        """Connects at the first look. The sink is one that ``has_searches``."""
        assert isinstance(settings, OpenSearchSettings)
        indexes = OpenSearchIndexes(name, settings, 1)
        return cls(StoredSearches(indexes.bookkeeping), close=indexes.client.close)

    def look(self) -> StandingSearches | None:
        """As of some seconds ago at most; None where there is no search. Raises as ``StoredSearches``."""
        now = self._monotonic_s()
        if now - self._looked_at < _LOOK_EVERY_S:
            return self._known
        searches = self._stored.load()
        if searches:
            status = self._stored.load_status()
            # Who begins again and again, and fails each time, gives signs of life as well.
            if self._sign is None or (self._sign[0] != status.at_ms and not status.waiting):
                self._sign = status.at_ms, now
            set_aside = {name: reason for name, reason in status.refused.items() if name in searches}
            silent_s, matching = now - self._sign[1], sum(status.matching.values())
            self._known = StandingSearches(len(searches), matching, set_aside, silent_s, status.waiting)
        else:
            self._known = self._sign = None
        self._looked_at = now
        return self._known
