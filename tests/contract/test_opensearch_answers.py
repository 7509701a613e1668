"""What a real OpenSearch answers where the sink depends on it."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from sinks.opensearch_sink import OpenSearchSettings, OpenSearchSink
from tests.builders import batch, column, delete, table, upsert

pytestmark = pytest.mark.live

PRODUCTS = table(
    column("id", "int8"),
    column("title"),
    column("price", "numeric"),
    column("weight", "float8"),
    column("made", "date"),
    column("attributes", "jsonb"),
)  # fmt: skip


ROW: dict[str, JsonValue] = {
    "id": 1,
    "title": "t",
    "price": "1",
    "weight": 1.0,
    "made": None,
    "attributes": None,
}  # fmt: skip


@pytest.fixture
def client(endpoints: Any) -> Iterator[OpenSearch]:
    client = OpenSearch(hosts=[endpoints.opensearch_url])
    yield client
    client.close()


@pytest.fixture
def sink(endpoints: Any) -> Iterator[OpenSearchSink]:
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=30)
    sink = OpenSearchSink(f"t{uuid.uuid4().hex[:12]}", settings, 1)
    sink.prepare([PRODUCTS])
    yield sink
    sink.close()


def alias(sink: OpenSearchSink) -> str:
    return f"{sink._prefix}.public.orders"


def found(client: OpenSearch, sink: OpenSearchSink, query: dict[str, Any]) -> list[int]:
    client.indices.refresh(index=alias(sink))
    answer = client.search(index=alias(sink), body={"query": query, "sort": ["id"]})
    return [hit["_source"]["id"] for hit in answer["hits"]["hits"]]


def test_documents_are_found_by_their_values(client: OpenSearch, sink: OpenSearchSink) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "title": "Red chair", "price": "19.90", "weight": 2.5, "made": "2020-01-31", "attributes": None},
        {"id": 2, "title": "Red table", "price": "120", "weight": "NaN", "made": "infinity", "attributes": '{"a": {"b": "x"}}'},
        {"id": 3, "title": "Blue lamp", "price": "NaN", "weight": 9.5, "made": "2024-02-29", "attributes": "[1]"},
    ]  # fmt: skip
    assert sink.apply(batch(*(upsert(row, 1, of=PRODUCTS) for row in rows))).applied == 3
    assert found(client, sink, {"match": {"title": "red"}}) == [1, 2]
    assert found(client, sink, {"range": {"price": {"gt": 19.5, "lt": 100}}}) == [1]
    assert found(client, sink, {"term": {"price.exact": "19.90"}}) == [1]
    assert found(client, sink, {"range": {"weight": {"gte": 2.5}}}) == [1, 3]
    assert found(client, sink, {"range": {"made": {"gte": "2024-01-01"}}}) == [3]
    assert found(client, sink, {"term": {"attributes.a.b": "x"}}) == [2]
    assert found(client, sink, {"exists": {"field": "_ignored"}}) == [2, 3]


def test_json_that_cannot_be_indexed_costs_the_search_copy_only(client: OpenSearch, sink: OpenSearchSink) -> None:
    text = '{"deep": ' * 25 + "1" + "}" * 25
    row = {**ROW, "attributes": text}
    assert sink.apply(batch(upsert(row, 1, of=PRODUCTS))).applied == 1
    assert [stored.row["attributes"] for stored in sink.scan(PRODUCTS)] == [text]
    assert found(client, sink, {"exists": {"field": "attributes"}}) == []


def test_a_late_write_does_not_make_a_dropped_index_anew(client: OpenSearch, sink: OpenSearchSink) -> None:
    client.cluster.put_settings(body={"transient": {"action.auto_create_index": "true"}})
    try:
        sink.apply(batch(upsert(ROW, 1, of=PRODUCTS)))
        client.indices.delete(index=f"{alias(sink)}_g1")
        for late in (delete({"id": 1}, 2, of=PRODUCTS), upsert(ROW, 3, of=PRODUCTS)):
            with pytest.raises(LockstepError, match=r"index_not_found_exception|invalid_index_name_exception"):
                sink.apply(batch(late))
        assert not client.indices.exists(index=f"{alias(sink)}_g1")
        assert client.indices.get(index=f"{alias(sink)}*") == {}
    finally:
        client.cluster.put_settings(body={"transient": {"action.auto_create_index": None}})


def test_a_full_disk_stops_the_job_and_rejects_no_row(client: OpenSearch, sink: OpenSearchSink) -> None:
    index = f"{alias(sink)}_g1"
    # What the flood-stage watermark sets.
    client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": True})
    with pytest.raises(LockstepError, match="cluster_block_exception"):
        sink.apply(batch(upsert(ROW, 1, of=PRODUCTS)))
    client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": None})
    assert sink.apply(batch(upsert(ROW, 1, of=PRODUCTS))).applied == 1


def test_an_index_that_is_not_ours_is_left_alone(client: OpenSearch, endpoints: Any) -> None:
    name = f"t{uuid.uuid4().hex[:12]}"
    client.indices.create(index=f"{name}.public.orders_g1")
    sink = OpenSearchSink(name, OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0), 1)
    with pytest.raises(LockstepError, match="isn't ours"):
        sink.prepare([PRODUCTS])
    sink.close()


def test_a_marker_remembers_a_delete_across_a_restart(
    stack: Any, endpoints: Any, client: OpenSearch, sink: OpenSearchSink
) -> None:
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, deletes="marker")
    marking = OpenSearchSink(sink._prefix, settings, 1)
    marking.apply(batch(upsert(ROW, 1, of=PRODUCTS), upsert({**ROW, "id": 2}, 1, of=PRODUCTS)))
    assert marking.apply(batch(delete({"id": 1}, 3, of=PRODUCTS))).applied == 1
    stack.stop("opensearch")
    stack.start("opensearch")
    outcome = marking.apply(batch(upsert(ROW, 2, of=PRODUCTS)))
    assert (outcome.applied, outcome.stale) == (0, 1)
    assert [stored.row["id"] for stored in marking.scan(PRODUCTS)] == [2]
    assert found(client, sink, {"match_all": {}}) == [2]
    assert marking.apply(batch(upsert({**ROW, "title": "again"}, 4, of=PRODUCTS))).applied == 1
    assert found(client, sink, {"match_all": {}}) == [1, 2]
    marking.close()
