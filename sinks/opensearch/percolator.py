"""Standing queries over one table's index: which of them a document matches, and which documents match one.

The queries are in an index of their own, with the fields and the analysis of the table's index. The server parses each
query by these fields when it is stored, and each document when it is asked about. Nothing in that index is the only
copy: it is made anew from ``sinks.opensearch.searches`` whenever the table's index is another one or has other fields.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.opensearch.client import refusal_of
from sinks.opensearch.indexes import LIVE, OpenSearchIndexes
from sinks.opensearch.mapping import DELETED_FIELD, TAG_FIELD
from sinks.opensearch.names import PERCOLATOR
from sinks.opensearch.reading import DOCUMENTS_MAX, found, looked_up, whole
from sinks.opensearch.search_queries import time_problems
from sinks.page_size import PageSize

_QUERY_FIELD: Final = "%query"
"""No column's field has this name: a column's ``%`` is escaped."""

_QUERIES_MAX: Final = 10_000  # max_result_window
_PERCOLATED_BYTES: Final = 4 * 1024 * 1024
_FOREVER: Final = "1h"
_OWN: Final = re.compile(r"\.g\d+$")


@dataclass(frozen=True, slots=True)
class Document:
    """A row's document as the index has it now. ``key`` has the key's columns by the names that they have here."""

    key: Mapping[str, JsonValue]
    tag: str
    source: Mapping[str, Any]


class Percolator:
    """The standing queries of one table of a generation, by their names. Raises as ``OpenSearchSink`` does."""

    def __init__(self, indexes: OpenSearchIndexes, table: TableName) -> None:
        """Raises LockstepError where the table has no index in this generation."""
        self._indexes = indexes
        self._client = indexes.client
        self._table = table
        self._index = indexes.index(table)
        self._queries_index = percolator_index(indexes, table)
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

    def ensure(self) -> None:
        """Make sure that there is a place for queries, and that it knows all fields."""
        self._create()
        self._client.call("PUT", f"/{self._queries_index}/_mapping", {"properties": self._properties})

    @property
    def _properties(self) -> dict[str, Any]:
        return {**(self._target.properties or {}), _QUERY_FIELD: {"type": "percolator"}}

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
        self._client.create_index(self._queries_index, {"dynamic": "strict", "properties": self._properties}, settings)

    def remove(self) -> None:
        """Remove the queries and their index."""
        self._client.call("DELETE", f"/{self._queries_index}", missing_ok=True)

    def store(self, name: str, query: Mapping[str, Any]) -> None:
        """Have documents asked about this query from now on.

        Raises LockstepError with what the server has against it.
        """
        if problems := time_problems(query, self._target.properties or {}):
            raise LockstepError(problems[0], hint="mend the query; docs/searches.md says which can stand")
        path, parameters = f"/{self._queries_index}_W/_doc/{name}", {"refresh": "true", "require_alias": "true"}
        try:
            self._client.call("PUT", path, {_QUERY_FIELD: query}, parameters)
        except LockstepError as error:
            reason = refusal_of(error)
            if isinstance(error, Unavailable) or reason is None:
                raise
            raise LockstepError(
                f"opensearch refuses the query over table {self._table}: {reason}",
                hint="mend the query; docs/searches.md says which can stand",
            ) from error

    def discard(self, name: str) -> None:
        """Ask about this query no longer."""
        self._client.call(
            "DELETE", f"/{self._queries_index}/_doc/{name}", parameters={"refresh": "true"}, missing_ok=True
        )

    def matches(self, documents: Sequence[Document]) -> list[set[str]]:
        """Which queries each of these documents matches."""
        names: list[set[str]] = []
        portion: list[bytes] = []
        size = 0
        for document in documents:
            portion.append(orjson.dumps(document.source))
            size += len(portion[-1])
            if size > _PERCOLATED_BYTES:
                names += self._matches(portion)
                portion, size = [], 0
        return names + (self._matches(portion) if portion else [])

    def _matches(self, documents: Sequence[bytes]) -> list[set[str]]:
        names: list[set[str]] = [set() for _ in documents]
        asked = {"percolate": {"field": _QUERY_FIELD, "documents": [orjson.Fragment(each) for each in documents]}}
        body = orjson.dumps({"size": _QUERIES_MAX, "_source": False, "query": asked})
        try:
            page = whole(self._client.call("POST", f"/{self._queries_index}/_search", body))
        except LockstepError as error:
            if refusal_of(error) is not None and self.is_outdated():
                raise Unavailable(f"the index of table {self._table} has just got other fields") from error
            raise
        for hit in page["hits"]["hits"]:
            for slot in hit["fields"]["_percolator_document_slot"]:
                names[slot].add(hit["_id"])
        return names

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
                yield by_id[identity["_id"], identity.get("routing")], Document(key, source[TAG_FIELD], source)

    def found(self, query: Mapping[str, Any]) -> Iterator[bytes]:
        """Where the documents that match a query are found again: all that were applied before this call, and maybe
        later ones."""
        self._indexes.refresh(self._index)
        for page in found(self._client, self._index, {"bool": {"filter": [query, LIVE]}}):
            for identity in page:
                yield orjson.dumps(identity)


def percolator_index(indexes: OpenSearchIndexes, table: TableName) -> str:
    """The index of a table's standing queries in this generation."""
    rest = indexes.alias(table).removeprefix(f"{indexes.prefix}.")
    return f"{indexes.prefix}.{PERCOLATOR}.{rest}.g{indexes.generation}"


def remove_others(indexes: OpenSearchIndexes, kept: Sequence[TableName]) -> None:
    """Remove the indexes of standing queries, of all generations, but for those of these tables in this one."""
    names = indexes.client.call(
        "GET", f"/{indexes.prefix}.{PERCOLATOR}.*/_alias", parameters={"expand_wildcards": "all"}
    )
    wanted = {percolator_index(indexes, table) for table in kept}
    # A table may be in a schema of that name: its index ends in another way.
    for name in sorted(name for name in names.keys() - wanted if _OWN.search(name)):
        indexes.client.call("DELETE", f"/{name}", missing_ok=True)
