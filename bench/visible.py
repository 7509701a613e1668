"""From commit to visible in each sink, asked as a user of the store asks, with all sinks in one driver and other traffic.

Beside it the store alone: the same value written to it directly, and asked for in the same way.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson
import psycopg
import redis
from opensearchpy import OpenSearch

from bench.figures import Figure, Limit, Target
from bench.latency import percentiles_ms
from bench.rig import CACHE, SEARCH, WAREHOUSE, Pipeline, Rig, Say, sink_name
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.model.errors import LockstepError
from sinks.opensearch.settings import OpenSearchSettings

PHASE = "visible"

_POLL_S = 0.015
"""Between two questions to a store: they must not load it, and bound what a figure may be off by."""

_GAP_S = 0.2
"""Between two probes, at most, by chance: so that they don't keep step with triggers and refreshes."""

_TIMEOUT_S = 60.0
_FIRST_TIMEOUT_S = 180.0
_ROWS = 500
_MARK = 1_000_000
"""customer_id of probes; other rows stay below."""


@dataclass(frozen=True, slots=True)
class Store:
    """A sink as a user sees it, and the same store without Lockstep."""

    sink: str
    question: str
    target_ms: float
    is_visible: Callable[[int, int], bool]
    """(row, mark): whether that row shows the mark."""
    write: Callable[[int, int], None]
    """Write such a row to the store itself, past Lockstep, beside its data."""
    is_written_visible: Callable[[int, int], bool]
    close: Callable[[], None]


def _redis(pipeline: Pipeline) -> Store:
    client: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
    prefix = pipeline.name

    def visible(row: int, mark: int) -> bool:
        live = (client.get(f"{prefix}:live") or b"").decode()
        value = client.hget(f"{prefix}:{live}:{pipeline.table}:{row}", "v")
        return value is not None and orjson.loads(value)["customer_id"] == mark

    def write(row: int, mark: int) -> None:
        client.hset(f"{prefix}-direct:{row}", "v", orjson.dumps({"id": row, "customer_id": mark}))

    def written(row: int, mark: int) -> bool:
        value = client.hget(f"{prefix}-direct:{row}", "v")
        return value is not None and orjson.loads(value)["customer_id"] == mark

    return Store(CACHE, "HGET", 1_000, visible, write, written, client.close)


def _warehouse(pipeline: Pipeline) -> Store:
    connection = psycopg.connect(pipeline.endpoints.warehouse_dsn, autocommit=True)
    direct = f"{pipeline.name}_direct"
    connection.execute(f"create table {direct} (id bigint primary key, customer_id int)".encode())

    def shows(relation: str, row: int, mark: int) -> bool:
        try:
            found = connection.execute(f"select customer_id from {relation} where id = %s".encode(), (row,)).fetchone()
        except psycopg.errors.UndefinedTable:
            return False  # apply is still starting
        return found is not None and found[0] == mark

    def write(row: int, mark: int) -> None:
        connection.execute(
            f"insert into {direct} values (%s, %s) on conflict (id) do update set customer_id = excluded.customer_id".encode(),
            (row, mark),
        )

    def close() -> None:
        connection.execute(f"drop table {direct}".encode())
        connection.close()

    view = f"{pipeline.name}.{pipeline.table.name}"
    return Store(
        WAREHOUSE,
        "select from the view",
        1_000,
        lambda row, mark: shows(view, row, mark),
        write,
        lambda row, mark: shows(direct, row, mark),
        close,
    )


def _opensearch(pipeline: Pipeline) -> Store:
    client = OpenSearch(pipeline.endpoints.opensearch_url)
    settings = pipeline.config.sinks[sink_name(pipeline.name, SEARCH)]
    assert isinstance(settings, OpenSearchSettings)
    direct = f"{pipeline.name}-direct"
    client.indices.create(
        index=direct,
        body={
            "settings": {
                "number_of_replicas": 0,
                "refresh_interval": f"{settings.refresh_interval_ms}ms",
            },
            "mappings": {"properties": {"id": {"type": "long"}, "customer_id": {"type": "integer"}}},
        },
    )

    def finds(index: str, row: int, mark: int) -> bool:
        answer = client.search(
            index=index,
            body={"query": {"term": {"customer_id": mark}}},
            params={"ignore_unavailable": "true"},
        )
        return any(hit["_source"]["id"] == row for hit in answer["hits"]["hits"])

    def write(row: int, mark: int) -> None:
        client.index(index=direct, id=str(row), body={"id": row, "customer_id": mark})

    def close() -> None:
        client.indices.delete(index=direct)
        client.close()

    alias = f"{pipeline.name}.{pipeline.table.schema}.{pipeline.table.name}"
    return Store(
        SEARCH,
        "search",
        2_000,
        lambda row, mark: finds(alias, row, mark),
        write,
        lambda row, mark: finds(direct, row, mark),
        close,
    )


class _Traffic(threading.Thread):
    """Other people's transactions: updates of random rows at a steady rate."""

    def __init__(self, pipeline: Pipeline, rate: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self._pipeline = pipeline
        self._rate = rate
        self._finished = threading.Event()
        self._random = random.Random(1)
        self.transactions = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        statement = f"update {self._pipeline.name} set amount = amount + 1 where id = %s".encode()
        try:
            with self._pipeline.sql() as connection:
                began = time.monotonic()
                while not self._finished.is_set():
                    connection.execute(statement, (self._random.randrange(_ROWS),))
                    self.transactions += 1
                    self._finished.wait(max(0.0, began + self.transactions / self._rate - time.monotonic()))
        except psycopg.Error as error:
            self.failure = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self.join(10)


def seconds_until(visible: Callable[[], bool], *, what: str, since: float, timeout_s: float = _TIMEOUT_S) -> float:
    """Ask until it is so; returns the time since ``since`` (of ``time.monotonic``) at which the answer was there."""
    while not visible():
        if time.monotonic() - since > timeout_s:
            raise LockstepError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - since


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details."""
    rig.up()
    with rig.pipeline("sinks", sinks=True) as pipeline, pipeline.sql() as connection:
        pipeline.load(connection, first=0, rows=_ROWS, per_transaction=_ROWS)
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        apply = pipeline.start_apply()
        stores: list[Store] = []
        try:
            stores += (_redis(pipeline), _warehouse(pipeline), _opensearch(pipeline))
            return _measure(rig, sizes, say, pipeline, connection, stores, [capture, apply])
        finally:
            for store in stores:
                store.close()


def _measure(
    rig: Rig,
    sizes: Sizes,
    say: Say,
    pipeline: Pipeline,
    connection: psycopg.Connection[Any],
    stores: list[Store],
    children: list[Any],
) -> tuple[list[Figure], dict[str, Any]]:
    mark = _MARK
    chance = random.Random(2)

    def probe(store: Store, timeout_s: float = _TIMEOUT_S) -> float:
        nonlocal mark
        mark += 1
        row, wanted = _ROWS + mark % 100, mark
        # Rows of their own, so that no other update changes the value before it is seen.
        connection.execute(
            f"insert into {pipeline.name} (id, customer_id) values (%s, %s)"
            " on conflict (id) do update set customer_id = excluded.customer_id".encode(),
            (row, wanted),
        )
        committed = time.monotonic()
        took = seconds_until(
            lambda: _checked(children, store.is_visible(row, wanted)),
            what=f"a committed row is visible in {store.sink}",
            since=committed,
            timeout_s=timeout_s,
        )
        time.sleep(chance.random() * _GAP_S)
        return took

    def probe_directly(store: Store) -> float:
        nonlocal mark
        mark += 1
        row, wanted = _ROWS + mark % 100, mark
        began = time.monotonic()
        store.write(row, wanted)
        took = seconds_until(
            lambda: store.is_written_visible(row, wanted), what=f"a value written to {store.sink}", since=began
        )
        time.sleep(chance.random() * _GAP_S)
        return took

    for store in stores:
        probe(store, _FIRST_TIMEOUT_S)
    say(f"all sinks apply; warm-up: {sizes.sink_warm_s:.0f} s at {sizes.sink_rate} transactions/s")
    with _Traffic(pipeline, sizes.sink_rate) as traffic:
        warm_until = time.monotonic() + sizes.sink_warm_s
        while time.monotonic() < warm_until:
            for store in stores:
                probe(store)
        say(f"measuring: {sizes.sink_probes} probes of each sink")
        cpu = CpuMeter(rig.server_pids | {child.name: child.process.pid for child in children})
        began = time.monotonic()
        waits: dict[str, list[float]] = {store.sink: [] for store in stores}
        direct: dict[str, list[float]] = {store.sink: [] for store in stores}
        for _ in range(sizes.sink_probes):
            for store in stores:
                waits[store.sink].append(probe(store))
        took_s, used = time.monotonic() - began, cpu.used()
        for _ in range(sizes.sink_probes):
            for store in stores:
                direct[store.sink].append(probe_directly(store))
    if traffic.failure is not None:
        raise LockstepError(f"the background traffic failed: {traffic.failure}") from traffic.failure

    figures = []
    details: dict[str, Any] = {
        "probes": sizes.sink_probes,
        "background_rate": sizes.sink_rate,
        "background_transactions": traffic.transactions,
        "seconds": round(took_s, 1),
        "cpu_s": used,
        "peak_memory_mb": {child.name: round(child.memory.megabytes, 1) for child in children},
        "poll_ms": _POLL_S * 1000,
    }
    for store in stores:
        found, alone = percentiles_ms(waits[store.sink]), percentiles_ms(direct[store.sink])
        details[store.sink] = {"commit_to_visible_ms": found, "write_to_visible_ms": alone}
        say(f"{store.sink}: p50 {found['p50']:.0f} ms, p99 {found['p99']:.0f} ms")
        figures += [
            Figure(
                phase=PHASE,
                name=f"{store.sink} ({store.question}), {name}",
                value=found[name],
                unit="ms",
                limit=Limit(value=alone[name], what="written to the store directly"),
                target=Target(bound="at most", amount=store.target_ms),
            )
            for name in ("p50", "p99")
        ]
    return figures, details


def _checked(children: list[Any], visible: bool) -> bool:
    if not visible:
        for child in children:
            child.check()
    return visible
