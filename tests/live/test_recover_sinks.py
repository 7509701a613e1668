"""Sinks over a recovery: the source is put back to an earlier moment, and every store ends equal to it again."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdc.postgres.slot import emit_heartbeat
from lockstep.capture.recover import recover
from lockstep.verify.full_comparison import compare_sinks, open_source
from sinks.registry import open_sink
from sinks.wrappers.projection import Projection
from stack.stack import Endpoints
from tests.captured import StartCapture
from tests.job_process import run_sinks, spark_settings
from tests.own_server import OwnServer
from tests.readers import Read, cache_reader, reading, search_reader, warehouse_reader
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

_SETUP = (
    "create table t (id int primary key, v text, n int)",
    "insert into t select i, 'old', 1 from generate_series(1, 60) i",
    "create table quiet (id int primary key, v text)",
    "insert into quiet values (1, 'old')",
)
_LOST_TIME = (
    "alter table t add y text default 'lost default'",
    "update t set v = 'lost', y = 'lost value' where id between 1 and 15",
    "delete from t where id between 16 and 20",
    "insert into t values (61, 'lost', 1, 'lost value'), (62, 'lost', 1, 'lost value')",
    "alter table quiet add y text default 'lost default'",
    "insert into quiet values (2, 'lost')",
)
_NUMBER_AGAIN = "alter table t add z text default 'new default'"
_NAME_AGAIN = "alter table quiet add y text default 'new default'"
_AFTER = (
    "update t set v = 'after', z = 'new value' where id = 6",
    "delete from t where id = 21",
    "insert into t values (62, 'after', 1, 'new value')",
)
_STAY = range(1, 6)
"""These rows always exist; their ``n`` is 1."""


class Recovered:
    """A source of the test's own that can be put back, its capture, and sinks of all kinds."""

    def __init__(self, own: OwnServer, capture: StartCapture, endpoints: Endpoints, directory: Path) -> None:
        self._own = own
        self.database = own.database
        self._directory = directory
        self._settings = {
            "search": f'type = "opensearch"\nurls = ["{endpoints.opensearch_url}"]\nreplicas = 0\nrefresh_interval_ms'
            " = 200",
            "cache": f'type = "redis"\nurl = "{endpoints.redis_url}"',
            "warehouse": f'type = "warehouse"\nurl = "{endpoints.warehouse_url}"\nhistory = ["public.t"]',
            "file": f'type = "warehouse"\nurl = "duckdb:///{directory}/dwh.duckdb"\nlock_timeout_s = 30.0\n'
            'history = ["public.t"]',
            "lake": f'type = "delta"\nroot = "{directory}/lake"',
        }
        self.database.execute(*_SETUP)
        self.prefix = f"put_back{id(self)}"
        sections = "\n".join(f"[sinks.{self.prefix}_{kind}]\n{text}" for kind, text in self._settings.items())
        self.captured = capture("public.t", "public.quiet", of=self.database, sections=sections)
        self.captured.settle()

    def put_back(self) -> None:
        """Undo everything that was committed since ``save``."""
        self.captured.stop()
        self._own.take_back()

    def save(self) -> None:
        self.captured.stop()
        self._own.keep()

    def recover(self, *tables: str) -> None:
        pipeline = self.captured.config.as_pipeline()
        state = recover(pipeline, tables, agreed=lambda _: True, stopping=lambda: False, say=self.captured.said.append)
        assert state is not None
        self.captured.start()

    # Sinks.

    def name(self, kind: str) -> str:
        return f"{self.prefix}_{kind}"

    def job(self, spark: SparkSession, *kinds: str, once: bool = False) -> Job:
        config = self.captured.config
        sinks = {self.name(kind): config.sinks[self.name(kind)] for kind in kinds or self._settings}
        run = partial(
            run_sinks,
            pipeline=config.pipeline.name,
            kafka=config.kafka,
            tables=list(config.source.keyed_names),
            sinks=sinks,
            spark=spark_settings(self._directory),
            once=once,
        )
        return Job(spark, run)

    def apply_once(self, spark: SparkSession, *kinds: str) -> None:
        self.captured.settle()
        job = self.job(spark, *kinds, once=True)
        assert job.finish() == 0, job.output()

    def wait_applied(self, job: Job, *, since: int) -> None:
        """Wait until each sink reports everything committed now; LSNs from before ``since`` may be greater."""
        self.captured.settle()
        target = emit_heartbeat(self.database.connection)

        def is_applied(name: str) -> Callable[[dict[str, Any]], bool]:
            return lambda report: report.get("sink") == name and report.get("watermark_lsn", 0) >= target

        for kind in self._settings:
            job.wait_until(is_applied(self.name(kind)), since=since)

    def assert_equal(self, *kinds: str) -> None:
        """Every row of every table in these stores is the source's."""
        config = self.captured.config
        opened = {
            self.name(kind): open_sink(self.name(kind), config.sinks[self.name(kind)], 1)
            for kind in kinds or self._settings
        }
        try:
            with open_source(
                config.source, names=config.source.table_names, publication=config.publication, application="test"
            ) as source:
                compared = compare_sinks(source, {name: (sink.sink, Projection()) for name, sink in opened.items()})
            for name, sink in opened.items():
                progress = sink.generations.load_progress()
                assert progress is not None
                assert progress.rejected == 0, name
        finally:
            for sink in opened.values():
                sink.sink.close()
        assert compared.keys() == opened.keys() != set()
        for name, tables in compared.items():
            for table in tables:
                assert table.source_rows > 0
                assert table.is_equal, f"{name}: {table.to_json()}"


@pytest.fixture
def recovered(own: OwnServer, capture: StartCapture, endpoints: Endpoints, tmp_path: Path) -> Recovered:
    return Recovered(own, capture, endpoints, tmp_path)


def _history(endpoints: Endpoints, schema: str, query: str) -> set[Any]:
    with psycopg.connect(endpoints.warehouse_dsn) as connection:
        return {row[0] for row in connection.execute(query.replace("HISTORY", f"{schema}.t_history").encode())}


def test_a_column_that_has_a_lost_ones_number_is_another_one_in_each_sink(
    recovered: Recovered, endpoints: Endpoints, spark: SparkSession
) -> None:
    """The jobs are stopped meanwhile: they see the last shape of the lost time, then the one with the number. In the
    other table, a column with a lost one's name comes after that."""
    kinds = ("search", "warehouse")
    recovered.save()
    recovered.captured.start()
    recovered.database.execute(*_LOST_TIME)
    recovered.apply_once(spark, *kinds)
    recovered.captured.stop()
    recovered.put_back()
    recovered.database.execute(_NUMBER_AGAIN)
    recovered.recover()
    recovered.apply_once(spark, *kinds)
    recovered.database.execute(_NAME_AGAIN, *_AFTER)
    recovered.captured.wait_quiet()
    recovered.apply_once(spark, *kinds)
    recovered.assert_equal(*kinds)
    shown = _history(endpoints, recovered.name("warehouse"), "select z from HISTORY")
    assert shown == {None, "new default", "new value"}


@pytest.mark.parametrize("when", ["before the recovery", "after it"])
def test_every_store_follows_a_source_that_was_put_back_while_its_job_runs(
    recovered: Recovered, endpoints: Endpoints, spark: SparkSession, when: str
) -> None:
    """A column with a lost one's number comes with the copy, or in the stream after it: then only defaults tell."""
    recovered.save()
    recovered.captured.start()
    job = recovered.job(spark)
    try:
        recovered.database.execute(*_LOST_TIME)
        recovered.wait_applied(job, since=0)
        reads: dict[str, AbstractContextManager[Read]] = {
            "search": search_reader(endpoints, f"{recovered.name('search')}.public.t", "n"),
            "cache": cache_reader(endpoints, recovered.name("cache"), "public.t", "n"),
            "warehouse": warehouse_reader(endpoints, f"{recovered.name('warehouse')}.t", "n"),
        }
        with reading(reads, _STAY):
            recovered.put_back()
            began = len(job.reports)
            if when == "before the recovery":
                recovered.database.execute(_NUMBER_AGAIN)
            recovered.recover()
            recovered.wait_applied(job, since=began)
            began = len(job.reports)
            if when == "after it":
                recovered.database.execute(_NUMBER_AGAIN)
            recovered.database.execute(_NAME_AGAIN, *_AFTER)
            recovered.captured.wait_quiet()
            recovered.wait_applied(job, since=began)
        assert job.stop() == 0
    finally:
        job.close()
    recovered.assert_equal()
    shown = _history(endpoints, recovered.name("warehouse"), "select z from HISTORY")
    assert "lost value" not in shown
