"""What a real OpenSearch answers where the sink depends on it."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from cdc.model.errors import ConfigurationError, DataLost, LockstepError
from cdc.model.event import JsonValue
from monitor.visible import Visible, VisibleRows
from sinks.contract import Progress
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.visibility import OpenSearchRefreshing
from tests.builders import batch, column, delete, progress, table, upsert
from tests.contract.beside import OpenSearchParts, generations_of

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
def sink(endpoints: Any) -> Iterator[OpenSearchParts]:
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=30)
    sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", settings, 1))
    sink.prepare([PRODUCTS])
    yield sink
    sink.close()


def alias(sink: OpenSearchParts) -> str:
    return f"{sink.indexes.prefix}.public.orders"


def ids_of_hits(client: OpenSearch, sink: OpenSearchParts, query: dict[str, Any]) -> list[int]:
    client.indices.refresh(index=alias(sink))
    answer = client.search(index=alias(sink), body={"query": query, "sort": ["id"]})
    return [hit["_source"]["id"] for hit in answer["hits"]["hits"]]


def test_documents_are_found_by_their_values(client: OpenSearch, sink: OpenSearchParts) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "title": "Red chair", "price": "19.90", "weight": 2.5, "made": "2020-01-31", "attributes": None},
        {"id": 2, "title": "Red table", "price": "120", "weight": "NaN", "made": "infinity",
         "attributes": '{"a": {"b": "x"}}'},
        {"id": 3, "title": "Blue lamp", "price": "NaN", "weight": 9.5, "made": "2024-02-29", "attributes": "[1]"},
    ]  # fmt: skip
    assert sink.apply(batch(*(upsert(row, 1, of=PRODUCTS) for row in rows))).applied == 3
    assert ids_of_hits(client, sink, {"match": {"title": "red"}}) == [1, 2]
    assert ids_of_hits(client, sink, {"range": {"price": {"gt": 19.5, "lt": 100}}}) == [1]
    assert ids_of_hits(client, sink, {"term": {"price.exact": "19.90"}}) == [1]
    assert ids_of_hits(client, sink, {"range": {"weight": {"gte": 2.5}}}) == [1, 3]
    assert ids_of_hits(client, sink, {"range": {"made": {"gte": "2024-01-01"}}}) == [3]
    assert ids_of_hits(client, sink, {"term": {"attributes.a.b": "x"}}) == [2]
    assert ids_of_hits(client, sink, {"exists": {"field": "_ignored"}}) == [2, 3]


def test_json_that_cannot_be_indexed_costs_the_search_copy_only(client: OpenSearch, sink: OpenSearchParts) -> None:
    text = '{"deep": ' * 25 + "1" + "}" * 25
    row = {**ROW, "attributes": text}
    assert sink.apply(batch(upsert(row, 1, of=PRODUCTS))).applied == 1
    assert [stored.row["attributes"] for stored in sink.scan(PRODUCTS)] == [text]
    assert ids_of_hits(client, sink, {"exists": {"field": "attributes"}}) == []


# It changes the whole server, which others use at the same time.
@pytest.mark.alone
def test_a_late_write_does_not_recreate_a_dropped_index(client: OpenSearch, sink: OpenSearchParts) -> None:
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


def test_a_full_disk_stops_the_job_and_rejects_no_row(client: OpenSearch, sink: OpenSearchParts) -> None:
    index = f"{alias(sink)}_g1"
    # The flood-stage watermark sets this.
    client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": True})
    with pytest.raises(LockstepError, match="cluster_block_exception"):
        sink.apply(batch(upsert(ROW, 1, of=PRODUCTS)))
    client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": None})
    assert sink.apply(batch(upsert(ROW, 1, of=PRODUCTS))).applied == 1


# It restarts a server that others use at the same time.
@pytest.mark.alone
def test_a_marker_remembers_a_delete_across_a_restart(
    stack: Any, endpoints: Any, client: OpenSearch, sink: OpenSearchParts
) -> None:
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, deletes="marker")
    marking = OpenSearchParts(OpenSearchIndexes(sink.indexes.prefix, settings, 1))
    marking.apply(batch(upsert(ROW, 1, of=PRODUCTS), upsert({**ROW, "id": 2}, 1, of=PRODUCTS)))
    assert marking.apply(batch(delete({"id": 1}, 3, of=PRODUCTS))).applied == 1
    stack.stop("opensearch")
    stack.start("opensearch")
    outcome = marking.apply(batch(upsert(ROW, 2, of=PRODUCTS)))
    assert (outcome.applied, outcome.stale) == (0, 1)
    assert [stored.row["id"] for stored in marking.scan(PRODUCTS)] == [2]
    assert ids_of_hits(client, sink, {"match_all": {}}) == [2]
    assert marking.apply(batch(upsert({**ROW, "title": "again"}, 4, of=PRODUCTS))).applied == 1
    assert ids_of_hits(client, sink, {"match_all": {}}) == [1, 2]
    marking.close()


@pytest.fixture
def second(sink: OpenSearchParts) -> Iterator[OpenSearchParts]:
    second = OpenSearchParts(OpenSearchIndexes(sink.indexes.prefix, sink.indexes.settings, 2))
    second.prepare([PRODUCTS])
    yield second
    second.close()


def test_progress_that_was_removed_with_its_index_is_missed_by_who_has_stored_it(
    client: OpenSearch, sink: OpenSearchParts
) -> None:
    generations = generations_of(sink)
    generations.save_progress(progress(1))
    client.indices.delete(index=f"{sink.indexes.prefix}.lockstep_bookkeeping")
    with pytest.raises(DataLost):
        generations.save_progress(progress(2))


def test_an_alias_on_two_generations_is_noticed_and_a_switch_mends_it(
    client: OpenSearch, sink: OpenSearchParts, second: OpenSearchParts
) -> None:
    client.indices.put_alias(index=f"{alias(sink)}_g2", name=alias(sink))
    with pytest.raises(LockstepError, match="generations 1 and 2 at once"):
        generations_of(sink).live()
    generations_of(second).switch()
    assert generations_of(sink).live() == 2


def test_rows_by_key_see_what_was_not_refreshed_and_no_markers(client: OpenSearch, sink: OpenSearchParts) -> None:
    client.indices.put_settings(index=f"{alias(sink)}_g1", body={"index.refresh_interval": "-1"})
    marking = OpenSearchParts(
        OpenSearchIndexes(sink.indexes.prefix, sink.indexes.settings.model_copy(update={"deletes": "marker"}), 1)
    )
    marking.apply(batch(upsert(ROW, 1, of=PRODUCTS), upsert({**ROW, "id": 2}, 1, of=PRODUCTS)))
    marking.apply(batch(delete({"id": 1}, 2, of=PRODUCTS)))
    assert [stored.row for stored in marking.rows(PRODUCTS, [{"id": 1}, {"id": 2}])] == [{**ROW, "id": 2}]
    marking.close()


def test_what_no_search_finds_yet_is_told_until_a_refresh_and_not_only_until_a_flush(
    client: OpenSearch, sink: OpenSearchParts
) -> None:
    index = f"{alias(sink)}_g1"
    client.indices.put_settings(index=index, body={"index.refresh_interval": "-1"})
    client.indices.refresh(index=index)
    rows, visibility = VisibleRows(), OpenSearchRefreshing(sink.indexes)

    def visible(records: int) -> Visible:
        return rows.look(Progress({("t", 0): records}, records, 0, 0, {}), visibility.refreshes())

    assert visible(0).is_all
    sink.apply(batch(upsert(ROW, 1, of=PRODUCTS)))
    assert visible(1) == Visible(False, 0, 0, unseen=1)
    client.indices.flush(index=index)  # moves it to the disk
    assert client.count(index=index)["count"] == 0, "or a flush shows it by now"
    assert visible(1) == Visible(False, 0, 0, unseen=1)
    client.indices.refresh(index=index)
    assert visible(1).is_all
    sink.apply(batch(delete({"id": 1}, 2, of=PRODUCTS)))
    assert visible(2) == Visible(False, 1, 0, unseen=1)
    client.indices.refresh(index=index)
    assert visible(2).is_all


def test_a_switch_shows_what_was_not_refreshed(
    client: OpenSearch, sink: OpenSearchParts, second: OpenSearchParts
) -> None:
    client.indices.put_settings(index=f"{alias(sink)}_g2", body={"index.refresh_interval": "1h"})
    second.apply(batch(upsert(ROW, 1, of=PRODUCTS)))
    generations_of(second).switch()
    answer = client.search(index=alias(sink), body={"query": {"match_all": {}}})
    assert [hit["_source"]["id"] for hit in answer["hits"]["hits"]] == [1]


@pytest.mark.soak
def test_in_bulk_the_index_spares_itself_until_the_end(
    client: OpenSearch, sink: OpenSearchParts, second: OpenSearchParts
) -> None:
    def of_index(generation: int) -> tuple[str, str]:
        index = f"{alias(sink)}_g{generation}"
        settings = client.indices.get_settings(index=index)[index]["settings"]["index"]
        return settings["refresh_interval"], settings["number_of_replicas"]

    configured = OpenSearchParts(
        OpenSearchIndexes(sink.indexes.prefix, sink.indexes.settings.model_copy(update={"replicas": 2}), 2)
    )
    generations_of(configured).end_bulk()
    assert of_index(2) == ("500ms", "0")
    generations_of(configured).begin_bulk()
    generations_of(sink).begin_bulk()
    assert (of_index(1), of_index(2)) == (("500ms", "0"), ("-1", "0"))
    generations_of(configured).begin_bulk()
    configured.apply(batch(upsert(ROW, 1, of=PRODUCTS)))
    with pytest.raises(LockstepError, match="still being loaded in bulk"):
        generations_of(second).switch()
    generations_of(configured).end_bulk()
    assert of_index(2) == ("500ms", "2")
    assert client.count(index=f"{alias(sink)}_g2")["count"] == 1
    client.indices.put_settings(index=f"{alias(sink)}_g2", body={"index.number_of_replicas": 0})
    generations_of(configured).end_bulk()
    assert of_index(2) == ("500ms", "0")
    generations_of(second).switch()
    configured.close()


def test_a_first_generation_in_bulk_does_not_go_live_by_itself(endpoints: Any) -> None:
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=30)
    sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", settings, 1))
    sink.prepare([PRODUCTS], go_live=False)
    generations_of(sink).begin_bulk()
    sink.prepare([PRODUCTS])
    assert generations_of(sink).live() is None
    generations_of(sink).end_bulk()
    sink.prepare([PRODUCTS])
    assert generations_of(sink).live() == 1
    sink.close()


@pytest.mark.soak
def test_fields_and_index_settings_shape_the_index(client: OpenSearch, endpoints: Any) -> None:
    settings = OpenSearchSettings(
        urls=(endpoints.opensearch_url,),
        replicas=0,
        timeout_s=30,
        fields={
            "public.orders.title": {"type": "text", "analyzer": "mine"},
            "public.orders.attributes": {"type": "keyword"},
            "public.orders.added": {"type": "keyword"},
        },
        index_settings={
            "analysis": {
                "analyzer": {
                    "mine": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "german_stem"]}
                }
            }
        },
    )  # fmt: skip
    wider = table(*PRODUCTS.columns, column("added"))
    sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", settings, 1))
    with pytest.raises(ConfigurationError, match=r"table public\.orders has no column 'added'"):
        sink.prepare([PRODUCTS])
    sink.prepare([wider])
    row = {**ROW, "title": "Die Häuser", "attributes": '{"a": 1}', "added": "one two"}
    sink.apply(batch(upsert(row, 1, of=wider)))
    assert ids_of_hits(client, sink, {"match": {"title": "haus"}}) == [1]
    assert ids_of_hits(client, sink, {"term": {"attributes": '{"a": 1}'}}) == [1]
    assert ids_of_hits(client, sink, {"term": {"added": "one two"}}) == [1]
    assert [stored.row for stored in sink.scan(wider)] == [row]
    sink.close()
