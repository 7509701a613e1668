"""Rows as documents in OpenSearch, one index per table and generation. ``docs/sinks/opensearch.md`` says what is where.

The tag is the document's external version (``cdc.model.tag``): the server refuses older writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.model.errors import Unavailable
from cdc.model.event import Events, JsonValue
from cdc.model.table import Table, TableName
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, Leftover, OpenedSink, Outcome, StoredRow
from sinks.opensearch.answers import RETRY_AFTER_S, unreadable
from sinks.opensearch.bulk_writer import BulkWriter
from sinks.opensearch.coordination import OpenSearchCoordination
from sinks.opensearch.documents import Target
from sinks.opensearch.erasing import OpenSearchErasing
from sinks.opensearch.generations import OpenSearchGenerations
from sinks.opensearch.indexes import LIVE, OpenSearchIndexes
from sinks.opensearch.mapping import DELETED_FIELD
from sinks.opensearch.settings import OpenSearchSettings
from sinks.page_size import PageSize

_SCAN_IDS: Final = 2000
_SCAN_KEEP_ALIVE: Final = "5m"
_DOCUMENTS_MAX: Final = 1000


def open_opensearch(name: str, settings: OpenSearchSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used.

    Raises ConfigurationError for a prefix that can't begin an index name.
    """
    indexes = OpenSearchIndexes(name, settings, generation)
    return OpenedSink(
        OpenSearchSink(indexes), OpenSearchGenerations(indexes), OpenSearchCoordination(indexes.bookkeeping)
    )


class OpenSearchSink:
    """Applies events to the indexes of one generation."""

    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._client = indexes.client
        self._bookkeeping = indexes.bookkeeping
        self._writer = BulkWriter(indexes)
        self._erasing = OpenSearchErasing(indexes)
        self._page_sizes: dict[TableName, PageSize] = {}

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        pairs = [(self._indexes.index(table.name), self._indexes.alias(table.name)) for table in tables]
        self._bookkeeping.create_index()
        self._indexes.prepare(tables)
        live = self._indexes.live()
        may_go = live is None and go_live
        if pairs and (live == self._indexes.generation or (may_go and not self._indexes.in_bulk())):
            self._indexes.move_aliases(to=pairs)
        return added

    def claim(self) -> int:
        """Returns 0: the server can't fence, the versions alone keep two writers right."""
        return 0

    def fence(self) -> int:
        """Returns 0, as ``claim`` does."""
        return 0

    def apply(self, batch: Batch) -> Outcome:
        self._bookkeeping.check_format()
        events = Events.of(batch.events)
        for table_events in events.tables:
            if table_events.table not in self._indexes.targets:
                self._indexes.look_again_at(table_events.table)
        return self._writer.write(events, overwrite_equal_tags=batch.overwrite_equal_tags)

    def plan_scans(self, tables: Sequence[Table]) -> None:
        """Has no effect: each table is by itself."""

    def scan(self, table: Table) -> Iterator[StoredRow]:
        self._bookkeeping.check_format()
        index = self._indexes.index(table.name)
        target = self._indexes.look_at(table.name)
        self._indexes.refresh(index)
        # Ids alone: a page of documents may have any size.
        query = {"size": _SCAN_IDS, "sort": ["_doc"], "query": LIVE, "_source": False}
        page = self._client.call("POST", f"/{index}/_search", query, {"scroll": _SCAN_KEEP_ALIVE})
        try:
            while _is_whole(page)["hits"]["hits"]:
                found = [_identity(hit) for hit in page["hits"]["hits"]]
                for source in self._sources(index, table, found, target):
                    yield target.stored(source, table)
                again = {"scroll": _SCAN_KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
                page = self._client.call("POST", "/_search/scroll", again)
        finally:
            self._client.call("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]}, missing_ok=True)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        self._bookkeeping.check_format()
        index = self._indexes.index(table.name)
        target = self._indexes.look_at(table.name)
        identities = [target.identity({name: key[name] for name in table.key}) for key in keys]
        documents = list({identity["_id"]: identity for identity in identities}.values())
        for source in self._sources(index, table, documents, target):
            yield target.stored(source, table)

    def leftovers(self, table: Table, key: Mapping[str, JsonValue]) -> Sequence[Leftover]:
        self._bookkeeping.check_format()
        return self._erasing.leftovers(table, key)

    def erase(self, table: Table, key: Mapping[str, JsonValue], *, below: str | None) -> Sequence[Leftover]:
        self._bookkeeping.check_format()
        return self._erasing.erase(table, key, below=below)

    def close(self) -> None:
        self._client.close()

    def _sources(
        self, index: str, table: Table, documents: Sequence[Mapping[str, str]], target: Target
    ) -> Iterator[Mapping[str, Any]]:
        """What is stored of these documents, but for those that are gone; a bounded number of bytes at a time.

        By id, hence as of now: the server looks into what it hasn't refreshed yet.
        """
        page_size = self._page_sizes.setdefault(table.name, PageSize(_DOCUMENTS_MAX))
        begin = 0
        while portion := documents[begin : begin + page_size.rows]:
            begin += len(portion)
            wanted = {"docs": portion} if target.routing else {"ids": [document["_id"] for document in portion]}
            answer = self._client.call("POST", f"/{index}/_mget", wanted)
            size = 0
            for document in answer["docs"]:
                if "error" in document:
                    raise unreadable(document["error"])
                if document["found"]:
                    size += len(orjson.dumps(document["_source"]))
                    if not document["_source"].get(DELETED_FIELD):
                        yield document["_source"]
            page_size.learn(len(portion), size)


def _identity(hit: Mapping[str, Any]) -> Mapping[str, str]:
    """Where a document is found again."""
    return {"_id": hit["_id"], **({"routing": hit["_routing"]} if "_routing" in hit else {})}


def _is_whole(page: Any) -> Any:
    """A page of results. Raises Unavailable where a shard couldn't say what it has.

    OpenSearch answers without it all the same.
    """
    if page["_shards"]["failed"] or page.get("timed_out"):
        raise Unavailable("opensearch can't read all shards of an index now", retry_after_s=RETRY_AFTER_S)
    return page
