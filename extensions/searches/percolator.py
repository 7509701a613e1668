"""Standing queries over one table's index: which queries a document matches, and which documents match a query.

The queries are in an index of their own, with the fields and the analysis of the table's index. The server parses a
query by these fields when it is stored, and a document when it is asked about. The index isn't the only copy of the
queries: it is made anew from ``extensions.searches.stored`` when the table's index is replaced or gets other fields.

Each process that asks has an index of its own, named by its claim, so a process that hung and resumes does no harm to
others. A process with a greater claim removes what lesser ones have left.
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
"""No column's field has this name, since a column's ``%`` is escaped."""

_QUERIES_MAX: Final = 10_000  # max_result_window
_PORTION_BYTES: Final = 4 * 1024 * 1024
_PORTION_DOCUMENTS: Final = 500
_FOREVER: Final = "1h"
_MISSING: Final = 404
_TRIED: Final = "tried"
_NOBODYS: Final = "-"
"""No search has this name. Without any names, the server would ask nothing."""

_MEND: Final = "mend the query; docs/searches.md says which can stand"

_OWN: Final = re.compile(r"\.(?P<number>\d+)-(?P<run>[0-9a-f]+)\.[0-9a-f]+\.(?:g\d+|trial)")
"""The end of the name of an index of queries. No table's index has so many dots in its name."""


@dataclass(frozen=True, slots=True)
class Document:
    """A row's document as it is in the index now, ``source`` as JSON, ``key`` by the columns' names there."""

    key: Mapping[str, JsonValue]
    tag: str
    source: bytes


_EMPTY: Final = Document({}, "", b"{}")


class QueriesRefused(LockstepError):
    """The server stored these queries, but refuses to ask them. ``reasons`` says why, by their names."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(f"opensearch refuses queries that it has taken: {', '.join(sorted(reasons))}")
        self.reasons = reasons


class Percolator:
    """The standing queries of one table of a generation, by name. Raises as ``OpenSearchSink`` does."""

    def __init__(self, indexes: OpenSearchIndexes, table: TableName, queries_index: str) -> None:
        """``queries_index`` is a name from ``queries_index`` or ``trial_index``, for this object alone. Raises
        LockstepError if the table has no index in this generation.
        """
        self._indexes = indexes
        self._client = indexes.client
        self._table = table
        self._index = indexes.index(table)
        self._queries_index = queries_index
        self._queries: dict[str, Mapping[str, Any]] = {}
        """The stored queries, by name."""
        self._page_size = PageSize(DOCUMENTS_MAX)
        self._target = indexes.look_at(table)

    @property
    def shape(self) -> Table:
        return self._target.shape.table

    def is_outdated(self) -> bool:
        """Whether the table's index is gone, or has other fields than those that the queries were stored for."""
        held = self._indexes.held(self._index)
        return held is None or held.properties != self._target.properties

    def create(self) -> None:
        """Begin anew, with the present fields of the table's index and without queries."""
        self._target = self._indexes.look_at(self._table)
        self.remove()
        self._create()

    def try_out(self, query: Mapping[str, Any]) -> None:
        """Let the server check a query, and leave nothing of it. Raises as ``store``."""
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
        # Storing a query refreshes the index, and nothing else changes it.
        settings["refresh_interval"] = _FOREVER
        properties = {**(self._target.properties or {}), _QUERY_FIELD: {"type": "percolator"}}
        self._client.create_index(self._queries_index, {"dynamic": "strict", "properties": properties}, settings)

    def remove(self) -> None:
        self._client.call("DELETE", f"/{self._queries_index}", missing_ok=True)
        self._queries.clear()

    def store(self, name: str, query: Mapping[str, Any]) -> None:
        """Store a query, so that documents are asked about it. Raises LockstepError with all objections, including the
        server's. Raises Unavailable if the index was removed, which another process does when it takes over.
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
        self._client.call(
            "DELETE", f"/{self._queries_index}/_doc/{name}", parameters={"refresh": "true"}, missing_ok=True
        )
        self._queries.pop(name, None)

    def matches(self, documents: Sequence[Document]) -> list[set[str]]:
        """The queries that each of these documents matches, in one request; ``in_portions`` limits its size. Raises
        QueriesRefused if some of the queries can't be asked, and Unavailable as ``store``.
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
        """``among`` limits the queries that are asked."""
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
        """The queries that the server refuses to ask about these documents; none if a document is the cause."""
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
        """Raise LockstepError with the reason if the server refuses to ask about any document."""
        try:
            self._matches([_EMPTY], [_NOBODYS])
        except LockstepError as error:
            if (reason := refusal_of_query(error)) is not None:
                raise LockstepError(
                    f"opensearch refuses to say which searches a document of table {self._table} matches: {reason}",
                    hint="mend the settings of the cluster: no search can be reported meanwhile",
                ) from error

    def _reason(self, name: str, error: LockstepError) -> str:
        """Why the server refuses a query, without quoting a document: its answer to the query alone, or the error's
        kind.
        """
        try:
            self._ask_alone(self._queries_index, self._queries[name])
        except LockstepError as alone:
            if (reason := refusal_of_query(alone)) is not None:
                return reason
        return f"{getattr(error.__cause__, 'error', 'error')} when documents are asked about"

    def _ask_alone(self, index: str, query: Mapping[str, Any]) -> None:
        self._client.call("POST", f"/{index}/_search", {"size": 0, "query": query}, WHOLE)

    def identity(self, key: Mapping[str, JsonValue]) -> bytes:
        """How to find a row's document, as JSON. ``key`` has the columns by their names here."""
        return orjson.dumps(self._target.identity({name: key[name] for name in self.shape.key}))

    def identity_of(self, key: Mapping[str, JsonValue]) -> bytes | None:
        """The same; None for a key with other columns."""
        return self.identity(key) if key.keys() == set(self.shape.key) else None

    def documents(self, identities: Sequence[bytes]) -> Iterator[tuple[bytes, Document]]:
        """Those of these documents that exist now."""
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
        """How to find the documents that match a stored query: all that were applied before this call, and perhaps
        later ones. Raises QueriesRefused if the table's index no longer accepts the query.
        """
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
    """Documents and how to find them, in slices that one request may ask about."""
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
    """The index of the queries over a table of this generation for the process with this claim."""
    return f"{_beginning(indexes, table, claim)}.g{indexes.generation}"


def trial_index(indexes: OpenSearchIndexes, table: TableName, newest: Claim | None, run: str) -> str:
    """The index for trying out a query. ``newest`` is the greatest claim now, ``run`` a unique name of hex digits."""
    return f"{_beginning(indexes, table, Claim(0 if newest is None else newest.number, run))}.trial"


def _beginning(indexes: OpenSearchIndexes, table: TableName, claim: Claim) -> str:
    # A table's name may be as long as an index's name.
    of_table = hashlib.sha256(str(table).encode()).hexdigest()[:16]
    return f"{indexes.prefix}.{PERCOLATOR}.{claim.number}-{claim.run}.{of_table}"


def newest_number(indexes: OpenSearchIndexes) -> int:
    """The greatest claim number in the name of an index of queries; 0 if there is none."""
    return max((claim.number for _, claim in _query_indexes(indexes)), default=0)


def remove_left_over(indexes: OpenSearchIndexes, claim: Claim, *, but: Collection[str] = ()) -> None:
    """Remove indexes of queries: all of lesser claims, and those of this claim except ``but``. Indexes of greater
    claims stay: their process may have begun while this one hung.
    """
    for name, whose in _query_indexes(indexes):
        if whose.number < claim.number or (whose == claim and name not in but):
            indexes.client.call("DELETE", f"/{name}", missing_ok=True)


def _query_indexes(indexes: OpenSearchIndexes) -> list[tuple[str, Claim]]:
    """All indexes of queries of this sink, each with the claim in its name."""
    beginning = f"{indexes.prefix}.{PERCOLATOR}"
    names = indexes.client.call("GET", f"/{beginning}.*/_alias", parameters={"expand_wildcards": "all"})
    found = []
    for name in sorted(names):
        end = name.removeprefix(beginning)
        if (match := _OWN.fullmatch(end)) is not None:
            found.append((name, Claim(int(match["number"]), match["run"])))
    return found
