"""Sinks of a running job take up tables that join capture by a pattern, and go on without those that leave it."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.generations.held_tables import HeldState, HeldTable, load_held_tables
from jobs.query.view_plan import planned_view
from lockstep.apply import apply_sinks
from lockstep.config import Config, load
from monitor.waits import Waits
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until
from tests.pipeline import Process
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy]

_PATIENCE_S = 300.0
_numbers = itertools.count(1)

Rows = dict[int, str]


class Shop:
    """A pipeline that captures a whole schema, and what its sinks hold."""

    def __init__(
        self,
        endpoints: Endpoints,
        database: Database,
        directory: Path,
        *,
        has_view: bool = False,
        tables: Sequence[str] = ("public.*",),
    ) -> None:
        number = f"{os.getpid()}_{next(_numbers)}"  # the sinks' servers are shared with other tests
        self.all, self.some, self.one = f"all{number}", f"some{number}", f"one{number}"
        self.database = database
        database.execute(
            "create table t (id int primary key, v text)",
            "insert into t values (1, 'first')",
            "create publication whole for tables in schema public with (publish_via_partition_root = true)",
        )
        some = ["public.t", *(["public.late1"] if "public.*" in tables else [])]
        sections = f"""
[sinks.{self.all}]
type = "redis"
url = "{endpoints.redis_url}"
[sinks.{self.some}]
type = "warehouse"
url = "{endpoints.warehouse_url}"
tables = {orjson.dumps(some).decode()}
[sinks.{self.one}]
type = "redis"
url = "{endpoints.redis_url}"
tables = ["public.t"]
[spark]
conf = {{ "spark.driver.memory" = "512m" }}
"""
        self.view = f"view{number}"
        if has_view:
            sections += f"""
[views.{self.view}]
sink = "{self.some}"
sql = "select v, count(*) as n from t where v is not null group by v"
key = ["v"]
"""
        self.captured = Captured(
            database,
            endpoints.kafka_bootstrap,
            directory,
            tables,
            source="publication = 'whole'",
            sections=sections,
        )
        self.captured.start()

    def close(self) -> None:
        self.captured.stop()

    @property
    def path(self) -> Path:
        return self.captured.path

    def job(self, spark: SparkSession, *sinks: str) -> Job:
        return Job(spark, partial(apply_sinks, load(self.path), sinks=sinks, once=False))

    def write(self, *statements: str) -> int:
        """One transaction; returns an LSN from after its commit."""
        with self.database.connection.transaction():
            self.database.execute(*statements)
        return int(self.database.value("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def wait(self, lsn: int, *sinks: str, config: Config | None = None) -> None:
        """Wait, with this configuration, until these sinks have the LSN."""
        config = config or load(self.path)
        with Waits(config.as_pipeline(), config.sinks) as waits:
            waited = waits.wait(lsn, sinks, timeout_s=_PATIENCE_S)
        assert waited.is_reached, waited.late

    def rows(self, sink: str, table: str, *, generation: int = 1) -> Rows | None:
        """None if the sink has nothing of it."""
        name = TableName.parse(table if "." in table else f"public.{table}")
        shape = read_tables(self.captured.client, self.captured.name).get(name)
        if shape is None:
            return None
        opened = open_sink(sink, self.captured.config.sinks[sink], generation)
        with closing(opened.sink):
            try:
                return {stored.key["id"]: stored.row["v"] for stored in opened.sink.scan(shape)}
            except LockstepError:
                return None

    def counts(self) -> dict[str, int]:
        settings = self.captured.config.sinks[self.view]
        assert settings.view is not None
        result = planned_view(settings.view, read_tables(self.captured.client, self.captured.name)).table
        opened = open_sink(self.view, settings, 1)
        with closing(opened.sink):
            return {stored.key["v"]: stored.row["n"] for stored in opened.sink.scan(result)}

    def held(self, sink: str, table: str) -> HeldTable | None:
        opened = open_sink(sink, self.captured.config.sinks[sink], 1)
        with closing(opened.sink):
            return load_held_tables(opened.records, 1).get(TableName("public", table))


StartShop = Callable[..., Shop]


@pytest.fixture
def start_shop(endpoints: Endpoints, database: Database, tmp_path: Path) -> Iterator[StartShop]:
    started: list[Shop] = []

    def start(**options: Any) -> Shop:
        started.append(Shop(endpoints, database, tmp_path, **options))
        return started[-1]

    yield start
    for shop in started:
        shop.close()


def test_a_table_that_is_created_is_taken_up_and_nobody_is_told_too_early(
    start_shop: StartShop, spark: SparkSession
) -> None:
    shop = start_shop()
    with shop.job(spark) as job:
        for sink in (shop.all, shop.some, shop.one):
            job.wait_for("SinkStarted", sink=sink)
        until(lambda: shop.rows(shop.some, "t") == {1: "first"})
        assert shop.held(shop.some, "late1") is not None, "it isn't there yet, and the others go on"
        for number in (1, 2):
            table = f"late{number}"
            lsn = shop.write(
                f"create table {table} (id int primary key, v text)", f"insert into {table} values (1, 'a')"
            )
            shop.wait(lsn, shop.all)
            assert shop.rows(shop.all, table) == {1: "a"}
            if number == 1:
                shop.wait(lsn, shop.some)
                assert shop.rows(shop.some, table) == {1: "a"}
            lsn = shop.write(f"update {table} set v = 'b'", f"insert into t values (1{number}, 'later')")
            shop.wait(lsn)
            assert shop.rows(shop.all, table) == {1: "b"}
        assert shop.rows(shop.some, "late1") == {1: "b"}
        for sink in (shop.all, shop.some, shop.one):
            assert shop.rows(sink, "t") == {1: "first", 11: "later", 12: "later"}
        assert (shop.rows(shop.some, "late2"), shop.rows(shop.one, "late1")) == (None, None)
        assert shop.held(shop.some, "late1") is None
        told = [report for report in job.reports if report["report"] == "TablesChanged"]
        assert {report["sink"] for report in told} == {shop.all, shop.some}
        assert not [report for report in told if report["left"]]
        assert job.stop() == 0
    job.close()


@pytest.mark.soak
def test_kill_9_around_a_table_that_joins_loses_nothing(start_shop: StartShop, tmp_path: Path) -> None:
    shop = start_shop()
    command = ("lockstep", "apply", shop.all, "--config", str(shop.path))

    def kill(process: Process) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    process = Process(tmp_path / "first.log", *command)
    until(lambda: shop.rows(shop.all, "t") == {1: "first"})
    first = shop.write("create table late1 (id int primary key, v text)", "insert into late1 values (1, 'a')")
    shop.captured.wait_for("public.late1: matches source.tables, and is captured from now on")
    until(lambda: TableName("public", "late1") in load(shop.path).source.table_names)  # Kafka says so, too
    kill(process)
    process = Process(tmp_path / "second.log", *command)
    shop.wait(first, shop.all)
    assert shop.rows(shop.all, "late1") == {1: "a"}
    second = shop.write("create table late2 (id int primary key, v text)", "insert into late2 values (1, 'a')")
    until(lambda: "the sink has other tables" in process.output())
    kill(process)
    third = shop.write("update late2 set v = 'b'", "insert into t values (2, 'second')")
    process = Process(tmp_path / "third.log", *command)
    shop.wait(second, shop.all)
    assert shop.rows(shop.all, "late2") in ({1: "a"}, {1: "b"})
    shop.wait(third, shop.all)
    assert (shop.rows(shop.all, "late2"), shop.rows(shop.all, "t")) == ({1: "b"}, {1: "first", 2: "second"})
    kill(process)


@pytest.mark.soak
def test_a_table_that_leaves_keeps_its_rows_and_goes_on_where_it_was(
    start_shop: StartShop, spark: SparkSession
) -> None:
    shop = start_shop()
    captured = shop.captured
    shop.write("create table late1 (id int primary key, v text)", "insert into late1 values (1, 'a'), (2, 'b')")
    with shop.job(spark) as job:
        until(lambda: shop.rows(shop.all, "late1") == shop.rows(shop.some, "late1") == {1: "a", 2: "b"})
        captured.stop()
        captured.configure(exclude_tables=("public.late1",))
        captured.start()
        captured.wait_for("public.late1: isn't captured any more")
        until(lambda: _state(shop.held(shop.some, "late1")) is HeldState.UNCAPTURED)
        lsn = shop.write("delete from late1 where id = 1", "insert into t values (2, 'meanwhile')")
        shop.wait(lsn)
        for sink in (shop.all, shop.some):
            assert (shop.rows(sink, "late1"), shop.rows(sink, "t")) == (
                {1: "a", 2: "b"},
                {1: "first", 2: "meanwhile"},
            )
        assert job.wait_for("TablesChanged", sink=shop.all, left=["public.late1"])["joined"] == []
        captured.stop()
        captured.configure(exclude_tables=())
        captured.start()
        for sink in (shop.all, shop.some):
            until(lambda sink=sink: shop.rows(sink, "late1") == {2: "b"})
        lsn = shop.write("insert into late1 values (3, 'c')")
        shop.wait(lsn)
        assert shop.rows(shop.all, "late1") == shop.rows(shop.some, "late1") == {2: "b", 3: "c"}
        captured.stop()
        captured.configure(exclude_tables=("public.*",))
        captured.start()
        job.wait_for("TablesChanged", sink=shop.all, left=["public.late1", "public.t"])
        shop.wait(shop.write("insert into t values (4, 'after the last table left')"))  # of none nothing lacks
        captured.stop()
        captured.configure(exclude_tables=())
        captured.start()
        shop.wait(shop.write("insert into t values (5, 'fifth')"))
        for sink in (shop.all, shop.some, shop.one):
            rows = shop.rows(sink, "t")
            assert rows is not None
            assert rows.keys() == {1, 2, 4, 5}
        assert job.stop() == 0
    job.close()


def _state(held: HeldTable | None) -> HeldState | None:
    return None if held is None else held.state
