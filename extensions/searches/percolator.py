"""Standing queries over one table's index: which of them a document matches, and which documents match one.

The queries are in an index of their own, with the fields and the analysis of the table's index. The server parses each
query by these fields when it is stored, and each document when it is asked about. Nothing in that index is the only
copy: it is made anew from ``extensions.searches.stored`` whenever the table's index is another one or has other fields.

Each one who asks has an index of his own, named by his claim: one that hung and goes on spoils nobody else's. Whoever
has a greater claim removes what is left over of lesser ones.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from extensions.searches.search_queries import query_problems, time_problems
from extensions.searches.stored import Claim
from sinks.opensearch.client import refusal_of_query
from sinks.opensearch.indexes import LIVE, OpenSearchIndexes
from sinks.opensearch.mapping import DELETED_FIELD, TAG_FIELD
from sinks.opensearch.names import PERCOLATOR
from sinks.opensearch.reading import DOCUMENTS_MAX, WHOLE, found, looked_up, whole
from sinks.page_size import PageSize

_QUERY_FIELD: Final = "%query"
"""No column's field has this name: a column's ``%`` is escaped."""

_QUERIES_MAX: Final = 10_000  # max_result_window
_PORTION_BYTES: Final = 4 * 1024 * 1024
_PORTION_DOCUMENTS: Final = 500
_FOREVER: Final = "1h"
_MISSING: Final = 404
_TRIED: Final = "tried"
_NOBODYS: Final = "-"
"""No search has this name. Of no names at all the server would ask nothing."""

_MEND: Final = "mend the query; docs/searches.md says which can stand"

_OWN: Final = re.compile(r"\.(?P<number>\d+)-(?P<run>[0-9a-f]+)\.[0-9a-f]+\.(?:g\d+|trial)")
"""The end of the name of an index of queries. No table's index has so many dots in its name."""


@dataclass(frozen=True, slots=True)
class Document:
    """A row's document as the index has it now. ``key`` has the key's columns by the names that they have here.

    ``source`` is all of it, as JSON.
    """

    key: Mapping[str, JsonValue]
    tag: str
    source: bytes


_EMPTY: Final = Document({}, "", b"{}")


class QueriesRefused(LockstepError):
    """The server refuses to ask for these queries, though it has taken them. ``reasons`` says why, by their names."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(f"opensearch refuses queries that it has taken: {', '.join(sorted(reasons))}")
        self.reasons = reasons


class Percolator:
    """The standing queries of one table of a generation, by their names. Raises as ``OpenSearchSink`` does."""

    def __init__(self, indexes: OpenSearchIndexes, table: TableName, queries_index: str) -> None:
        """``queries_index`` has a name of ``queries_index``'s or ``trial_index``'s making, and is nobody else's.

        Raises LockstepError where the table has no index in this generation.
        """
        self._indexes = indexes
        self._client = indexes.client
        self._table = table
        self._index = indexes.index(table)
        self._queries_index = queries_index
        self._queries: dict[str, Mapping[str, Any]] = {}
        """Those that are stored, by name."""
        self._page_size = PageSize(DOCUMENTS_MAX)
        self._target = indexes.look_at(table)

    @property
    def shape(self) -> Table:
        """The table as it is here."""
        return self._target.shape.table

    def is_outdated(self) -> bool:
        """Whether the table's index has got other fields than those that the queries were stored for, or is gone."""
        held = self._indexes.held(self._index)
        return held is None or held.properties != self._target.properties

    def create(self) -> None:
        """Begin anew, with the fields that the table's index has now and without queries."""
        self._target = self._indexes.look_at(self._table)
        self.remove()
        self._create()

    def try_out(self, query: Mapping[str, Any]) -> None:
        """Have the server judge a query, and leave nothing of it. Raises as ``store``."""
        self._create()
        try:
            self.store(_TRIED, query)
            self._ask_alone(self._index, query)
            self._matches([_EMPTY])
        except LockstepError as error:
            if (reason := refusal_of_query(error)) is None:
                raise
            raise _refused(self._table, reason) from error
        finally:
            self.remove()

    def _create(self) -> None:
        answer = self._client.call("GET", f"/{self._index}/_settings", parameters={"flat_settings": "true"})
        held = answer[self._index]["settings"]
        settings = {
            name: value
            for name, value in ((name.removeprefix("index."), value) for name, value in held.items())
            if name.startswith(("analysis.", "mapping.", "similarity.", "max_"))
        }
        settings |= {"number_of_shards": 1, "number_of_replicas": self._indexes.settings.replicas}
        # Every store of a query refreshes it, and nothing else changes it.
        settings["refresh_interval"] = _FOREVER
        properties = {**(self._target.properties or {}), _QUERY_FIELD: {"type": "percolator"}}
        self._client.create_index(self._queries_index, {"dynamic": "strict", "properties": properties}, settings)

    def remove(self) -> None:
        """Remove the queries and their index."""
        self._client.call("DELETE", f"/{self._queries_index}", missing_ok=True)
        self._queries.clear()

    def store(self, name: str, query: Mapping[str, Any]) -> None:
        """Have documents asked about this query from now on.

        Raises LockstepError with what is to be said against it, also by the server. Raises Unavailable where somebody
        removed the index, as one does who begins to tell of searches.
        """
        problems = query_problems(query) or time_problems(query, self._target.properties or {})
        if problems:
            raise LockstepError("; ".join(problems), hint=_MEND)
        path, parameters = f"/{self._queries_index}_W/_doc/{name}", {"refresh": "true", "require_alias": "true"}
        try:
            self._client.call("PUT", path, {_QUERY_FIELD: query}, parameters)
        except LockstepError as error:
            _check_there(self._queries_index, error)
            if (reason := refusal_of_query(error)) is None:
                raise
            raise _refused(self._table, reason) from error
        self._queries[name] = query

    def discard(self, name: str) -> None:
        """Ask about this query no longer."""
        self._client.call(
            "DELETE", f"/{self._queries_index}/_doc/{name}", parameters={"refresh": "true"}, missing_ok=True
        )
        self._queries.pop(name, None)

    def matches(self, documents: Sequence[Document]) -> list[set[str]]:
        """Which queries each of these documents matches, in one request: ``in_portions`` bounds it.

        Raises QueriesRefused where some of the queries can't be asked, and Unavailable as ``store``.
        """
        try:
            return self._matches(documents)
        except LockstepError as error:
            _check_there(self._queries_index, error)
            if refusal_of_query(error) is None:
                raise
            if self.is_outdated():
                raise Unavailable(f"the index of table {self._table} has just got other fields") from error
            culprits = self._culprits(documents)
            if not culprits:
                self._check_asked()
                raise
            raise QueriesRefused({name: self._reason(name, error) for name in culprits}) from error

    def _matches(self, documents: Sequence[Document], among: Sequence[str] | None = None) -> list[set[str]]:
        """``among``: of these queries alone."""
        names: list[set[str]] = [set() for _ in documents]
        asked = [orjson.Fragment(document.source) for document in documents]
        query: dict[str, Any] = {"percolate": {"field": _QUERY_FIELD, "documents": asked}}
        if among is not None:
            query = {"bool": {"filter": [{"ids": {"values": among}}, query]}}
        body = orjson.dumps({"size": _QUERIES_MAX, "_source": False, "query": query})
        page = whole(self._client.call("POST", f"/{self._queries_index}/_search", body, WHOLE))
        for hit in page["hits"]["hits"]:
            for slot in hit["fields"]["_percolator_document_slot"]:
                names[slot].add(hit["_id"])
        return names

    def _culprits(self, documents: Sequence[Document]) -> list[str]:
        """The queries of which the server refuses to say whether these documents match; none where that is because of
        a document."""
        if self._refuses(documents, [_NOBODYS]):
            return []
        culprits, suspects = [], [sorted(self._queries)]
        while suspects:
            names = suspects.pop()
            if not names or not self._refuses(documents, names):
                continue
            if len(names) == 1:
                culprits += names
            else:
                suspects += [names[: len(names) // 2], names[len(names) // 2 :]]
        return culprits

    def _refuses(self, documents: Sequence[Document], names: Sequence[str]) -> bool:
        try:
            self._matches(documents, names)
        except LockstepError as error:
            if refusal_of_query(error) is None:
                raise
            return True
        return False

    def _check_asked(self) -> None:
        """Raise LockstepError with the reason where the server refuses to ask about any document."""
        try:
            self._matches([_EMPTY], [_NOBODYS])
        except LockstepError as error:
            if (reason := refusal_of_query(error)) is not None:
                raise LockstepError(
                    f"opensearch refuses to say which searches a document of table {self._table} matches: {reason}",
                    hint="mend the settings of the cluster: no search can be reported meanwhile",
                ) from error

    def _reason(self, name: str, error: LockstepError) -> str:
        """Why the server refuses a query, in words that quote no document: those about the query without documents, or
        the kind of the error."""
        try:
            self._ask_alone(self._queries_index, self._queries[name])
        except LockstepError as alone:
            if (reason := refusal_of_query(alone)) is not None:
                return reason
        return f"{getattr(error.__cause__, 'error', 'error')} when documents are asked about"

    def _ask_alone(self, index: str, query: Mapping[str, Any]) -> None:
        self._client.call("POST", f"/{index}/_search", {"size": 0, "query": query}, WHOLE)

    def identity(self, key: Mapping[str, JsonValue]) -> bytes:
        """Where a row's document is found again: JSON. ``key`` has the columns as they are called here."""
        return orjson.dumps(self._target.identity({name: key[name] for name in self.shape.key}))

    def identity_of(self, key: Mapping[str, JsonValue]) -> bytes | None:
        """The same; None for a key that has other columns."""
        return self.identity(key) if key.keys() == set(self.shape.key) else None

    def documents(self, identities: Sequence[bytes]) -> Iterator[tuple[bytes, Document]]:
        """Those of these documents that are there, as of now."""
        wanted = [orjson.loads(identity) for identity in identities]
        by_id = dict(zip(((each["_id"], each.get("routing")) for each in wanted), identities, strict=True))
        for identity, source in looked_up(
            self._client, self._index, wanted, self._page_size, is_routed=bool(self._target.routing)
        ):
            if not source.get(DELETED_FIELD):
                key = self._target.stored(source, self.shape).key
                document = Document(key, source[TAG_FIELD], orjson.dumps(source))
                yield by_id[identity["_id"], identity.get("routing")], document

    def found(self, name: str) -> Iterator[bytes]:
        """Where the documents that match a stored query are found again: all that were applied before this call, and
        maybe later ones. Raises QueriesRefused where the table's index doesn't take the query any more."""
        self._indexes.refresh(self._index)
        try:
            for page in found(self._client, self._index, {"bool": {"filter": [self._queries[name], LIVE]}}):
                for identity in page:
                    yield orjson.dumps(identity)
        except LockstepError as error:
            if (reason := refusal_of_query(error)) is None:
                raise
            raise QueriesRefused({name: reason}) from error


def _check_there(queries_index: str, error: LockstepError) -> None:
    if getattr(error.__cause__, "status_code", None) == _MISSING:
        raise Unavailable(
            f"the index of queries {queries_index} was removed: another process has taken over the"
            " searches, or it was removed by hand",
            hint="try again",
        ) from error


def _refused(table: TableName, reason: str) -> LockstepError:
    return LockstepError(f"opensearch refuses the query over table {table}: {reason}", hint=_MEND)


def in_portions(documents: Iterable[tuple[bytes, Document]]) -> Iterator[list[tuple[bytes, Document]]]:
    """Documents with where each is found, as many at once as may be asked about in one request."""
    portion: list[tuple[bytes, Document]] = []
    size = 0
    for identity, document in documents:
        portion.append((identity, document))
        size += len(document.source)
        if size >= _PORTION_BYTES or len(portion) == _PORTION_DOCUMENTS:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def queries_index(indexes: OpenSearchIndexes, table: TableName, claim: Claim) -> str:
    """The index of the queries over a table of this generation that one asks for who has this claim."""
    return f"{_beginning(indexes, table, claim)}.g{indexes.generation}"


def trial_index(indexes: OpenSearchIndexes, table: TableName, newest: Claim | None, run: str) -> str:
    """An index in which a query over a table is tried out. ``newest`` is the greatest claim now, ``run`` a name of hex
    digits that nobody else has."""
    return f"{_beginning(indexes, table, Claim(0 if newest is None else newest.number, run))}.trial"


def _beginning(indexes: OpenSearchIndexes, table: TableName, claim: Claim) -> str:
    # Names of tables may be as long as an index's name may be.
    of_table = hashlib.sha256(str(table).encode()).hexdigest()[:16]
    return f"{indexes.prefix}.{PERCOLATOR}.{claim.number}-{claim.run}.{of_table}"


def newest_number(indexes: OpenSearchIndexes) -> int:
    """The greatest number of a claim by which an index of queries is named, 0 where there is none."""
    return max((claim.number for _, claim in _query_indexes(indexes)), default=0)


def remove_left_over(indexes: OpenSearchIndexes, claim: Claim, *, but: Collection[str] = ()) -> None:
    """Remove indexes of queries: those of lesser claims, and of this one ``but`` these.

    Those of who has a greater claim stay: he may have begun while we hung.
    """
    for name, whose in _query_indexes(indexes):
        if whose.number < claim.number or (whose == claim and name not in but):
            indexes.client.call("DELETE", f"/{name}", missing_ok=True)


def _query_indexes(indexes: OpenSearchIndexes) -> list[tuple[str, Claim]]:
    """All indexes of queries of this sink, each with the claim that it is named by."""
    beginning = f"{indexes.prefix}.{PERCOLATOR}"
    names = indexes.client.call("GET", f"/{beginning}.*/_alias", parameters={"expand_wildcards": "all"})
    found = []
    for name in sorted(names):
        end = name.removeprefix(beginning)
        if (match := _OWN.fullmatch(end)) is not None:
            found.append((name, Claim(int(match["number"]), match["run"])))
    return found
