"""From commit to visible in each sink, as a user of the store asks, under traffic: all sinks in one driver, then one.

A probe is one committed row for which all stores are asked in parallel, each by its own thread. The store alone is
measured beside it: the same value is written to it directly, and asked for in the same way.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Self

import orjson
import psycopg
import redis
from opensearchpy import NotFoundError, OpenSearch

from bench.figures import Figure, Limit, Target
from bench.latency import percentiles_ms
from bench.rig import CACHE, SEARCH, STORES, WAREHOUSE, Child, Pipeline, Rig, Say, sink_name
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.model.errors import LockstepError
from sinks.opensearch.settings import OpenSearchSettings

PHASE = "visible"

_GAP_S = 0.2
"""The longest, random pause between two probes, so that they don't keep step with triggers and refreshes."""

_TIMEOUT_S = 60.0
_FIRST_TIMEOUT_S = 180.0
_CHECK_S = 0.5
ROWS = 500
PROBE_ROWS = 100
_TRAFFIC_ROWS = 4
"""In each of the other transactions."""

_MARK = 1_000_000
"""customer_id of probes; other rows stay below."""

_ALONE = {"p50": 50.0, "p99": 150.0}
"""Targets in milliseconds of the cache as the only sink."""


@dataclass(frozen=True, slots=True)
class Store:
    """A sink as a user sees it, and the same store without Lockstep."""

    sink: str
    question: str
    targets_ms: Mapping[str, float]
    every_s: float
    """Between two questions: they must not load the store, and bound a figure's error."""

    is_visible: Callable[[int, int], bool]
    """(row, mark): whether that row shows the mark."""
    write: Callable[[int, int], None]
    """Write such a row to the store directly, beside Lockstep's data."""
    is_written_visible: Callable[[int, int], bool]
    close: Callable[[], None]

    @property
    def name(self) -> str:
        return f"{self.sink} ({self.question})"


def in_redis(pipeline: Pipeline, *, view: str = "") -> Store:
    """The cache's own table, or this view in it, whose rows have the same key and the same ``customer_id``."""
    client: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
    prefix = view or pipeline.name
    table = f"views.{view}" if view else pipeline.table

    def visible(row: int, mark: int) -> bool:
        live = (client.get(f"{prefix}:live") or b"").decode()
        value = client.hget(f"{prefix}:{live}:{table}:{row}", "v")
        return value is not None and orjson.loads(value)["customer_id"] == mark

    def write(row: int, mark: int) -> None:
        client.hset(f"{prefix}-direct:{row}", "v", orjson.dumps({"id": row, "customer_id": mark}))

    def written(row: int, mark: int) -> bool:
        value = client.hget(f"{prefix}-direct:{row}", "v")
        return value is not None and orjson.loads(value)["customer_id"] == mark

    return Store(
        sink=f"{CACHE}: a view" if view else CACHE,
        question="HGET",
        targets_ms={"p50": 80, "p99": 250},
        every_s=0.015,
        is_visible=visible,
        write=write,
        is_written_visible=written,
        close=client.close,
    )


def _warehouse(pipeline: Pipeline) -> Store:
    connection = psycopg.connect(pipeline.endpoints.warehouse_dsn, autocommit=True)
    direct = f"{pipeline.name}_direct"
    connection.execute(f"create table {direct} (id bigint primary key, customer_id int)".encode())

    def shows(relation: str, row: int, mark: int) -> bool:
        try:
            row_now = connection.execute(
                f"select customer_id from {relation} where id = %s".encode(), (row,)
            ).fetchone()
        except psycopg.errors.UndefinedTable:
            return False  # apply is still starting
        return row_now is not None and row_now[0] == mark

    def write(row: int, mark: int) -> None:
        connection.execute(
            f"insert into {direct} values (%s, %s)"
            " on conflict (id) do update set customer_id = excluded.customer_id".encode(),
            (row, mark),
        )

    def close() -> None:
        connection.execute(f"drop table {direct}".encode())
        connection.close()

    view = f"{pipeline.name}.{pipeline.table.name}"
    return Store(
        sink=WAREHOUSE,
        question="select from the view",
        targets_ms={"p50": 100, "p99": 300},
        every_s=0.015,
        is_visible=lambda row, mark: shows(view, row, mark),
        write=write,
        is_written_visible=lambda row, mark: shows(direct, row, mark),
        close=close,
    )


def _opensearch(
    pipeline: Pipeline,
    *,
    question: str,
    targets_ms: Mapping[str, float],
    every_s: float,
    shows: Callable[[OpenSearch, str, int, int], bool],
) -> Store:
    client = OpenSearch(pipeline.endpoints.opensearch_url)
    settings = pipeline.config.sinks[sink_name(pipeline.name, SEARCH)]
    assert isinstance(settings, OpenSearchSettings)
    direct = f"{pipeline.name}-{question.split(maxsplit=1)[0].lower()}-direct"
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

    def write(row: int, mark: int) -> None:
        client.index(index=direct, id=str(row), body={"id": row, "customer_id": mark})

    def close() -> None:
        client.indices.delete(index=direct)
        client.close()

    alias = f"{pipeline.name}.{pipeline.table.schema}.{pipeline.table.name}"
    return Store(
        sink=SEARCH,
        question=question,
        targets_ms=targets_ms,
        every_s=every_s,
        is_visible=lambda row, mark: shows(client, alias, row, mark),
        write=write,
        is_written_visible=lambda row, mark: shows(client, direct, row, mark),
        close=close,
    )


def _acknowledged(pipeline: Pipeline) -> Store:
    """A GET by id sees unrefreshed writes."""

    def holds(client: OpenSearch, index: str, row: int, mark: int) -> bool:
        try:
            answer = client.get(index=index, id=str(row), params={"_source": "customer_id"})
        except NotFoundError:
            return False
        return bool(answer["_source"]["customer_id"] == mark)

    return _opensearch(pipeline, question="GET by id", targets_ms={"p50": 180, "p99": 500}, every_s=0.030, shows=holds)


def _searchable(pipeline: Pipeline) -> Store:
    def finds(client: OpenSearch, index: str, row: int, mark: int) -> bool:
        answer = client.search(
            index=index,
            body={"query": {"term": {"customer_id": mark}}},
            params={"ignore_unavailable": "true"},
        )
        return any(hit["_source"]["id"] == row for hit in answer["hits"]["hits"])

    return _opensearch(pipeline, question="search", targets_ms={"p50": 400, "p99": 1_000}, every_s=0.050, shows=finds)


class Traffic(threading.Thread):
    """Other transactions: updates of random rows at a steady rate."""

    def __init__(self, pipeline: Pipeline, rate: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self._pipeline = pipeline
        self._rate = rate
        self._finished = threading.Event()
        self._random = random.Random(1)
        self.transactions = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        statement = f"update {self._pipeline.name} set amount = amount + 1 where id = any(%s)".encode()
        try:
            with self._pipeline.sql() as connection:
                began = time.monotonic()
                while not self._finished.is_set():
                    connection.execute(statement, (self._random.sample(range(ROWS), _TRAFFIC_ROWS),))
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

    def check(self) -> None:
        """Raises LockstepError when it has failed."""
        if self.failure is not None:
            raise LockstepError(f"the background traffic failed: {self.failure}") from self.failure


class _Asking(threading.Event):
    """Asks stores until they show something; set it to give up."""

    def seconds_until(
        self, visible: Callable[[], bool], *, what: str, began: float, every_s: float, timeout_s: float = _TIMEOUT_S
    ) -> float:
        """The time since ``began`` (by ``time.monotonic``) at which the answer was there. Raises LockstepError."""
        while not visible():
            if self.is_set():
                raise LockstepError(f"no longer asked: {what}")
            if time.monotonic() - began > timeout_s:
                raise LockstepError(f"not within {timeout_s:.0f} s: {what}")
            self.wait(every_s)
        return time.monotonic() - began


class Probes:
    """They have their own rows, so that no other update changes a value before it is seen."""

    def __init__(self, pipeline: Pipeline, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._statement = (
            f"insert into {pipeline.name} (id, customer_id) values (%s, %s)"
            " on conflict (id) do update set customer_id = excluded.customer_id"
        ).encode()
        self._mark = _MARK
        self._chance = random.Random(2)

    def committed(
        self, stores: Sequence[Store], children: Sequence[Child], *, timeout_s: float = _TIMEOUT_S
    ) -> dict[str, float]:
        """Commit a row. Returns seconds until it is visible, by store name. Raises LockstepError when a child ends."""
        row, mark = self._next()
        self._connection.execute(self._statement, (row, mark))
        began = time.monotonic()
        asking = _Asking()

        def ask(store: Store) -> float:
            return asking.seconds_until(
                lambda: store.is_visible(row, mark),
                what=f"a committed row is visible in {store.name}",
                began=began,
                every_s=store.every_s,
                timeout_s=timeout_s,
            )

        return self._together(stores, ask, asking, children)

    def written(self, stores: Sequence[Store]) -> dict[str, float]:
        """Write a row to each store directly. Returns seconds until it is visible, by store name."""
        row, mark = self._next()
        asking = _Asking()

        def ask(store: Store) -> float:
            began = time.monotonic()
            store.write(row, mark)
            return asking.seconds_until(
                lambda: store.is_written_visible(row, mark),
                what=f"a value written to {store.name}",
                began=began,
                every_s=store.every_s,
            )

        return self._together(stores, ask, asking, [])

    def _next(self) -> tuple[int, int]:
        time.sleep(self._chance.random() * _GAP_S)
        self._mark += 1
        return ROWS + self._mark % PROBE_ROWS, self._mark

    def _together(
        self, stores: Sequence[Store], ask: Callable[[Store], float], asking: _Asking, children: Sequence[Child]
    ) -> dict[str, float]:
        with ThreadPoolExecutor(len(stores)) as pool:
            answers: dict[str, Future[float]] = {store.name: pool.submit(ask, store) for store in stores}
            try:
                while wait(answers.values(), timeout=_CHECK_S).not_done:
                    for child in children:
                        child.check()
            finally:
                asking.set()
        return {name: answer.result() for name, answer in answers.items()}


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """All sinks in one driver, then the cache alone. Returns figures and details."""
    rig.up()
    with rig.pipeline("sinks", sinks=STORES) as pipeline, pipeline.sql() as connection:
        pipeline.load(connection, first=0, rows=ROWS, per_transaction=ROWS)
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        probes = Probes(pipeline, connection)
        stores: list[Store] = []
        try:
            for opened in (in_redis, _warehouse, _acknowledged, _searchable):
                stores.append(opened(pipeline))
            targets = {store.name: store.targets_ms for store in stores}
            apply = pipeline.start_apply()
            all_sinks = Part(rig, sizes, say, pipeline, probes, stores, [capture, apply])
            figures, details = all_sinks.measure("", targets)
            pipeline.stop(apply)
            say("the cache alone")
            cache = stores[:1]
            apply = pipeline.start_apply(CACHE)
            alone = Part(rig, sizes, say, pipeline, probes, cache, [capture, apply])
            figures_alone, details_alone = alone.measure(" as the only sink", {cache[0].name: _ALONE})
        finally:
            for store in stores:
                store.close()
    return figures + figures_alone, {"all_sinks": details, "one_sink": details_alone}


@dataclass(frozen=True, slots=True)
class Part:
    rig: Rig
    sizes: Sizes
    say: Say
    pipeline: Pipeline
    probes: Probes
    stores: Sequence[Store]
    children: Sequence[Child]

    def measure(self, how: str, targets_ms: Mapping[str, Mapping[str, float]]) -> tuple[list[Figure], dict[str, Any]]:
        """Returns two figures for each store, and details. ``how`` is added to their names."""
        sizes, stores, probes = self.sizes, self.stores, self.probes
        probes.committed(stores, self.children, timeout_s=_FIRST_TIMEOUT_S)
        self.say(
            f"apply is running; warm-up: {sizes.sink_warm_s:.0f} s at {sizes.sink_rate} transactions/s"
            f" of {_TRAFFIC_ROWS} rows"
        )
        with Traffic(self.pipeline, sizes.sink_rate) as traffic:
            warm_until = time.monotonic() + sizes.sink_warm_s
            while time.monotonic() < warm_until:
                probes.committed(stores, self.children)
            self.say(f"measuring: {sizes.sink_probes} probes")
            cpu = CpuMeter(self.rig.server_pids | {child.name: child.process.pid for child in self.children})
            began, transactions_before = time.monotonic(), traffic.transactions
            waits = [probes.committed(stores, self.children) for _ in range(sizes.sink_probes)]
            took_s, used, transactions = (
                time.monotonic() - began,
                cpu.used(),
                traffic.transactions - transactions_before,
            )
            direct = [probes.written(stores) for _ in range(sizes.sink_probes)]
        traffic.check()
        for child in self.children:
            child.check()
        figures = []
        details: dict[str, Any] = {
            "probes": sizes.sink_probes,
            "background_rate": sizes.sink_rate,
            "background_rows": _TRAFFIC_ROWS,
            "achieved_rate": round(transactions / took_s, 1),
            "seconds": round(took_s, 1),
            "cpu_s": used,
            "peak_memory_mb": {child.name: round(child.memory.megabytes, 1) for child in self.children},
        }
        for store in stores:
            percentiles = percentiles_ms([wait[store.name] for wait in waits])
            alone = percentiles_ms([wait[store.name] for wait in direct])
            details[store.name] = {
                "poll_ms": store.every_s * 1000,
                "commit_to_visible_ms": percentiles,
                "write_to_visible_ms": alone,
            }
            self.say(f"{store.name}: p50 {percentiles['p50']:.0f} ms, p99 {percentiles['p99']:.0f} ms")
            figures += [
                Figure(
                    phase=PHASE,
                    name=f"{store.name}{how}, {name}",
                    value=percentiles[name],
                    unit="ms",
                    limit=Limit(value=alone[name], what="written to the store directly"),
                    target=Target(bound="at most", amount=targets_ms[store.name][name]),
                )
                for name in ("p50", "p99")
            ]
        return figures, details
