"""A loss in a sink's store is reported, whenever it happens: a job doesn't go on without its rows."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from jobs.generations.held_tables import HeldState, Wish
from jobs.generations.record import Phase, set_phase
from jobs.query import identity_watch
from lockstep.generations import switch_to
from sinks.opensearch.settings import OpenSearchSettings
from sinks.registry import open_sink
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import until
from tests.events import Put
from tests.live.test_held_tables import ITEMS, ORDERS, Pipeline
from tests.opened import closing_sink
from tests.pipeline import Pipeline as Captures
from tests.view_jobs import ViewPipeline, traffic

pytestmark = [pytest.mark.live, pytest.mark.busy]

Lose = Callable[[str], None]
"""Removes the data of ``ITEMS`` from generation 1 of a sink, as somebody does by hand."""


@pytest.fixture(
    params=[
        "index",
        *(pytest.param(how, marks=pytest.mark.soak) for how in ("dropped", "emptied", "cascaded", "history")),
    ]
)
def lossy(request: pytest.FixtureRequest, endpoints: Endpoints, tmp_path: Path) -> Iterator[tuple[Pipeline, Lose]]:
    """A pipeline, and how its sink loses a table."""
    pipeline = Pipeline(endpoints, tmp_path)
    of_warehouse = {
        "dropped": "drop view {0}.items; drop table {0}_g1.items",
        "cascaded": "drop table {0}_g1.items cascade",
        "emptied": "truncate {0}_g1.items",
        "history": "truncate {0}_g1.items_history",
    }

    def lose(sink: str) -> None:
        if request.param == "index":
            with OpenSearch(endpoints.opensearch_url) as client:
                client.indices.delete(index=f"{sink}.public.items_g1")
            return
        with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
            for statement in of_warehouse[request.param].format(sink).split("; "):
                warehouse.execute(statement.encode())

    if request.param == "index":
        pipeline.settings = OpenSearchSettings(urls=[endpoints.opensearch_url])
    else:
        pipeline.settings = WarehouseSettings.model_validate({"url": endpoints.warehouse_url, "history": True})
    yield pipeline, lose
    pipeline.log.close()


def _filled(pipeline: Pipeline, spark: SparkSession) -> int:
    """The watermark, once a job has applied a row of each table and has ended."""
    lsn = pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(lsn)
        assert job.stop() == 0
    return lsn


def _check_told(pipeline: Pipeline, held: int) -> None:
    """The table is held for good, and its neighbour goes on."""
    failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
    assert failed is not None
    assert "its data was removed" in (failed.reason or "")
    assert failed.hint == f"build the sink again from the log: lockstep rebuild {pipeline.sink} --switch"
    assert failed.retry_at_ms is None, "to try again is no use"
    pipeline.both(2, "second")
    pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
    assert pipeline.status().has_failed_tables
    assert pipeline.progress().watermark_lsn == held


def test_what_was_lost_while_no_job_ran_is_told_by_the_next_one(
    lossy: tuple[Pipeline, Lose], spark: SparkSession
) -> None:
    pipeline, lose = lossy
    held = _filled(pipeline, spark)
    lose(pipeline.sink)
    with pipeline.job(spark) as job:
        _check_told(pipeline, held)
        pipeline.order(Wish.APPLY, ITEMS)
        until(partial(pipeline.has_done, ITEMS, 1))
        held = pipeline.held(ITEMS)
        assert held is not None
        assert held.state is HeldState.FAILED, "to resume it doesn't bring its rows back"
        assert job.stop() == 0


@pytest.mark.soak
def test_what_is_lost_while_a_job_writes_is_told(lossy: tuple[Pipeline, Lose], spark: SparkSession) -> None:
    pipeline, lose = lossy
    held = pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(held)
        lose(pipeline.sink)
        pipeline.write(Put(ITEMS, {"id": 7, "note": "into what is gone"}))
        _check_told(pipeline, held)
        assert job.stop() == 0


@pytest.mark.soak
def test_a_sink_that_has_lost_all_of_its_tables_stops_and_says_so(
    lossy: tuple[Pipeline, Lose], spark: SparkSession
) -> None:
    pipeline, lose = lossy
    pipeline.log.close()
    alone = Pipeline(pipeline.endpoints, pipeline.directory)
    alone.settings = pipeline.settings
    try:
        with alone.job(spark, ITEMS) as job:
            held = alone.write(Put(ITEMS, {"id": 1, "note": "first"}))
            alone.wait_rows(ITEMS, {1: "first"})
            alone.wait_watermark(held)
            assert job.stop() == 0
        lose(alone.sink)
        with alone.job(spark, ITEMS) as job:
            assert job.finish() == 1
            assert "its data was removed" in job.output()
            assert f"lockstep rebuild {alone.sink} --switch" in job.output()
    finally:
        alone.log.close()


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(endpoints, tmp_path)
    yield made
    made.log.close()


# Views


@pytest.mark.parametrize(
    "kind", ["warehouse", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("opensearch", "delta"))]
)
@pytest.mark.soak
def test_a_view_whose_result_was_lost_stops_and_says_so(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state goes on where it is, and would never write again what it has written."""
    pipeline = view_pipelines()
    settings = pipeline.settings(kind)
    traffic(pipeline, 10)
    assert pipeline.apply_once(spark, settings).poll() == 0
    monkeypatch.setattr(identity_watch, "LOOK_S", 0.0)
    with pipeline.job(spark, settings) as job:
        job.wait_for("SinkStarted")
        _lose_result(pipeline, kind)
        assert job.finish() == 1
        assert "its data was removed" in job.output()
    again = pipeline.apply_once(spark, settings)
    assert again.poll() == 1
    assert f"lockstep rebuild {pipeline.sink} --switch" in again.output()


def _lose_result(pipeline: ViewPipeline, kind: str) -> None:
    name, endpoints = pipeline.result.name, pipeline.endpoints
    match kind:
        case "warehouse":
            with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
                (relation,) = warehouse.execute(
                    "select tablename from pg_tables where schemaname = %s", (f"{pipeline.sink}_g1",)
                ).fetchone() or ("",)
                warehouse.execute(f"truncate {pipeline.sink}_g1.{relation}".encode())
        case "opensearch":
            with OpenSearch(endpoints.opensearch_url) as client:
                client.indices.delete(index=f"{pipeline.sink}.*{name.name}_g1")
        case _:
            shutil.rmtree(pipeline.directory / "lake" / f"{pipeline.sink}_g1")


# Redis, whose keys can't be distinguished from keys that never existed


def _check_loss(pipeline: Pipeline, spark: SparkSession, lose: Callable[[], None], *, runs: bool) -> None:
    """``lose`` removes the sink's progress, while its job ``runs`` or between two of them."""
    try:
        lsn = pipeline.both(1, "first")
        with pipeline.job(spark) as job:
            pipeline.wait_rows(ITEMS, {1: "first"})
            pipeline.wait_watermark(lsn)
            if not runs:
                assert job.stop() == 0
            lose()
            if runs:
                _check_whole(pipeline)
                assert job.stop() == 0
                return
        with pipeline.job(spark) as again:
            _check_whole(pipeline)
            assert again.stop() == 0
    finally:
        pipeline.log.close()


def _check_whole(pipeline: Pipeline) -> None:
    pipeline.both(2, "second")

    def is_whole() -> bool:
        try:
            return all(pipeline.rows(of) == {1: "first", 2: "second"} for of in (ORDERS, ITEMS))
        except LockstepError:  # nothing of it is there again yet
            return False

    until(is_whole)


@pytest.mark.parametrize("runs", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_cluster_that_has_lost_a_sinks_bookkeeping_gets_all_again(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession, runs: bool
) -> None:
    """Progress is gone, and the rows are there."""
    pipeline = Pipeline(endpoints, tmp_path)
    pipeline.settings = OpenSearchSettings(urls=[endpoints.opensearch_url])

    def lose() -> None:
        with OpenSearch(endpoints.opensearch_url) as client:
            client.indices.delete(index=f"{pipeline.sink}.lockstep_bookkeeping")

    _check_loss(pipeline, spark, lose, runs=runs)


# Other generations than the live one


@pytest.mark.soak
def test_a_generation_that_has_lost_a_table_is_not_switched_to_nor_built_on(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    name = f"lost{uuid.uuid4().hex[:8]}"
    pipeline = Captures(endpoints, tmp_path, name, sinks=True)
    sink = f"{name}_search"
    told = f"its data was removed (index '{sink}.{name}.account_g{{}}' was removed)"
    try:
        with pipeline.sql() as sql:
            sql.execute(f"insert into {name}.account (id, owner) values (1, 'o')")
            sql.execute(f"insert into {name}.entry values (1, 1, 'n', '{{}}')")
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        assert pipeline.apply(spark, sink, once=True).finish() == 0
        assert pipeline.rebuild(spark, sink, switch_over=True).finish().is_live
        assert pipeline.rebuild(spark, sink).finish().report.is_equal
        with closing_sink(open_sink(sink, pipeline.config.sinks[sink], 1)) as opened:
            set_phase(opened.records, 3, Phase.BUILDING)
        with OpenSearch(endpoints.opensearch_url) as client:
            for number in (1, 3):
                client.indices.delete(index=f"{sink}.{name}.account_g{number}")
        with pytest.raises(LockstepError, match="can't be switched to") as refused:
            switch_to(pipeline.config, sink, number=None, back=True)
        assert told.format(1) in refused.value.message
        failed = pipeline.rebuild(spark, sink).failed()
        assert told.format(3) in failed.message
        with OpenSearch(endpoints.opensearch_url) as client:
            assert not client.indices.exists(index=f"{sink}.{name}.account_g3")
    finally:
        pipeline.close()
