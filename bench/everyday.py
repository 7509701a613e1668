"""The cost of everyday traffic: small transactions at a steady rate into a cache, a warehouse and a search engine.

Each transaction inserts a row and updates three. Processor time and memory are those of all processes except the one
that writes and asks. Beside it, in the same run, is Debezium in Kafka Connect with `bench.glue`, if its jars can be
fetched. Ours is measured first, so the glue has the warmer servers. In the end all rows of all stores are compared.
"""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil
import psycopg
import redis
from opensearchpy import OpenSearch, TransportError
from opensearchpy.helpers import scan

from bench.debezium import Connect
from bench.everyday_figures import GLUE, GLUE_PROCESSES, OUR_PROCESSES, OURS, Cost, Side, figures_of, report_of
from bench.figures import Figure
from bench.rig import STORES, Child, Pipeline, Rig, Say, wait_until
from bench.sizes import Sizes
from bench.usage import Use, family, use_of
from cdc.model.errors import LockstepError
from stack import jars
from stack.errors import StackError

ROWS = 2_000
"""They exist from the beginning, and are updated at random."""

_UPDATES = 3
_RATE_OF_A_WRITER = 100
_SAMPLE_GAP_S = (0.5, 1.5)
_POLL_S = 0.015
_SEARCH_POLL_S = 0.1
"""Each question is a search: more of them would load the store. Times are too long by half of this."""

_FIRST_ROW_S = 300.0
_SEEN_S = 60.0
_EQUAL_S = 300.0
_OPENSEARCH = "opensearch"
_NO_SHARD = 503

Processes = Mapping[str, Sequence[psutil.Process]]
"""By group."""


class Commits:
    """The newest committed row. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = (0, 0.0)
        self.count = 0

    def put(self, row: int) -> None:
        with self._changed:
            self._last = row, time.monotonic()
            self.count += 1
            self._changed.notify_all()

    def next(self, timeout_s: float) -> tuple[int, float] | None:
        """Wait for the next one. Returns its row, and its commit's end by ``time.monotonic``; None if there is none."""
        with self._changed:
            before = self.count
            return self._last if self._changed.wait_for(lambda: self.count > before, timeout_s) else None


class _Thread(threading.Thread):
    """Works until ``finish``, which raises what it raised."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._finished = threading.Event()
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            self._work(self._finished)
        except Exception as error:
            self._failure = error

    def finish(self) -> None:
        """Raises LockstepError when it has failed."""
        self._finished.set()
        self.join(2 * _SEEN_S)
        if self._failure is not None:
            raise LockstepError(f"{self.name} failed: {self._failure}") from self._failure


@contextlib.contextmanager
def _beside(threads: Sequence[_Thread]) -> Iterator[None]:
    """Run threads during the block. Raises LockstepError when one has failed."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.finish()


class Writers:
    """Transactions at a steady rate. Each rate continues with the ids after the former one's."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._next_row = ROWS
        self._lock = threading.Lock()
        self.commits = Commits()

    def threads(self, rate: int) -> list[_Thread]:
        """Not started. As many connections as the rate needs, since each waits for its durable commits."""
        count = -(-rate // _RATE_OF_A_WRITER)
        return [_Thread(f"writer {k}", partial(self._write, rate / count, k)) for k in range(count)]

    def _row(self) -> int:
        with self._lock:
            self._next_row += 1
            return self._next_row

    def _write(self, rate: float, number: int, finished: threading.Event) -> None:
        update = f"update {self._pipeline.name} set customer_id = %s, amount = amount + 1 where id = %s".encode()
        chance = random.Random(number)
        with self._pipeline.sql() as connection:
            began, written = time.monotonic(), 0
            while not finished.is_set():
                row = self._row()
                with connection.transaction():
                    self._pipeline.insert_rows(connection, first=row, rows=1)
                    # In one order, so that no two transactions deadlock.
                    for updated in sorted(chance.sample(range(ROWS), _UPDATES)):
                        connection.execute(update, (row, updated))
                self.commits.put(row)
                written += 1
                finished.wait(max(0.0, began + written / rate - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Store:
    """A store as its readers see it."""

    name: str
    every_s: float
    """Between two questions."""
    shows: Callable[[int], bool]
    """Whether it has that row."""
    rows: Callable[[], dict[int, int]]
    """All of its rows: ``customer_id`` by ``id``."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where the rows of a pipeline are. ``prefix``: of the keys in the cache; ``read``: the row's JSON there."""

    prefix: Callable[[Any], str]
    read: Callable[[Any, str], bytes | None]
    relation: str
    index: str


def our_names(pipeline: Pipeline) -> Names:
    def prefix(client: Any) -> str:
        live = (client.get(f"{pipeline.name}:live") or b"").decode()
        return f"{pipeline.name}:{live}:{pipeline.table}:"

    table = pipeline.table
    return Names(
        prefix=prefix,
        read=lambda client, key: client.hget(key, "v"),
        relation=f"{pipeline.name}.{table.name}",
        index=f"{pipeline.name}.{table.schema}.{table.name}",
    )


def glue_names(name: str) -> Names:
    return Names(prefix=lambda _: f"{name}:", read=lambda client, key: client.get(key), relation=name, index=name)


@contextlib.contextmanager
def stores_of(pipeline: Pipeline, names: Names) -> Iterator[list[Store]]:
    """Cache, warehouse and search engine, each with a client of its own. Only one thread at a time may use a store."""
    endpoints = pipeline.endpoints
    cache: Any = redis.Redis.from_url(endpoints.redis_url)
    search = OpenSearch(endpoints.opensearch_url, timeout=_SEEN_S)
    with (
        contextlib.closing(cache),
        contextlib.closing(search),
        psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse,
    ):

        def cached() -> dict[int, int]:
            keys = list(cache.scan_iter(match=f"{names.prefix(cache)}*", count=10_000))
            values = [orjson.loads(value) for key in keys if (value := names.read(cache, key.decode())) is not None]
            return {value["id"]: value["customer_id"] for value in values}

        def in_warehouse(row: int) -> bool:
            query = f"select 1 from {names.relation} where id = %s".encode()
            try:
                return warehouse.execute(query, (row,)).fetchone() is not None
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return False  # still starting

        def found(row: int) -> bool:
            body = {"query": {"term": {"id": row}}, "size": 0}
            try:
                answer = search.search(index=names.index, body=body, params={"ignore_unavailable": "true"})
            except TransportError as error:
                if error.status_code != _NO_SHARD:
                    raise
                return False  # the index is new
            return bool(answer["hits"]["total"]["value"])

        def searched() -> dict[int, int]:
            search.indices.refresh(index=names.index)
            hits = scan(search, index=names.index, size=5_000, _source=["id", "customer_id"])
            return {hit["_source"]["id"]: hit["_source"]["customer_id"] for hit in hits}

        yield [
            Store("valkey", _POLL_S, lambda row: names.read(cache, f"{names.prefix(cache)}{row}") is not None, cached),
            Store(
                "warehouse",
                _POLL_S,
                in_warehouse,
                lambda: dict(warehouse.execute(f"select id, customer_id from {names.relation}".encode()).fetchall()),
            ),
            Store(_OPENSEARCH, _SEARCH_POLL_S, found, searched),
        ]


class Sampler:
    """Follows a committed row into one store, about once a second."""

    def __init__(self, store: Store, commits: Commits) -> None:
        self._store = store
        self._commits = commits
        self.seconds: list[float] = []
        """From the commit to the row."""

    def thread(self) -> _Thread:
        return _Thread(f"reader of {self._store.name}", self._run)

    def _run(self, finished: threading.Event) -> None:
        chance = random.Random(self._store.name)
        while not finished.is_set():
            committed = self._commits.next(timeout_s=1.0)
            if committed is None:
                continue
            row, at = committed
            wait_until(
                partial(self._store.shows, row),
                what=f"row {row} is in {self._store.name}",
                timeout_s=_SEEN_S,
                every_s=self._store.every_s,
            )
            self.seconds.append(time.monotonic() - at)
            finished.wait(chance.uniform(*_SAMPLE_GAP_S))


@dataclass(frozen=True, slots=True)
class Running:
    name: str
    pipeline: Pipeline
    children: Sequence[Child]
    processes: Callable[[], Processes]
    """The present processes that aren't servers."""
    names: Names

    def check(self) -> None:
        for child in self.children:
            child.check()


def our_processes(supervisor_pid: int) -> Processes:
    """The processes of ``lockstep run``, by group."""
    supervisor = psutil.Process(supervisor_pid)
    groups: dict[str, list[psutil.Process]] = {group: [] for group in OUR_PROCESSES}
    groups["supervisor"].append(supervisor)
    for child in supervisor.children():
        words = child.cmdline()
        if "apply" not in words:
            name = next((group for word, group in _COMMANDS.items() if word in words), "supervisor")
            groups[name] += family(child.pid)
            continue
        groups["driver"].append(child)
        for below in child.children():
            is_jvm = below.name() == "java"
            groups["JVM" if is_jvm else "driver"].append(below)
            groups["workers" if is_jvm else "driver"] += below.children(recursive=True)
    return groups


_COMMANDS = {"capture": "capture", "dashboard": "page"}


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Ours, then the glue. Raises LockstepError when one fails, falls behind for minutes, or has other rows."""
    rig.up()
    with rig.pipeline("everyday", sinks=STORES) as pipeline:
        _fill(pipeline)
        child = pipeline.start_run()
        running = Running(OURS, pipeline, [child], lambda: our_processes(child.process.pid), our_names(pipeline))
        ours = _side(rig, sizes, say, running, OUR_PROCESSES)
    try:
        jars.fetch(["debezium"])
    except StackError as error:
        say(f"the glue isn't measured: {error}")
        return figures_of(ours, None), report_of(ours, None) | {"left_out": str(error)}
    with rig.pipeline("glue") as pipeline:
        _fill(pipeline)
        glue = _side(rig, sizes, say, _start_glue(rig, pipeline), GLUE_PROCESSES)
    return figures_of(ours, glue), report_of(ours, glue)


def _fill(pipeline: Pipeline) -> None:
    with pipeline.sql() as connection:
        pipeline.load(connection, first=0, rows=ROWS, per_transaction=ROWS)


def _start_glue(rig: Rig, pipeline: Pipeline) -> Running:
    connect = Connect(rig, pipeline).start()
    endpoints, name = pipeline.endpoints, f"{pipeline.name}_copy"
    stores = (endpoints.redis_url, endpoints.warehouse_dsn, endpoints.opensearch_url)
    glue = rig.start_command(
        "glue",
        [sys.executable, "-m", "bench.glue", endpoints.kafka_bootstrap, pipeline.topic, *stores, name],
        environment={"PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    return Running(
        GLUE,
        pipeline,
        [connect, glue],
        lambda: {"Connect": family(connect.process.pid), "glue": family(glue.process.pid)},
        glue_names(name),
    )


def _side(rig: Rig, sizes: Sizes, say: Say, running: Running, own: Sequence[str]) -> Side:
    """All rates and idle, after a warm-up at the highest."""
    with stores_of(running.pipeline, running.names) as stores:
        first_row_s = _wait_started(running, stores)
        say(f"{running.name}: first row in OpenSearch after {first_row_s:.1f} s")
        writers = Writers(running.pipeline)
        highest = max(sizes.everyday_rates)
        say(f"warm-up: {sizes.everyday_warm_s:.0f} s at {highest} transactions/s")
        with _beside(writers.threads(highest)):
            time.sleep(sizes.everyday_warm_s)
        _wait_equal(running, stores)
        costs = []
        for rate in (0, *sizes.everyday_rates):
            costs.append(_cost(rig, sizes, running, writers, stores, rate))
            say(f"{running.name}, {rate} transactions/s: {costs[-1].percent():.1f} % of a core")
        _wait_equal(running, stores)
        say(f"{running.name}: all rows of all stores are those of the source")
    return Side(name=running.name, own=own, first_row_s=first_row_s, costs=costs)


def _wait_started(running: Running, stores: Sequence[Store]) -> float:
    """Wait for a row in every store. Returns the seconds from the start to the first row in OpenSearch."""
    began = min(child.started for child in running.children)

    def has_row(store: Store) -> bool:
        running.check()
        return store.shows(ROWS - 1)

    seconds = 0.0
    for store in sorted(stores, key=lambda store: store.name != _OPENSEARCH):
        what = f"{running.name} has its first row in {store.name}"
        wait_until(partial(has_row, store), what=what, timeout_s=_FIRST_ROW_S, every_s=_SEARCH_POLL_S)
        seconds = seconds or time.time() - began
    return seconds


def _wait_equal(running: Running, stores: Sequence[Store]) -> None:
    """Wait until every store has the source's rows, which don't change meanwhile."""
    query = f"select id, customer_id from {running.pipeline.name}".encode()
    with running.pipeline.sql() as connection:
        rows = dict(connection.execute(query).fetchall())

    def is_equal(store: Store) -> bool:
        running.check()
        return store.rows() == rows

    for store in stores:
        what = f"{store.name} has the rows of the source"
        wait_until(partial(is_equal, store), what=what, timeout_s=_EQUAL_S, every_s=2.0)


def _cost(rig: Rig, sizes: Sizes, running: Running, writers: Writers, stores: Sequence[Store], rate: int) -> Cost:
    samplers = {store.name: Sampler(store, writers.commits) for store in stores} if rate else {}
    with _beside(writers.threads(rate)):
        time.sleep(sizes.everyday_settle_s)
        with _beside([sampler.thread() for sampler in samplers.values()]):
            before, began, transactions = _uses(rig, running), time.monotonic(), writers.commits.count
            time.sleep(sizes.everyday_s)
            after, took_s = _uses(rig, running), time.monotonic() - began
            transactions = writers.commits.count - transactions
    running.check()
    return Cost(
        rate=rate,
        seconds=took_s,
        transactions=transactions,
        cpu_s={group: use.cpu_s - before[group].cpu_s for group, use in after.items()},
        memory_mb={group: use.memory_mb for group, use in after.items()},
        seen_s={name: sampler.seconds for name, sampler in samplers.items()},
    )


def _uses(rig: Rig, running: Running) -> dict[str, Use]:
    groups = {name: family(pid) for name, pid in rig.server_pids.items()} | dict(running.processes())
    return {group: use_of(processes) for group, processes in groups.items()}
