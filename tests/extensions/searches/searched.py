"""Documents of many types, and queries that each find some of them: by a search, and when documents are asked about."""

from typing import Any, Final

import orjson

from cdc.model.table import TableName
from extensions.searches.percolator import Percolator, queries_index
from extensions.searches.stored import Claim
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from tests.builders import batch, column, table, upsert
from tests.contract.beside import OpenSearchParts

THINGS: Final = table(
    column("id", "int8"),
    column("name"),
    column("kind", type_name="mood"),
    column("price", "numeric"),
    column("sold", "bool"),
    column("at", "timestamptz"),
    column("doc", "jsonb"),
    column("tags", is_array=True),
    column("place"),
    column("said"),
    name=TableName("public", "things"),
)
SETTINGS: Final[dict[str, Any]] = {
    "fields": {
        "public.things.place": {"type": "geo_point"},
        "public.things.said": {"type": "text", "analyzer": "folded", "copy_to": "all"},
        "public.things.name": {"copy_to": ["all"]},
    },
    "index_settings": {"analysis": {"analyzer": {"folded": {"tokenizer": "standard", "filter": ["asciifolding"]}}}},
}
"""Of the sink: an analysis of its own, and fields that are no columns."""

_NOTHING: Final = {each.name: None for each in THINGS.columns}
ROWS: Final[tuple[dict[str, Any], ...]] = (
    {
        **_NOTHING,
        "id": 1,
        "name": "Red shoe",
        "kind": "good",
        "price": "9.50",
        "sold": False,
        "at": "2026-01-02T03:04:05Z",
    },
    {
        **_NOTHING,
        "id": 2,
        "name": "blue Shoe",
        "price": "10.01",
        "sold": True,
        "doc": '{"a": {"b": "x"}}',
        "tags": ["p", "q"],
    },
    {**_NOTHING, "id": 3, "place": "46.9,7.4", "said": "café", "tags": []},
    {**_NOTHING, "id": 4, "price": "NaN", "doc": "[1]", "at": "infinity"},
)
QUERIES: Final[dict[str, tuple[dict[str, Any], set[int]]]] = {
    "all": ({"match_all": {}}, {1, 2, 3, 4}),
    "none": ({"match_none": {}}, set()),
    "shoe": ({"match": {"name": "shoe"}}, {1, 2}),
    "phrase": ({"match_phrase": {"name": "red shoe"}}, {1}),
    "exactly": ({"term": {"name.keyword": "blue Shoe"}}, {2}),
    "begins": ({"prefix": {"name": "sho"}}, {1, 2}),
    "like": ({"wildcard": {"name.keyword": "*Shoe"}}, {2}),
    "typo": ({"fuzzy": {"name": {"value": "shoo", "rewrite": "constant_score"}}}, {1, 2}),
    "good": ({"term": {"kind": "good"}}, {1}),
    "cheap": ({"range": {"price": {"lt": 10}}}, {1}),
    "price": ({"term": {"price.exact": "10.01"}}, {2}),
    "unsold": ({"term": {"sold": False}}, {1}),
    "this year": ({"range": {"at": {"gte": "2026-01-01", "lt": "2027-01-01"}}}, {1}),
    "x": ({"term": {"doc.a.b": "x"}}, {2}),
    "q": ({"terms": {"tags": ["q", "z"]}}, {2}),
    "untagged": ({"bool": {"must_not": [{"exists": {"field": "tags"}}]}}, {1, 3, 4}),
    "near": ({"geo_distance": {"distance": "9km", "place": {"lat": 46.95, "lon": 7.45}}}, {3}),
    "folded": ({"match": {"said": "cafe"}}, {3}),
    "anywhere": ({"multi_match": {"query": "cafe red", "fields": ["all", "said^2"]}}, {1, 3}),
    "simple": ({"simple_query_string": {"query": "shoe +red", "fields": ["name"]}}, {1}),
    "either": ({"bool": {"should": [{"term": {"id": 3}}, {"range": {"id": {"gt": 3}}}]}}, {3, 4}),
    "best": (
        {"dis_max": {"queries": [{"term": {"id": 1}}, {"constant_score": {"filter": {"term": {"id": 2}}}}]}},
        {1, 2},
    ),
    "tag": ({"range": {"_tag": {"gte": "0"}}}, {1, 2, 3, 4}),
}
"""By name: the query, and which rows it finds."""


def answers(prefix: str, settings: dict[str, Any]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """What a search finds by each query, and which documents match it when they are asked about."""
    sink = OpenSearchParts(OpenSearchIndexes(prefix, OpenSearchSettings(**settings, **SETTINGS), 1))
    indexes = sink.indexes
    try:
        sink.prepare([THINGS])
        outcome = sink.apply(batch(*(upsert(row, number, of=THINGS) for number, row in enumerate(ROWS, start=1))))
        assert not outcome.rejections
        percolator = Percolator(indexes, THINGS.name, queries_index(indexes, THINGS.name, Claim(1, "a")))
        percolator.create()
        for name, (query, _) in QUERIES.items():
            percolator.store(name.replace(" ", "_"), query)
        documents = dict(percolator.documents([percolator.identity({"id": row["id"]}) for row in ROWS]))
        matching = percolator.matches(list(documents.values()))
        asked: dict[str, set[int]] = {name: set() for name in QUERIES}
        for document, names in zip(documents.values(), matching, strict=True):
            for name in names:
                asked[name.replace("_", " ")].add(int(str(document.key["id"])))
        found = {
            name: {int(orjson.loads(identity)["_id"]) for identity in percolator.found(name.replace(" ", "_"))}
            for name in QUERIES
        }
        return found, asked
    finally:
        indexes.client.call("DELETE", f"/{prefix}.*")
        sink.close()
