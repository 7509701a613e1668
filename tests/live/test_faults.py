"""Servers in trouble, one at a time, under traffic: other sinks go on, its own sink says so, and nothing is lost."""

import itertools
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil
import psycopg
import pytest
import redis
import urllib3
from confluent_kafka.admin import AdminClient, NewPartitions
from psycopg.conninfo import conninfo_to_dict
from pydantic import TypeAdapter
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from cdc.postgres.slot import emit_heartbeat
from lockstep.console import EXIT_TAKEN_OVER
from monitor.collector import LagCollector
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, open_sink
from stack.stack import Endpoints
from tests.builders import column, table
from tests.databases import url_of
from tests.events import Log, Put, kafka_settings
from tests.faulty_proxy import FaultyProxy
from tests.job_process import run_sinks, spark_settings
from tests.job_reports import Seen
from tests.pipeline import Pipeline, quick, traffic, wait_until
from tests.services import Services
from tests.spark_here import Job
from tests.spark_session import python_workers

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.alone]

PATIENCE_S = 300.0
"""For things that take seconds on an idle machine."""

# Short, so that a server that hangs is noticed within the test.
QUICK = {
    "spark": "retry_s = 1.0",
    "search": "timeout_s = 4.0",
    "cache": "max_value_bytes = 100000",
}
_numbers = itertools.count(1)
SERVERS = {"opensearch": "search", "valkey": "cache", "warehouse": "warehouse"}
"""Server -> the end of its sink's name."""


class Running:
    """A pipeline with three sinks, each behind a proxy, and its processes."""

    def __init__(self, stack: Services, directory: Path, spark: SparkSession) -> None:
        self.stack = stack
        self.spark = spark
        self.endpoints = stack.endpoints()
        self._closing = ExitStack()
        self.proxies = {name: self._closing.enter_context(FaultyProxy(*at)) for name, at in _addresses(self.endpoints)}
        self.pipeline = Pipeline(
            quick(_through(self.endpoints, self.proxies)),
            directory,
            f"fault{os.getpid()}_{next(_numbers)}",
            sinks=True,
            more=QUICK,
        )
        self._closing.callback(self.pipeline.close)
        self.lag = self._closing.enter_context(
            LagCollector(self.pipeline.config.as_pipeline(), self.pipeline.config.sinks)
        )
        self._sinks: dict[str, OpenedSink] = {}
        self._seed = 0
        self.capture = self.pipeline.start_capture()
        self.job = self.pipeline.apply(spark)

    @property
    def now(self) -> int:
        """The index of the job's next report."""
        return len(self.job.reports)

    def name(self, server: str) -> str:
        return f"{self.pipeline.name}_{SERVERS[server]}"

    def opened(self, server: str) -> OpenedSink:
        name = self.name(server)
        if server not in self._sinks:
            self._sinks[server] = open_sink(name, self.pipeline.config.sinks[name], 1)
            self._closing.callback(self._sinks[server].sink.close)
        return self._sinks[server]

    def watermark(self, server: str) -> int:
        """0 while its server doesn't answer."""
        try:
            progress = self.opened(server).generations.load_progress()
        except LockstepError:
            return 0
        return 0 if progress is None else progress.watermark_lsn

    def wait_reached(self, *servers: str) -> None:
        """Wait until these sinks have applied everything committed now."""
        with self.pipeline.sql() as connection:
            target = emit_heartbeat(connection)
        for server in servers:
            self.wait(lambda server=server: self.watermark(server) >= target, f"{server}'s sink goes on")  # type: ignore[misc]

    def wait_said(self, server: str, *, since: int, words: str = "") -> None:
        """Wait until the job has said that this server's sink waits, and why."""
        self.job.wait_until(
            lambda report: self._is(report, "SinkWaiting", server) and words in report["reason"], PATIENCE_S, since
        )

    def wait_going_on(self, server: str, *, since: int) -> None:
        """Wait until the job has said that a batch of this server's sink takes long."""
        self.job.wait_until(lambda report: self._is(report, "BatchGoesOn", server), PATIENCE_S, since)

    def wait_failed(self, server: str, words: str) -> None:
        """Wait until the job has said that this server's sink has stopped, with the way out."""
        self.job.wait_until(
            lambda report: self._is(report, "SinkFailed", server) and words in report["error"], PATIENCE_S
        )

    def _is(self, report: Seen, what: str, server: str) -> bool:
        return bool(report["report"] == what and report["sink"] == self.name(server))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            return condition() or self.job.poll() is not None

        try:
            wait_until(holds, what=what, timeout_s=PATIENCE_S)
            assert condition(), f"the job has ended before {what}"
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.job.output()}") from None

    def traffic(self) -> Any:
        self._seed += 1
        return traffic(self.pipeline, seed=self._seed, pause_s=0.1)

    def assert_nothing_is_lost(self) -> None:
        self.pipeline.wait_applied(self.job, timeout_s=PATIENCE_S)
        self.pipeline.assert_sinks_equal()

    def close(self) -> None:
        self._closing.close()


def _addresses(endpoints: Endpoints) -> Iterator[tuple[str, tuple[str, int]]]:
    for name, url in (("opensearch", endpoints.opensearch_url), ("valkey", endpoints.redis_url)):
        parts = urlsplit(url)
        yield name, (parts.hostname or "", parts.port or 0)
    warehouse = conninfo_to_dict(endpoints.warehouse_dsn)
    yield "warehouse", (str(warehouse["host"]), int(warehouse["port"] or 0))


def _through(endpoints: Endpoints, proxies: Mapping[str, FaultyProxy]) -> Endpoints:
    def behind(server: str, url: str) -> str:
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{proxies[server].port}").geturl()

    return replace(
        endpoints,
        opensearch_url=behind("opensearch", endpoints.opensearch_url),
        redis_url=behind("valkey", endpoints.redis_url),
        warehouse_url=behind("warehouse", endpoints.warehouse_url),
    )


@pytest.fixture(scope="module")
def running(stack: Services, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Running]:
    made = Running(stack, tmp_path_factory.mktemp("faults"), spark)
    try:
        made.wait_reached(*SERVERS)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "server", ["valkey", *(pytest.param(name, marks=pytest.mark.soak) for name in SERVERS if name != "valkey")]
)
def test_a_server_that_is_down_is_waited_for_and_the_others_go_on(running: Running, server: str) -> None:
    with running.traffic():
        since = running.now
        running.stack.stop(server)
        try:
            running.wait_reached(*(SERVERS.keys() - {server}))
            running.wait_said(server, since=since)
            lag = running.lag.collect()
        finally:
            running.stack.start(server)
        assert set(lag.unanswered) == {running.name(server)}
        unknown = {stage.sink.name for stage in lag.stages if stage.sink is not None and stage.lsn is None}
        assert unknown == {running.name(server)}
        running.stack.stop("kafka")
        running.stack.start("kafka")
        running.wait_reached(*SERVERS)
    running.assert_nothing_is_lost()


@pytest.mark.soak
def test_a_server_that_hangs_keeps_only_its_own_sink(running: Running) -> None:
    with running.traffic():
        for server in SERVERS:
            since = running.now
            running.stack.freeze(server)
            try:
                running.wait_reached(*(SERVERS.keys() - {server}))
                if server == "warehouse":  # a statement may take as long as it takes
                    running.wait_going_on(server, since=since)
                else:
                    running.wait_said(server, since=since)
            finally:
                running.stack.thaw(server)
    running.assert_nothing_is_lost()


@pytest.mark.soak
def test_a_batch_whose_worker_is_killed_is_done_again(running: Running) -> None:
    since, killed = running.now, 0
    with running.traffic():
        # So slow that a batch is under way whenever we look.
        for proxy in running.proxies.values():
            proxy.be_slow(0.1)
        try:
            for _ in range(3):
                running.wait_reached("valkey")
                for worker in python_workers(os.getpid()):
                    with suppress(psutil.NoSuchProcess):
                        worker.kill()
                        killed += 1
        finally:
            for proxy in running.proxies.values():
                proxy.be_well()
    assert killed
    assert not [report for report in running.job.reports[since:] if report["report"] == "SinkFailed"]
    running.assert_nothing_is_lost()


@pytest.mark.soak
def test_a_full_store_stops_its_sink_alone_and_a_restart_goes_on(running: Running) -> None:
    with running.traffic(), ExitStack() as mending:
        healthy = list(SERVERS)
        for server, spoil, words in (
            ("valkey", _full_memory, "raise maxmemory"),
            ("warehouse", _read_only, "read-only"),
            ("opensearch", _blocked_index, "free space"),
        ):
            mending.enter_context(spoil(running))
            running.wait_failed(server, words)
            healthy.remove(server)
            running.wait_reached(*healthy)
        # No sink is left.
        assert running.job.finish(PATIENCE_S) == 1
    running.job = running.pipeline.apply(running.spark)
    running.assert_nothing_is_lost()


@contextmanager
def _full_memory(running: Running) -> Iterator[None]:
    client: Any = redis.Redis.from_url(running.endpoints.redis_url)
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)
        client.close()


@contextmanager
def _read_only(running: Running) -> Iterator[None]:
    with psycopg.connect(running.endpoints.warehouse_dsn, autocommit=True) as connection:
        connection.execute("alter system set default_transaction_read_only = on")
        connection.execute("select pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("alter system reset default_transaction_read_only")
            connection.execute("select pg_reload_conf()")


@contextmanager
def _blocked_index(running: Running) -> Iterator[None]:
    pool = urllib3.PoolManager()

    def block(value: bool | None) -> None:
        answer = pool.request(
            "PUT",
            f"{running.endpoints.opensearch_url}/{running.name('opensearch')}.*/_settings",
            body=orjson.dumps({"index.blocks.read_only_allow_delete": value}),
            headers={"content-type": "application/json"},
        )
        assert answer.status == 200, answer.data[:300]

    block(True)
    try:
        yield
    finally:
        block(None)


@pytest.mark.soak
def test_a_frozen_job_that_wakes_up_finds_another_in_its_place(running: Running) -> None:
    assert running.job.stop() == 0
    old = running.pipeline.start_apply()
    with running.traffic():
        running.pipeline.wait_applied(old)
        os.killpg(old.pid, signal.SIGSTOP)
        try:
            running.job = running.pipeline.apply(running.spark)
            running.wait_reached(*SERVERS)
        finally:
            os.killpg(old.pid, signal.SIGCONT)
        assert running.pipeline.wait_ended(old, timeout_s=PATIENCE_S) == EXIT_TAKEN_OVER
    running.assert_nothing_is_lost()
    assert running.job.poll() is None
    told = old.output()
    assert f"sink failed sink={running.name('warehouse')} generation=1 error=another job" in told, told


PASSWORD = "not-this-one"

RECREATED, WIDER, KEPT = (
    table(column("id", "int8"), column("note"), name=TableName("public", name))
    for name in ("recreated", "wider", "kept")
)


@pytest.mark.soak
def test_what_is_wrong_with_one_sink_stops_that_one_and_says_the_way_out(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    """At the start: logins and addresses. While it runs: topics and destinations that somebody changes by hand."""
    name = f"hand{uuid.uuid4().hex[:8]}"
    with ExitStack() as closing:
        log = Log(kafka_settings(endpoints.kafka_bootstrap), name, [RECREATED, WIDER, KEPT])
        closing.callback(log.close)
        doorkeeper = closing.enter_context(FaultyProxy("127.0.0.1", 1))
        doorkeeper.refuse(401)
        running = _sinks(name, endpoints)
        refused = _refused_sinks(name, endpoints, doorkeeper)
        for shape in (RECREATED, WIDER, KEPT):
            # So many that every partition has some: the next offset is then past the start of a recreated topic.
            log.commit([_put(key, shape) for key in range(30)])
        job = closing.enter_context(
            Job(
                spark,
                partial(
                    run_sinks,
                    pipeline=name,
                    kafka=log.kafka,
                    tables=log.table_names,
                    sinks=running | refused,
                    spark=spark_settings(tmp_path, retry_s=1),
                ),
            )
        )
        for sink, words in (
            (f"{name}login", "check user and password of this sink"),
            (f"{name}database", "check database and user of this sink"),
            (f"{name}doorkeeper", "check user and password of this sink"),
        ):
            assert words in job.wait_for("SinkFailed", sink=sink)["error"]
        assert "127.0.0.1:1" in job.wait_for("SinkWaiting", sink=f"{name}nowhere")["reason"]

        for sink in running:
            job.wait_for("BatchApplied", sink=sink)
        _change_by_hand(name, endpoints, log)
        for shape in (RECREATED, WIDER, KEPT):
            lsn = log.commit([_put(key, shape) for key in range(30, 60)])
        for sink, words in (
            (f"{name}recreated", "was recreated .*lockstep snapshot table TABLE.*lockstep rebuild"),
            (f"{name}wider", "has 5 partitions.*rebuild the sink"),
            (f"{name}search", "lockstep rebuild"),
            (f"{name}dropped", "lockstep rebuild"),
        ):
            assert re.search(words, job.wait_for("SinkFailed", sink=sink)["error"], re.DOTALL)
        job.wait_until(lambda seen: seen.get("sink") == f"{name}kept" and seen.get("watermark_lsn") == lsn)
        assert job.stop() == 1
    assert PASSWORD not in str(job.reports)


def _put(key: int, of: Table) -> Put:
    return Put(of, {"id": key, "note": "n"})


def _settings(kind: str, of: Table, **settings: object) -> SinkSettings:
    made: SinkSettings = TypeAdapter(SinkSettings).validate_python({"type": kind, "tables": [str(of.name)], **settings})
    return made


def _sinks(name: str, endpoints: Endpoints) -> dict[str, SinkSettings]:
    """Those that start; all except ``kept`` must be stopped."""
    return {
        f"{name}kept": _settings("redis", KEPT, url=endpoints.redis_url),
        f"{name}recreated": _settings("redis", RECREATED, url=endpoints.redis_url),
        f"{name}wider": _settings("redis", WIDER, url=endpoints.redis_url),
        f"{name}dropped": _settings("warehouse", KEPT, url=endpoints.warehouse_url),
        f"{name}search": _settings("opensearch", KEPT, urls=[endpoints.opensearch_url], replicas=0),
    }


def _refused_sinks(name: str, endpoints: Endpoints, doorkeeper: FaultyProxy) -> dict[str, SinkSettings]:
    login = {"user": f"{name}_nobody", "password": PASSWORD}
    return {
        f"{name}login": _settings("redis", KEPT, url=endpoints.redis_url, login=login),
        f"{name}database": _settings("warehouse", KEPT, url=url_of(endpoints.warehouse_url, f"{name}_nowhere")),
        f"{name}doorkeeper": _settings("opensearch", KEPT, urls=[f"http://127.0.0.1:{doorkeeper.port}"], login=login),
        f"{name}nowhere": _settings("redis", KEPT, url="redis://127.0.0.1:1/0"),
    }


def _change_by_hand(name: str, endpoints: Endpoints, log: Log) -> None:
    log.recreate_topic(RECREATED)
    topic = log.topic(WIDER)
    admin = AdminClient({**log.kafka.client()})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(300)
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
        connection.execute(f"drop table {name}dropped_g1.kept cascade".encode())
    answer = urllib3.request("DELETE", f"{endpoints.opensearch_url}/{name}search.public.kept_g1")
    assert answer.status == 200, answer.data[:300]
