"""Standing searches in a real OpenSearch: a document that is asked about matches what a search would find."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import orjson
import pytest

from extensions.searches.percolator import Percolator, queries_index
from extensions.searches.search_queries import query_problems
from extensions.searches.stored import Claim
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import OpenSearchSink
from stack.stack import Endpoints
from tests.builders import batch, upsert
from tests.extensions.searches.searched import QUERIES, SETTINGS, THINGS, answers
from tests.opensearch_2 import opensearch_2

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def words(endpoints: Endpoints) -> Iterator[OpenSearchIndexes]:
    """An index with a document for each of WORDS."""
    prefix = f"t{uuid4().hex[:12]}"
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, **SETTINGS)
    indexes = OpenSearchIndexes(prefix, settings, 1)
    sink = OpenSearchSink(indexes)
    sink.prepare([THINGS])
    nothing = {each.name: None for each in THINGS.columns}
    rows = [{**nothing, "id": number, "name": word} for number, word in enumerate(WORDS)]
    rows[0]["said"] = " ".join(f"wort{number}" for number in range(130))
    assert not sink.apply(batch(*(upsert(row, number, of=THINGS) for number, row in enumerate(rows, 1)))).rejections
    indexes.refresh(indexes.index(THINGS.name))
    yield indexes
    indexes.client.call("DELETE", f"/{prefix}.*")
    sink.close()


def test_a_document_matches_the_queries_that_find_it(endpoints: Any) -> None:
    found, asked = answers(f"t{uuid4().hex[:12]}", {"urls": (endpoints.opensearch_url,), "replicas": 0})
    assert found == asked == {name: ids for name, (_, ids) in QUERIES.items()}


def test_all_of_these_queries_can_stand() -> None:
    assert [name for name, (query, _) in QUERIES.items() if query_problems(query)] == []


WORDS = [f"rus{first}{second}" for first in "abcdefghij" for second in "tuvwxyz"]


@pytest.mark.parametrize(
    "query",
    [
        {"fuzzy": {"name": {"value": "rust", "fuzziness": 2, "rewrite": "constant_score"}}},
        {"match": {"name": {"query": "rust", "fuzziness": 2, "fuzzy_rewrite": "constant_score"}}},
        {"match_bool_prefix": {"name": {"query": "rust ru", "fuzziness": 2, "fuzzy_rewrite": "constant_score"}}},
        {"multi_match": {"query": "rust", "fields": ["name"], "fuzziness": 2, "fuzzy_rewrite": "constant_score"}},
        {"multi_match": {"query": "ru", "fields": ["name"], "type": "bool_prefix"}},
        {"simple_query_string": {"query": "ru*", "fields": ["name"]}},
        {"prefix": {"name": "ru"}},
        {"wildcard": {"name": {"value": "*u*", "rewrite": "constant_score"}}},
        {"regexp": {"name": "rus.*"}},
        {"match_bool_prefix": {"name": "ru"}},
    ],
)
@pytest.mark.soak
def test_a_query_finds_documents_by_however_many_words(words: OpenSearchIndexes, query: dict[str, Any]) -> None:
    assert query_problems(query) == []
    percolator = Percolator(words, THINGS.name, queries_index(words, THINGS.name, Claim(1, "a")))
    percolator.create()
    percolator.store("it", query)
    found = {orjson.loads(identity)["_id"] for identity in percolator.found("it")}
    assert len(found) == len(WORDS)
    documents = [document for _, document in percolator.documents([percolator.identity({"id": 0})])]
    assert percolator.matches(documents) == [{"it"}]


@pytest.mark.parametrize(
    "query",
    [
        {"fuzzy": {"name": {"value": "rust", "fuzziness": 2}}},
        {"match_phrase_prefix": {"name": "ru"}},
        {"simple_query_string": {"query": "rust~2", "fields": ["name"]}},
    ],
)
@pytest.mark.soak
def test_what_is_refused_does_not_find_all(words: OpenSearchIndexes, query: dict[str, Any]) -> None:
    assert query_problems(query) != []
    answer = words.client.call("POST", f"/{words.index(THINGS.name)}/_search", {"size": 0, "query": query})
    assert answer["hits"]["total"]["value"] == 50


@pytest.mark.soak
def test_a_document_matches_them_in_the_oldest_supported_version_too() -> None:
    with opensearch_2() as node:
        found, asked = answers(f"t{uuid4().hex[:12]}", {"urls": (node,), "replicas": 0})
    assert found == asked
    assert asked["cheap"] == QUERIES["cheap"][1]
