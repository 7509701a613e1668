"""Rows as documents in OpenSearch, one index per table and generation. ``docs/sinks/opensearch.md`` says what is where.

The tag is the document's external version (``cdc.model.tag``): the server refuses older writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import Events, JsonValue
from cdc.model.table import Table, TableName
from sinks.contract import (
    NOTHING_ADDED,
    AddedValues,
    Batch,
    OpenedSink,
    Outcome,
    Sink,
    StoredRow,
    TablesRefused,
)
from sinks.opensearch.bulk_writer import BulkWriter
from sinks.opensearch.coordination import OpenSearchCoordination
from sinks.opensearch.documents import Target
from sinks.opensearch.erasing import OpenSearchErasing
from sinks.opensearch.generations import OpenSearchGenerations
from sinks.opensearch.indexes import LIVE, OpenSearchIndexes
from sinks.opensearch.mapping import DELETED_FIELD
from sinks.opensearch.reading import DOCUMENTS_MAX, found, looked_up
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.visibility import OpenSearchRefreshing
from sinks.opensearch.writer_aliases import WriterAliases
from sinks.page_size import PageSize


def open_opensearch(name: str, settings: OpenSearchSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation, not yet connected. Raises ConfigurationError for an unfit prefix."""
    indexes = OpenSearchIndexes(name, settings, generation)
    generations = OpenSearchGenerations(indexes)
    return OpenedSink(
        OpenSearchSink(indexes),
        generations,
        OpenSearchCoordination(indexes),
        bulk=generations,
        erasing=OpenSearchErasing(indexes),
        identities=generations,
        refreshing=OpenSearchRefreshing(indexes),
    )


class OpenSearchSink(Sink):
    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._client = indexes.client
        self._bookkeeping = indexes.bookkeeping
        self._writer = BulkWriter(indexes)
        self._writers = WriterAliases(indexes)
        self._page_sizes: dict[TableName, PageSize] = {}

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        unfit = self._indexes.settings.unfit(self._indexes.name, tables)
        if unfit and len(unfit) == len(tables):
            raise TablesRefused(unfit)
        fit = [table for table in tables if table.name not in unfit]
        pairs = [(self._indexes.index(table.name), self._indexes.alias(table.name)) for table in fit]
        self._bookkeeping.create_index()
        self._indexes.prepare(fit)
        live = self._indexes.live()
        may_go = live is None and go_live
        if pairs and (live == self._indexes.generation or (may_go and not self._indexes.in_bulk())):
            self._indexes.move_aliases(to=pairs)
        if unfit:
            raise TablesRefused(unfit)
        return added

    def claim(self) -> int:
        """Returns 0 for tables: the versions alone make two writers safe. A view has one writer at a time."""
        if self._indexes.fences:
            self._indexes.claimed = self._writers.claim()
        return self._indexes.claimed

    def fence(self) -> int:
        return self._writers.fence() if self._indexes.fences else 0

    def apply(self, batch: Batch) -> Outcome:
        self._bookkeeping.check_format()
        events = Events.of(batch.events)
        if self._indexes.fences and not (events.tables and batch.fence):
            self._writers.check(batch.fence)
        self._indexes.write_as(batch.fence)
        for table_events in events.tables:
            if table_events.table not in self._indexes.targets:
                self._indexes.look_again_at(table_events.table)
        try:
            return self._writer.write(events, overwrite_equal_tags=batch.overwrite_equal_tags)
        except LockstepError as error:
            # Perhaps the writer's alias is gone: the cluster reports that in several ways.
            if self._indexes.fences and not isinstance(error, Unavailable):
                self._writers.check(batch.fence)
            raise

    def scan(self, table: Table) -> Iterator[StoredRow]:
        self._bookkeeping.check_format()
        index = self._indexes.index(table.name)
        target = self._indexes.look_at(table.name)
        self._indexes.refresh(index)
        for documents in found(self._client, index, LIVE):
            for source in self._sources(index, table, documents, target):
                yield target.stored(source, table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        self._bookkeeping.check_format()
        index = self._indexes.index(table.name)
        target = self._indexes.look_up_in(table)
        identities = [target.identity({name: key[name] for name in table.key}) for key in keys]
        documents = list({identity["_id"]: identity for identity in identities}.values())
        for source in self._sources(index, table, documents, target):
            yield target.stored(source, table)

    def close(self) -> None:
        self._client.close()

    def _sources(
        self, index: str, table: Table, documents: Sequence[Mapping[str, str]], target: Target
    ) -> Iterator[Mapping[str, Any]]:
        """The ``_source`` of these documents, without deleted ones, as ``looked_up`` returns them."""
        page_size = self._page_sizes.setdefault(table.name, PageSize(DOCUMENTS_MAX))
        for _, source in looked_up(self._client, index, documents, page_size, is_routed=bool(target.routing)):
            if not source.get(DELETED_FIELD):
                yield source
