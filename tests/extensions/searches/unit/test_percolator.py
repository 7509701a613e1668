"""extensions.searches.percolator: which indexes it removes, and how much it asks about at once.

Its answers are in tests/contract.
"""

from typing import Any

import pytest

from cdc.model.table import TableName
from extensions.searches.percolator import (
    Document,
    in_portions,
    newest_number,
    queries_index,
    remove_left_over,
    trial_index,
)
from extensions.searches.stored import Claim
from sinks.opensearch.client import OpenSearchClient
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings

ORDERS, OTHERS = TableName("public", "orders"), TableName("public", "others")
BEFORE, OURS, LATER = Claim(9, "ee"), Claim(10, "aa"), Claim(11, "0f")


def indexes(generation: int = 1) -> OpenSearchIndexes:
    return OpenSearchIndexes("shop", OpenSearchSettings(), generation)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The indexes that the server has."""
    names: set[str] = set()

    def call(_: OpenSearchClient, method: str, path: str, *__: Any, **___: Any) -> Any:
        if method == "DELETE":
            names.remove(path.removeprefix("/"))
        return {name: {"aliases": {}} for name in names}

    monkeypatch.setattr(OpenSearchClient, "call", call)
    return names


def test_an_index_of_a_table_is_none_of_queries(there: set[str]) -> None:
    of_tables = {indexes().index(TableName("lockstep_searches", name)) for name in ("orders", "orders.g1", "x_g1")}
    there |= of_tables
    assert newest_number(indexes()) == 0
    remove_left_over(indexes(), Claim(1, "aa"))
    assert there == of_tables


def test_what_is_left_over_of_lesser_claims_and_of_our_other_generations_is_removed(there: set[str]) -> None:
    ours = queries_index(indexes(2), ORDERS, OURS)
    later = queries_index(indexes(1), ORDERS, LATER)
    there |= {
        ours,
        later,
        queries_index(indexes(2), OTHERS, OURS),
        queries_index(indexes(1), ORDERS, OURS),
        queries_index(indexes(2), ORDERS, BEFORE),
        trial_index(indexes(2), ORDERS, BEFORE, "ab"),
        trial_index(indexes(2), ORDERS, None, "ab"),
    }
    remove_left_over(indexes(2), OURS, but=[ours])
    assert there == {ours, later}


def test_the_index_of_a_table_whose_schema_has_our_name_stays(there: set[str]) -> None:
    rows = {
        indexes(number).index(TableName("lockstep_searches", name))
        for number in (1, 2)
        for name in ("a", "1-a", "b.g1")
    }
    there |= rows
    remove_left_over(indexes(), LATER)
    assert there == rows
    assert newest_number(indexes()) == 0


def test_the_newest_number_is_that_of_any_index(there: set[str]) -> None:
    there |= {queries_index(indexes(), ORDERS, BEFORE), queries_index(indexes(3), OTHERS, LATER)}
    assert newest_number(indexes()) == 11


@pytest.mark.parametrize(
    ("sizes", "portions"),
    [
        ([], []),
        ([10] * 501, [500, 1]),
        ([3 * 1024 * 1024] * 3, [2, 1]),
        ([10, 90 * 1024 * 1024, 10], [2, 1]),
    ],
)
def test_documents_are_asked_about_in_portions_of_a_bounded_size(sizes: list[int], portions: list[int]) -> None:
    documents = ((b"", Document({}, "", b"x" * size)) for size in sizes)
    assert [len(portion) for portion in in_portions(documents)] == portions
