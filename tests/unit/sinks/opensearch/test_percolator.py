"""sinks.opensearch.percolator: which indexes it removes; its answers are in tests/contract"""

from typing import Any

import pytest

from cdc.model.table import TableName
from sinks.opensearch.client import OpenSearchClient
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.percolator import percolator_index, remove_others
from sinks.opensearch.settings import OpenSearchSettings


def test_the_index_of_a_table_whose_schema_has_our_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = OpenSearchIndexes("shop", OpenSearchSettings(), 1)
    queries = percolator_index(indexes, TableName("public", "orders"))
    rows = indexes.index(TableName("lockstep_searches", "orders"))
    removed: list[str] = []

    def call(_: OpenSearchClient, method: str, path: str, *__: Any, **___: Any) -> Any:
        if method == "DELETE":
            removed.append(path)
        return {queries: {"aliases": {}}, rows: {"aliases": {}}}

    monkeypatch.setattr(OpenSearchClient, "call", call)
    remove_others(indexes, ())
    assert removed == [f"/{queries}"]
