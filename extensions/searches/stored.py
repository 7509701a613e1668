"""The standing searches of a sink and their status, a document each in the sink's bookkeeping. They belong to the sink,
not to a generation: a search survives rebuilds and switches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from sinks.opensearch.bookkeeping import Bookkeeping

_SEARCHES: Final = "searches"
_STATUS: Final = "searches.status"
_CLAIM: Final = "searches.claim"

SEARCHES_MAX: Final = 1000
"""The limit per sink: all of them are read again and again."""


@dataclass(frozen=True, slots=True)
class Search:
    """A query over a table's documents. Each document that begins or ceases to match is reported."""

    name: str
    table: TableName
    query: Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A process's place among those that report a sink's searches: the greatest reports. ``run`` distinguishes two
    claims of one number, as after the sink was put back. Clocks aren't used, since those of several machines differ.
    """

    number: int
    run: str


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """The last status that a process stored; ``at_ms`` is when, in milliseconds since 1970, 0: never. ``matching`` is
    the number of documents that match each search, ``refused`` why a search can't be reported. A search in neither
    hasn't been started. ``waiting`` says why none can be reported now, "" if nothing is in the way.
    """

    at_ms: int = 0
    matching: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    waiting: str = ""


class StoredSearches:
    """Raises Unavailable and LockstepError as ``Sink`` does."""

    def __init__(self, bookkeeping: Bookkeeping) -> None:
        self._bookkeeping = bookkeeping

    def load(self) -> dict[str, Search]:
        return _parsed(self._bookkeeping.load(_SEARCHES))

    def add(self, search: Search) -> bool:
        """Store a search. Returns False if the very same is stored already. Raises LockstepError if there is another
        search of its name, or there are too many.
        """
        self._bookkeeping.create_index()
        held = self._bookkeeping.held(_SEARCHES)
        known = _parsed(None if held is None else held.source)
        if known.get(search.name) == search:
            return False
        if search.name in known:
            raise LockstepError(
                f"there is a search {search.name!r} already", hint="remove it first, or give this one another name"
            )
        if len(known) >= SEARCHES_MAX:
            raise LockstepError(f"a sink has at most {SEARCHES_MAX} searches", hint="remove some that nobody needs")
        self._replace(held, {**known, search.name: search})
        return True

    def remove(self, name: str) -> bool:
        held = self._bookkeeping.held(_SEARCHES)
        known = _parsed(None if held is None else held.source)
        if known.pop(name, None) is None:
            return False
        self._replace(held, known)
        return True

    def claim(self, run: str, *, above: int = 0) -> Claim:
        """Claim the searches for this run. The number is greater than ``above`` and than that of any stored claim.
        Raises Unavailable if another run claims at the same moment.
        """
        self._bookkeeping.create_index()
        held = self._bookkeeping.held(_CLAIM)
        claim = Claim(max(above, 0 if held is None else _claim(held.source).number) + 1, run)
        if not self._bookkeeping.replace(_CLAIM, held, _stored(claim)):
            raise Unavailable("another process has just taken over the searches of this sink")
        return claim

    def newest_claim(self) -> Claim | None:
        source = self._bookkeeping.load(_CLAIM)
        return None if source is None else _claim(source)

    def load_status(self) -> SearchStatus:
        source = self._bookkeeping.load(_STATUS)
        return SearchStatus() if source is None else _status(source)[0]

    def save_status(self, status: SearchStatus, claim: Claim) -> None:
        """Store a status, unless a greater claim has stored one, or another process stores one at the same moment."""
        self._bookkeeping.create_index()
        held = self._bookkeeping.held(_STATUS)
        if held is not None and _status(held.source)[1] > claim:
            return
        fields = {"at_ms": status.at_ms, "matching": dict(status.matching), "refused": dict(status.refused)}
        reported = {**fields, "waiting": status.waiting, "claim": [claim.number, claim.run]}
        self._bookkeeping.replace(_STATUS, held, {"text": orjson.dumps(reported).decode()})

    def _replace(self, held: Any, searches: Mapping[str, Search]) -> None:
        stored = [[search.name, str(search.table), search.query] for search in searches.values()]
        if not self._bookkeeping.replace(_SEARCHES, held, {"text": orjson.dumps(stored).decode()}):
            raise Unavailable("another command has just changed the searches of this sink", hint="try again")


def _parsed(source: Any) -> dict[str, Search]:
    if source is None:
        return {}
    return {name: Search(name, TableName.parse(table), query) for name, table, query in orjson.loads(source["text"])}


def _stored(claim: Claim) -> Any:
    return {"text": orjson.dumps([claim.number, claim.run]).decode()}


def _claim(source: Any) -> Claim:
    return Claim(*orjson.loads(source["text"]))


def _status(source: Any) -> tuple[SearchStatus, Claim]:
    """A status, and the claim of its author."""
    fields = orjson.loads(source["text"])
    status = SearchStatus(fields["at_ms"], fields["matching"], fields["refused"], fields["waiting"])
    return status, Claim(*fields["claim"])
