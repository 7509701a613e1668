"""Questions to an OpenSearch cluster before a job begins. They create nothing."""

from collections.abc import Sequence

from cdc.model.table import Table
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.writer_aliases import WriterAliases


def check_new(name: str, settings: OpenSearchSettings, tables: Sequence[Table]) -> str:
    indexes = OpenSearchIndexes(name, settings, 1)
    try:
        return indexes.check_new(tables)
    finally:
        indexes.client.close()


def why_late_writes_are_unseen(name: str, settings: OpenSearchSettings) -> str:
    if settings.view is None:
        return ""
    indexes = OpenSearchIndexes(name, settings, 1)
    try:
        return WriterAliases(indexes).why_unseen()
    finally:
        indexes.client.close()
