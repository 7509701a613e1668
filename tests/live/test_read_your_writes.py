"""Waits for a token while rows are written: after a wait, the row is found by key and by search."""

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
import sqlalchemy
from pyspark.sql import SparkSession
from sqlalchemy.orm import Session

from cdc.model.errors import LockstepError
from cdc.model.lsn import parse_lsn
from cdc.model.table import TableName
from lockstep.client.client import Client
from lockstep.client.token import commit_token
from sinks.opensearch.names import alias_name
from stack.stack import Endpoints
from tests.pipeline import Pipeline
from tests.readers import cache_reader, search_reader

pytestmark = [pytest.mark.live, pytest.mark.busy]

_WAITERS = 50
_TIMEOUT_S = 120.0


class Running:
    """A pipeline with a search index and a cache, and readers of both as applications are."""

    def __init__(self, endpoints: Endpoints, directory: Any, spark: SparkSession) -> None:
        self.pipeline = Pipeline(endpoints, directory, f"wait{os.getpid()}", sinks=True)
        self.name = self.pipeline.name
        self.cache, self.search = f"{self.name}_cache", f"{self.name}_search"
        self.capture = self.pipeline.start_capture()
        self.job = self.pipeline.apply(spark, self.cache, self.search)
        self.pipeline.wait_streaming(self.capture)
        self._numbers = itertools.count(1)
        self.endpoints = endpoints

    def write(self, connection: psycopg.Connection[Any]) -> int:
        """A row of a new key, committed; its balance is the key as well."""
        key = next(self._numbers)
        connection.execute(f"insert into {self.name}.account (id, balance) values (%s, %s)", (key, key))
        connection.commit()
        return key


@pytest.fixture(scope="module")
def running(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Running]:
    made = Running(endpoints, tmp_path_factory.mktemp("wait"), spark)
    yield made
    made.pipeline.close()


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Client]:
    with Client.direct(running.pipeline.path) as client:
        yield client


def _read_after_waits(running: Running, client: Client, count: int) -> None:
    """Write this often, by many at a time; wait for each and read at once, while others write without a pause."""
    numbers, stop = itertools.count(), threading.Event()

    def load() -> None:
        with running.pipeline.sql() as connection:
            while not stop.is_set():
                connection.execute(
                    f"insert into {running.name}.entry select %s, i, 'x' from generate_series(1, 20) i",
                    (next(running._numbers),),
                )
                stop.wait(0.02)

    def waiter(_: int) -> int:
        done = 0
        with ExitStack() as closing_:
            connection = closing_.enter_context(closing(psycopg.connect(running.endpoints.source_dsn)))
            table = f"{running.name}.account"
            readers = {
                running.cache: closing_.enter_context(cache_reader(running.endpoints, running.cache, table, "balance")),
                running.search: closing_.enter_context(
                    search_reader(running.endpoints, alias_name(running.search, TableName.parse(table)), "balance")
                ),
            }
            while (number := next(numbers)) < count:
                sink = running.search if number % 4 == 0 else running.cache
                key = running.write(connection)
                assert client.wait(sink, commit_token(connection), _TIMEOUT_S), f"row {key} isn't in {sink} in time"
                assert readers[sink](key) == key, f"told too early: row {key} isn't in {sink}"
                done += 1
        return done

    writing = threading.Thread(target=load)
    writing.start()
    try:
        with ThreadPoolExecutor(_WAITERS) as pool:
            assert sum(pool.map(waiter, range(_WAITERS))) == count
    finally:
        stop.set()
        writing.join()


def test_what_is_waited_for_is_read_right_after(running: Running, client: Client) -> None:
    _read_after_waits(running, client, 500)


@pytest.mark.soak
def test_ten_thousand_waits_are_never_early(running: Running, client: Client) -> None:
    _read_after_waits(running, client, 10_000)


@pytest.mark.soak
def test_a_token_is_only_given_after_the_commit(running: Running, endpoints: Endpoints) -> None:
    url = sqlalchemy.make_url("postgresql+psycopg://").update_query_dict({})
    engine = sqlalchemy.create_engine(url, creator=lambda: psycopg.connect(endpoints.source_dsn))
    with psycopg.connect(endpoints.source_dsn) as connection:
        connection.execute("select 1")
        with pytest.raises(LockstepError, match="in a transaction"):
            commit_token(connection)
        connection.commit()
        first = commit_token(connection)
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        running.write(connection)
        assert parse_lsn(commit_token(connection)) > parse_lsn(first)
    with engine.connect() as connection:
        with connection.begin(), pytest.raises(LockstepError, match="in a transaction"):
            commit_token(connection)
        assert parse_lsn(commit_token(connection)) > parse_lsn(first)
        assert not connection.in_transaction()
    with Session(engine) as session:
        session.execute(sqlalchemy.text("select 1"))
        with pytest.raises(LockstepError, match="in a transaction"):
            commit_token(session)
        session.commit()
        assert parse_lsn(commit_token(session)) > parse_lsn(first)
        assert not session.in_transaction()
    assert parse_lsn(commit_token(engine)) > parse_lsn(first)
    engine.dispose()
