"""The oldest supported OpenSearch, as a small node: differences between versions, and what tight settings refuse."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import JsonValue, RowEvent
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from stack import versions
from tests.builders import batch, column, delete, progress, table, tag, upsert
from tests.contract.beside import OpenSearchParts, generations_of
from tests.opensearch_2 import opensearch_2

pytestmark = [pytest.mark.live, pytest.mark.soak]


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """A node of its own; yields its address."""
    with opensearch_2() as address:
        yield address


@pytest.fixture
def client(node: str) -> Iterator[OpenSearch]:
    client = OpenSearch(hosts=[node])
    yield client
    client.close()


ORDERS = table(
    column("region"),
    column("id", "int8"),
    column("note"),
    column("doc", "jsonb"),
    column("span", "int4range"),
    key=("region", "id"),
)


@pytest.fixture
def opened(node: str) -> Iterator[list[OpenSearchParts]]:
    """Two generations of a sink that uses all its features; the first is live."""
    settings = OpenSearchSettings(
        urls=(node,),
        replicas=0,
        timeout_s=30,
        shards=2,
        deletes="marker",
        names={"public.orders": "orders"},
        ids={"public.orders": "{region}-{id}"},
        routing={"public.orders": ("region",)},
        fields={"public.orders.note": {"copy_to": "all"}},
    )
    name = f"t{uuid.uuid4().hex[:12]}"
    sinks = [OpenSearchParts(OpenSearchIndexes(name, settings, generation)) for generation in (1, 2)]
    for sink in sinks:
        sink.prepare([ORDERS])
    yield sinks
    for sink in sinks:
        sink.close()


def row(number: int, at: int | str = 1, note: str = "a note") -> RowEvent:
    values: dict[str, JsonValue] = {
        "region": "eu",
        "id": number,
        "note": note,
        "doc": '{"a": {"b": "x"}}',
        "span": "[1,5)",
    }
    return upsert(values, at, of=ORDERS)


def gone(number: int, at: int | str) -> RowEvent:
    return delete({"region": "eu", "id": number}, at, of=ORDERS)


def ids(sink: OpenSearchParts) -> list[Any]:
    return sorted(stored.key["id"] for stored in sink.scan(ORDERS))  # type: ignore[type-var]


def test_it_is_the_version_that_is_meant(client: OpenSearch) -> None:
    assert client.info()["version"]["number"] == versions.OPENSEARCH_2


def test_events_end_in_the_same_rows_in_whatever_order(opened: list[OpenSearchParts]) -> None:
    sink, _ = opened
    events = [row(1), row(2), row(2, 2), gone(1, 3), row(3), row(3, tag(1, 5000), "newest"), gone(4, 1)]
    for event in (*events, *reversed(events)):
        sink.apply(batch(event))
    assert ids(sink) == [2, 3]
    assert [stored.row["note"] for stored in sink.rows(ORDERS, [{"region": "eu", "id": 3}])] == ["newest"]
    assert next(iter(sink.scan(ORDERS))).row["span"] == "[1,5)"


def test_readers_find_what_is_live_and_no_markers(client: OpenSearch, opened: list[OpenSearchParts]) -> None:
    sink, second = opened
    alias = f"{sink.indexes.prefix}.orders"
    sink.apply(batch(row(1), gone(2, 2)))
    generations_of(second).begin_bulk()
    second.apply(batch(row(1, note="rebuilt")))
    generations_of(second).end_bulk()
    client.indices.refresh(index=alias)
    assert client.count(index=alias, params={"routing": "eu"})["count"] == 1
    for query in ({"term": {"doc.a.b": "x"}}, {"term": {"span": 4}}, {"match": {"all": "note"}}):
        hits = client.search(index=alias, body={"query": query})["hits"]["hits"]
        assert (query, [(hit["_id"], hit["_routing"]) for hit in hits]) == (query, [("eu-1", "eu")])
    generations_of(second).switch()
    assert (generations_of(sink).live(), client.search(index=alias)["hits"]["hits"][0]["_source"]["note"]) == (
        2,
        "rebuilt",
    )
    generations_of(second).save_progress(progress(7))
    assert generations_of(second).load_progress() == progress(7)
    generations_of(sink).drop()
    assert generations_of(second).numbers() == [2]


def test_poison_is_rejected_and_blocks_stop(client: OpenSearch, opened: list[OpenSearchParts]) -> None:
    sink, _ = opened
    outcome = sink.apply(batch(row(1), upsert({**dict(row(2).row or {}), "id": 2**63}, 1, of=ORDERS), row(3)))
    assert (outcome.applied, len(outcome.rejections)) == (2, 1)
    index = f"{sink.indexes.prefix}.orders_g1"
    client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": True})
    with pytest.raises(LockstepError, match="cluster_block_exception"):
        sink.apply(batch(row(4)))
    client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": None})
    client.indices.close(index=index)
    with pytest.raises(LockstepError, match="index_closed_exception"):
        sink.apply(batch(row(4)))
    client.indices.open(index=index)
    client.indices.delete(index=index)
    with pytest.raises(LockstepError, match=r"index_not_found_exception|invalid_index_name_exception"):
        sink.apply(batch(row(4)))


def test_too_much_at_once_goes_in_smaller_requests(opened: list[OpenSearchParts]) -> None:
    """First the node refuses requests of that length, then it lacks the memory for those that it would take."""
    sink, _ = opened
    outcome = sink.apply(batch(*(row(number, note="x " * 10_000) for number in range(200))))
    assert (outcome.applied, list(outcome.rejections)) == (200, [])
    outcome = sink.apply(batch(row(1, 2), row(2, 2, "x " * 700_000), row(3, 2)))
    assert (outcome.applied, [refused.reason for refused in outcome.rejections]) == (2, ["content_too_long"])
    with pytest.raises(Unavailable, match="no room"):
        sink.apply(batch(row(4, 2, "x " * 400_000)))
    assert len(ids(sink)) == 200
