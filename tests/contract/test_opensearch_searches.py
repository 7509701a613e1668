"""Standing searches in a real OpenSearch: a document that is asked about matches what a search would find."""

from typing import Any

import pytest

from sinks.opensearch.search_queries import query_problems
from tests.contract.searched import QUERIES, answers

pytestmark = pytest.mark.live


def test_a_document_matches_the_queries_that_find_it(endpoints: Any, name: str) -> None:
    found, asked = answers(name, {"urls": (endpoints.opensearch_url,), "replicas": 0})
    assert found == asked == {name: ids for name, (_, ids) in QUERIES.items()}


def test_all_of_these_queries_can_stand() -> None:
    assert [name for name, (query, _) in QUERIES.items() if query_problems(query)] == []
