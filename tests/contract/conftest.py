"""What several stores' contract tests start from: a name that nobody else uses, and the stores' own clients."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from opensearchpy import OpenSearch

from tests.contract.destinations import Destination, opened_destination, real


@pytest.fixture
def name() -> str:
    """A sink's, so that tests share servers without sharing data."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(endpoints: Any) -> Iterator[OpenSearch]:
    """OpenSearch's; tests of Redis have one of theirs."""
    client = OpenSearch(hosts=[endpoints.opensearch_url])
    yield client
    client.close()


@pytest.fixture
def warehouse(endpoints: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection to it, beside the sink's own."""
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
        yield connection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind of sink runs all tests, and views those that depend on who writes."""
    if "destination" in metafunc.fixturenames:
        views = metafunc.definition.get_closest_marker("writers") is not None
        metafunc.parametrize("destination", ["memory", *real(views=views)], indirect=True)


@pytest.fixture
def destination(request: pytest.FixtureRequest) -> Iterator[Destination]:
    """One of each kind; what it has opened is closed and removed."""
    made = opened_destination(request.param, lambda: request.getfixturevalue("endpoints"))
    yield made
    made.close()
