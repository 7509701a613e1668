"""What several stores' contract tests start from: a name that nobody else uses, and the stores' own clients."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opensearchpy import OpenSearch

from sinks.delta import generations as generations_of_lakes
from sinks.warehouse import generations as generations_of_warehouses
from tests.contract.destinations import Destination, opened_destination, real
from tests.contract.typed_stores import WAREHOUSES, Store, opened_store


@pytest.fixture
def name() -> str:
    """A sink's name, so that tests share servers without sharing data."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(endpoints: Any) -> Iterator[OpenSearch]:
    """OpenSearch's; tests of Redis have their own."""
    client = OpenSearch(hosts=[endpoints.opensearch_url])
    yield client
    client.close()


@pytest.fixture
def warehouse(endpoints: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection to it, beside the sink's own."""
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
        yield connection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind of sink runs all tests except those of capabilities that it lacks; views run those of writers, too."""
    if "destination" in metafunc.fixturenames:
        views = metafunc.definition.get_closest_marker("writers") is not None
        needs = {mark.args[0] for mark in metafunc.definition.iter_markers("needs")}
        kinds = [*(() if needs else ("memory",)), *real(views=views, needs=needs)]
        metafunc.parametrize("destination", kinds, indirect=True)


@pytest.fixture
def destination(request: pytest.FixtureRequest) -> Iterator[Destination]:
    """One of each kind. Closes and removes what it has opened."""
    made = opened_destination(request.param, lambda: request.getfixturevalue("endpoints"))
    yield made
    made.close()


@pytest.fixture(params=WAREHOUSES)
def store(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> Iterator[Store]:
    """Both warehouses, unless a test chooses other kinds by ``indirect``. Closes what it has opened."""
    made = opened_store(request.param, name, tmp_path, lambda: request.getfixturevalue("endpoints"))
    with made.closing:
        yield made


@pytest.fixture
def at_each_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Purges and trims are due whenever progress is stored."""
    for each in ("PURGE_S", "IDLE_S", "PASS_S"):
        monkeypatch.setattr(generations_of_warehouses, each, 0.0)
    monkeypatch.setattr(generations_of_lakes, "PURGE_S", 0.0)
