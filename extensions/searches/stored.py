"""The standing searches of a sink: which there are, and what is known of them. A document each in its bookkeeping.

They belong to the sink and to no generation: a search stands through rebuilds and switches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from sinks.opensearch.bookkeeping import Bookkeeping

_SEARCHES: Final = "searches"
_STATUS: Final = "searches.told"
_CLAIM: Final = "searches.claim"

SEARCHES_MAX: Final = 1000
"""Of a sink: all of them are read again and again."""


@dataclass(frozen=True, slots=True)
class Search:
    """A query over a table's documents: somebody wants to be told of each that begins or ceases to match."""

    name: str
    table: TableName
    query: Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A place in the order of those who tell of a sink's searches: the greatest tells.

    ``run`` tells two apart that took the same number, as after the sink was put back. No clock is in it: those of
    several machines don't agree.
    """

    number: int
    run: str


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """What whoever watches has told of searches last, and when, in milliseconds since 1970; 0: nobody ever has.

    ``matching`` counts the documents that match each now, ``refused`` says why one can't be told of. A search in
    neither hasn't been begun with. ``waiting`` says why none can be told of now, "" where nothing is in the way.
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
        """All of them, by name."""
        return _parsed(self._bookkeeping.load(_SEARCHES))

    def add(self, search: Search) -> bool:
        """Keep a search. Returns whether that is new; False where the very same is kept already.

        Raises LockstepError where there is another one of its name, or are too many.
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
        """Forget a search. Returns whether there was one."""
        held = self._bookkeeping.held(_SEARCHES)
        known = _parsed(None if held is None else held.source)
        if known.pop(name, None) is None:
            return False
        self._replace(held, known)
        return True

    def claim(self, run: str, *, above: int = 0) -> Claim:
        """Say that this run tells of the searches from now on.

        Its number is greater than ``above``, and than that of any claim which is stored. Raises Unavailable where
        another run says so at the same moment.
        """
        self._bookkeeping.create_index()
        held = self._bookkeeping.held(_CLAIM)
        claim = Claim(max(above, 0 if held is None else _claim(held.source).number) + 1, run)
        if not self._bookkeeping.replace(_CLAIM, held, _stored(claim)):
            raise Unavailable("another process has just taken over the searches of this sink")
        return claim

    def newest_claim(self) -> Claim | None:
        """Whose claim is the greatest; None where nobody ever told."""
        source = self._bookkeeping.load(_CLAIM)
        return None if source is None else _claim(source)

    def load_status(self) -> SearchStatus:
        """What was told last."""
        source = self._bookkeeping.load(_STATUS)
        return SearchStatus() if source is None else _status(source)[0]

    def save_status(self, status: SearchStatus, claim: Claim) -> None:
        """Tell. Has no effect where one with a greater claim has told already, or tells at the same moment."""
        self._bookkeeping.create_index()
        held = self._bookkeeping.held(_STATUS)
        if held is not None and _status(held.source)[1] > claim:
            return
        fields = {"at_ms": status.at_ms, "matching": dict(status.matching), "refused": dict(status.refused)}
        told = {**fields, "waiting": status.waiting, "claim": [claim.number, claim.run]}
        self._bookkeeping.replace(_STATUS, held, {"text": orjson.dumps(told).decode()})

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
    """The status, and who has told it."""
    fields = orjson.loads(source["text"])
    status = SearchStatus(fields["at_ms"], fields["matching"], fields["refused"], fields["waiting"])
    return status, Claim(*fields["claim"])
