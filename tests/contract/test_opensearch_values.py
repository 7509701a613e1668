"""Values of every type in a real OpenSearch: all come back exactly, and are found where the mapping promises it."""

import uuid
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import orjson
import pytest
from opensearchpy import OpenSearch

from cdc.event_format.encode import TableEncoder
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from cdc.postgres.replication import ReplicationConnection
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from snapshot.table_reader import SnapshotReader
from stack import versions
from tests.builders import batch, column, table, tag, upsert
from tests.contract.beside import OpenSearchParts
from tests.copy_lines import snapshot_rows
from tests.databases import Database
from tests.values import ARRAYS, EXTENSIONS, SCALARS, TYPES, known

pytestmark = pytest.mark.live

ALL = known(SCALARS | ARRAYS, versions.POSTGRES_MAJOR)

Open = Callable[..., OpenSearchParts]


@pytest.fixture
def open_sink(endpoints: Any, client: OpenSearch) -> Iterator[Open]:
    opened: list[OpenSearchParts] = []

    def open_(*tables: Table, **shaping: Any) -> OpenSearchParts:
        settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=30, **shaping)
        sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", settings, 1))
        sink.prepare(tables)
        opened.append(sink)
        return sink

    yield open_
    for sink in opened:
        client.indices.delete(index=f"{sink.indexes.prefix}.*")
        sink.close()


def ids_of_hits(client: OpenSearch, sink: OpenSearchParts, query: dict[str, Any]) -> list[int]:
    index = f"{sink.indexes.prefix}.public.orders"
    client.indices.refresh(index=index)
    hits = client.search(index=index, body={"query": query, "sort": ["id"], "size": 100})["hits"]["hits"]
    return [hit["_source"]["id"] for hit in hits]


def test_values_of_every_type_come_back_exactly(shared_database: Database, open_sink: Open) -> None:
    database = shared_database
    database.execute(*(f"create extension {name}" for name in EXTENSIONS), TYPES, "set lc_monetary = 'C'")
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(ALL))
    database.execute(f"create table everything (id int primary key, {columns})")
    for number, values in enumerate(zip_longest(*ALL.values(), fillvalue="null")):
        database.execute(f"insert into everything values ({number}, {', '.join(values)})")
    everything = database.shape(TableName("public", "everything"))
    encoder = TableEncoder(everything, server="t", database="t", version="1")
    with ReplicationConnection(database.source()) as holder:
        snapshot = holder.create_slot(database.slot_name(), temporary=True).snapshot_name
        with SnapshotReader(database.source(), snapshot) as reader:
            rows = [orjson.loads(encoder.row(fields)) for fields in snapshot_rows(reader, everything)]
    sink = open_sink(everything)
    outcome = sink.apply(batch(*(upsert(row, 1, of=everything) for row in rows)))
    assert [rejection.reason for rejection in outcome.rejections] == []
    stored = {row.row["id"]: row for row in sink.scan(everything)}
    for row in rows:
        differing = [name for name in row if repr(stored[row["id"]].row[name]) != repr(row[name])]
        assert [everything.column(name).type_name for name in differing] == []
    assert [len(row.lacks) for row in stored.values()] == [0] * len(rows)


MANY = table(
    column("id", "int8"),
    column("numbers", "int4", is_array=True),
    column("words", is_array=True),
    column("instant", "timestamptz"),
    column("instants", "timestamptz", is_array=True),
    column("price", "numeric"),
    column("span", "int4range"),
    column("spans", "int4range", is_array=True),
    column("prices", "numrange"),
    column("days", "daterange"),
    column("during", "tstzrange"),
    column("shifts", "tstzmultirange"),
)
_NOTHING: dict[str, JsonValue] = dict.fromkeys(column.name for column in MANY.columns)
MANY_ROWS: list[dict[str, JsonValue]] = [
    {**_NOTHING, "id": 1, "numbers": [[1, 2], [3, None]], "words": [["Red chair"], ["blue"]]},
    {**_NOTHING, "id": 2, "numbers": "[0:1]={7,8}", "words": []},
    {**_NOTHING, "id": 3, "instant": "2024-02-29T12:00:00.123456Z", "instants": ["2024-01-01T00:00:00Z", "infinity"]},
    {**_NOTHING, "id": 4, "instant": "infinity", "price": "123456789012345678.90"},
    {**_NOTHING, "id": 5, "instant": "21016-11-04T13:51:30Z", "price": "1.10"},
    {**_NOTHING, "id": 6, "span": "[1,11)", "spans": [["[1,3)"], ["[100,)"]], "prices": "(5.30,6.30]"},
    {**_NOTHING, "id": 7, "span": "empty", "spans": ["empty", None], "prices": "[NaN,NaN]", "days": "empty"},
    {**_NOTHING, "id": 8, "span": "(,)", "days": "[2019-03-31,infinity)",
     "prices": "(1.00000000000000000000,1.00000000000000000001)"},
    {**_NOTHING, "id": 9, "days": "[2019-03-31,2019-04-02)",
     "during": '["2014-08-04 00:00:00+00","2014-08-05 00:00:00.123456+00")'},
    {**_NOTHING, "id": 10, "during": '["0044-02-01 10:00:00+00 BC",infinity)',
     "shifts": '{["2014-08-04 06:00:00+00","2014-08-04 14:00:00+00"),["2014-08-05 06:00:00+00",)}'},
]  # fmt: skip


def test_arrays_instants_and_ranges_are_found(client: OpenSearch, open_sink: Open) -> None:
    sink = open_sink(MANY)
    outcome = sink.apply(batch(*(upsert(row, 1, of=MANY) for row in MANY_ROWS)))
    assert (outcome.applied, list(outcome.rejections)) == (len(MANY_ROWS), [])
    for query, expected in [
        ({"term": {"numbers": 3}}, [1]),
        ({"term": {"numbers": 7}}, []),
        ({"match": {"words": "chair"}}, [1]),
        ({"term": {"words.keyword": "Red chair"}}, [1]),
        ({"range": {"instant": {"gte": "2024-02-29T12:00:00.123Z", "lt": "2024-02-29T12:00:00.124Z"}}}, [3]),
        ({"term": {"instants": "2024-01-01"}}, [3]),
        ({"range": {"price": {"gt": 1e17}}}, [4]),
        ({"term": {"price.exact": "123456789012345678.90"}}, [4]),
        ({"terms": {"_ignored": ["numbers", "instant", "instants"]}}, [2, 3, 4, 5]),
        ({"term": {"span": 10}}, [6, 8]),
        ({"term": {"span": 11}}, [8]),
        ({"term": {"spans": 1000}}, [6]),
        ({"term": {"prices": 6.3}}, [6]),
        ({"term": {"prices": 5.3}}, []),
        ({"term": {"days": "2019-04-01"}}, [8, 9]),
        ({"term": {"days": "2019-04-02"}}, [8]),
        ({"range": {"during": {"gte": "2014-08-04T23:59:59Z", "lte": "2014-08-05"}}}, [9]),
        ({"range": {"during": {"gte": "2014-08-04", "lt": "2014-08-05T00:00:00.123Z", "relation": "contains"}}}, [9]),
        ({"term": {"shifts": "2014-08-04T13:59:59Z"}}, [10]),
        ({"term": {"shifts": "2014-08-04T20:00:00Z"}}, []),
        ({"term": {"shifts": "2024-08-04T20:00:00Z"}}, [10]),
    ]:  # fmt: skip
        assert (query, ids_of_hits(client, sink, query)) == (query, expected)
    assert sorted((dict(stored.row) for stored in sink.scan(MANY)), key=lambda row: row["id"]) == MANY_ROWS  # type: ignore[arg-type,return-value]


CHOSEN = table(
    column("id", "int8"),
    column("title"),
    column("body"),
    column("code"),
    column("secret"),
    column("price", "numeric"),
    column("exact", "numeric"),
    column("at", "timestamptz"),
    column("doc", "jsonb"),
    column("span", "int4range"),
)
CHOSEN_FIELDS: dict[str, dict[str, Any]] = {
    "title": {"analyzer": "folded", "copy_to": "anything"},
    "body": {"fields": {"de": {"type": "text", "analyzer": "german"}}, "copy_to": ["anything"]},
    "code": {"type": "keyword", "normalizer": "lower"},
    "secret": {"enabled": False},
    "price": {"type": "scaled_float", "scaling_factor": 100},
    "exact": {"index": False},
    "at": {"type": "date_nanos"},
    "doc": {"type": "object", "dynamic": "true"},
    "span": {"type": "keyword"},
}
CHOSEN_ANALYSIS = {
    "analyzer": {"folded": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "asciifolding"]}},
    "normalizer": {"lower": {"type": "custom", "filter": ["lowercase"]}},
}


@pytest.mark.soak
def test_every_field_can_be_indexed_in_another_way(client: OpenSearch, open_sink: Open) -> None:
    fields = {f"public.orders.{name}": how for name, how in CHOSEN_FIELDS.items()}
    sink = open_sink(CHOSEN, fields=fields, index_settings={"analysis": CHOSEN_ANALYSIS})
    row: dict[str, JsonValue] = {
        "id": 1, "title": "Crème brûlée", "body": "Die Häuser", "code": "ABC", "secret": "hidden", "price": "19.90",
        "exact": "5.00",
        "at": "2024-02-29T12:00:00.123456Z", "doc": '{"n": {"x": 5}}', "span": "[1,5)",
    }  # fmt: skip
    beyond: dict[str, dict[str, JsonValue]] = {
        "price": {**row, "id": 2, "price": "NaN"},
        "at": {**row, "id": 3, "at": "infinity"},
    }
    outcome = sink.apply(batch(*(upsert(given, 1, of=CHOSEN) for given in (beyond["price"], row, beyond["at"]))))
    reasons = {rejection.event.key["id"]: rejection.reason for rejection in outcome.rejections}
    assert (outcome.applied, sorted(reasons)) == (1, [2, 3])  # type: ignore[type-var]
    assert "'price' of type scaled_float" in reasons[2]
    assert "'at' of type date_nanos" in reasons[3]
    for query in (
        {"match": {"title": "creme"}},
        {"term": {"title.keyword": "Crème brûlée"}},
        {"match": {"body.de": "haus"}},
        {"match": {"anything": "crème"}},
        {"match": {"anything": "häuser"}},
        {"term": {"code": "abc"}},
        {"range": {"price": {"gt": 19.89, "lt": 19.91}}},
        {"range": {"at": {"gt": "2024-02-29T12:00:00.123455Z", "lt": "2024-02-29T12:00:00.123457Z"}}},
        {"range": {"doc.n.x": {"gte": 5}}},
        {"term": {"span": "[1,5)"}},
    ):
        assert (query, ids_of_hits(client, sink, query)) == (query, [1])
    assert ids_of_hits(client, sink, {"term": {"secret": "hidden"}}) == []
    assert [(dict(stored.row), stored.tag) for stored in sink.scan(CHOSEN)] == [(row, tag(1))]
