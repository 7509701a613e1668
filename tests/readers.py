"""Readers of a sink as applications are: through alias, pointer and views, and never content with an older row."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import orjson
import psycopg
import redis
import urllib3

from stack.stack import Endpoints

_READS_MIN = 100
"""With fewer, nothing was watched. An idle machine does ten times as many in a second or two."""

Read = Callable[[int], int | None]
"""The counter of a row, or None if the row doesn't exist."""

_PAUSE_S = 0.002


class Reader(threading.Thread):
    """Reads the counters of some rows in turn until it is stopped."""

    def __init__(self, name: str, read: Read, keys: range) -> None:
        super().__init__(daemon=True, name=name)
        self._read = read
        self._keys = keys
        self._stop_reading = threading.Event()
        self.reads = 0
        self.problems: list[str] = []

    def run(self) -> None:
        seen: dict[int, int] = {}
        while not self._stop_reading.is_set():
            for key in self._keys:
                began = time.monotonic()
                try:
                    counter = self._read(key)
                except Exception as error:
                    self.problems.append(f"{type(error).__name__}: {error}"[:500])
                    continue
                finally:
                    # Hundreds of reads a second, without taking a whole core from the writers.
                    time.sleep(max(_PAUSE_S, time.monotonic() - began))
                self.reads += 1
                if counter is None:
                    self.problems.append(f"row {key} is missing")
                elif counter < seen.get(key, 0):
                    self.problems.append(f"row {key} went from {seen[key]} back to {counter}")
                else:
                    seen[key] = counter

    def finish(self) -> None:
        self._stop_reading.set()
        self.join(300)


@contextmanager
def reading(reads: Mapping[str, AbstractContextManager[Read]], keys: range) -> Iterator[list[Reader]]:
    """Readers until the block ends; then nothing may have been wrong."""
    with ExitStack() as closing:
        readers = [Reader(name, closing.enter_context(read), keys) for name, read in reads.items()]
        for reader in readers:
            reader.start()
        try:
            yield readers
        finally:
            for reader in readers:
                reader.finish()
    for reader in readers:
        assert reader.problems == [], f"{reader.name}: {reader.problems[:10]} in {reader.reads} reads"
        assert reader.reads > _READS_MIN, f"{reader.name} read {reader.reads} times"


@contextmanager
def search_reader(endpoints: Endpoints, alias: str, column: str) -> Iterator[Read]:
    """By searching, which shows only refreshed documents."""
    pool = urllib3.PoolManager()

    def read(key: int) -> int | None:
        answer = pool.request(
            "POST",
            f"{endpoints.opensearch_url}/{alias}/_search",
            body=orjson.dumps({"query": {"ids": {"values": [str(key)]}}}),
            headers={"content-type": "application/json"},
        )
        assert answer.status == 200, answer.data[:300]
        hits = orjson.loads(answer.data)["hits"]["hits"]
        return int(hits[0]["_source"][column]) if hits else None

    yield read
    pool.clear()


@contextmanager
def cache_reader(endpoints: Endpoints, prefix: str, table: str, column: str) -> Iterator[Read]:
    """Pointer, then row."""
    client: Any = redis.Redis.from_url(endpoints.redis_url)

    def read(key: int) -> int | None:
        live = client.get(f"{prefix}:live").decode()
        row = client.hget(f"{prefix}:{live}:{table}:{key}", "v")
        return None if row is None else int(orjson.loads(row)[column])

    yield read
    client.close()


@contextmanager
def warehouse_reader(endpoints: Endpoints, view: str, column: str) -> Iterator[Read]:
    """Through the view, prepared once, as drivers do."""
    connection = psycopg.connect(endpoints.warehouse_dsn, autocommit=True)

    def read(key: int) -> int | None:
        row = connection.execute(f"select {column} from {view} where id = %s".encode(), (key,), prepare=True).fetchone()
        return None if row is None else int(row[0])

    yield read
    connection.close()
