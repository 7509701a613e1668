"""What a sink's store has lost is told, whenever that happens: a job doesn't go on without its rows."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from jobs.generations.asides import AsideState, Wish
from jobs.generations.identities import identities_name, load_identities
from jobs.query import identity_watch
from sinks.opensearch.settings import OpenSearchSettings
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import until
from tests.events import Put
from tests.live.test_tables_aside import ITEMS, ORDERS, Pipeline

pytestmark = [pytest.mark.live, pytest.mark.busy]

Lose = Callable[[str], None]
"""Takes the data of ``ITEMS`` from generation 1 of a sink, as somebody does by hand."""


@pytest.fixture(params=["index", "dropped", "cascaded", "emptied", "history"])
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


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_watch, "_LOOK_S", 0.0)


def _filled(pipeline: Pipeline, spark: SparkSession) -> int:
    """The watermark, once a job has applied a row of each table and has ended."""
    lsn = pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(lsn)
        assert job.stop() == 0
    return lsn


def _check_told(pipeline: Pipeline, held: int) -> None:
    """The table is set aside for good, and its neighbour goes on."""
    failed = pipeline.wait_aside(ITEMS, AsideState.FAILED)
    assert failed is not None
    assert "somebody has removed its data" in (failed.reason or "")
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
        aside = pipeline.aside(ITEMS)
        assert aside is not None
        assert aside.state is AsideState.FAILED, "to resume it doesn't bring its rows back"
        assert job.stop() == 0


@pytest.mark.usefixtures("looks_often")
def test_what_is_lost_while_a_job_runs_and_nothing_is_written_is_told(
    lossy: tuple[Pipeline, Lose], spark: SparkSession
) -> None:
    pipeline, lose = lossy
    held = pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(held)
        lose(pipeline.sink)
        _check_told(pipeline, held)
        assert job.stop() == 0


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


def test_what_an_earlier_version_has_lost_is_told_where_it_is_gone(
    lossy: tuple[Pipeline, Lose], spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """It has noted nothing of the tables. One that is empty may always have been."""
    pipeline, lose = lossy
    held = _filled(pipeline, spark)
    _forget_identities(pipeline)
    lose(pipeline.sink)
    with pipeline.job(spark) as job:
        if request.node.callspec.params["lossy"] in ("emptied", "history"):
            second = pipeline.both(2, "second")
            pipeline.wait_watermark(second)
            assert pipeline.aside(ITEMS) is None
        else:
            _check_told(pipeline, held)
        assert job.stop() == 0


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
            alone.wait_watermark(held)
            assert job.stop() == 0
        lose(alone.sink)
        with alone.job(spark, ITEMS) as job:
            assert job.finish() == 1
            assert "somebody has removed its data" in job.told()
            assert f"lockstep rebuild {alone.sink} --switch" in job.told()
    finally:
        alone.log.close()


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(endpoints, tmp_path)
    yield made
    made.log.close()


@pytest.mark.usefixtures("looks_often")
def test_a_table_that_is_written_anew_as_a_whole_goes_on(
    pipeline: Pipeline, endpoints: Endpoints, spark: SparkSession
) -> None:
    _filled(pipeline, spark)
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
        full = f"vacuum full {pipeline.sink}_g1.items".encode()
        warehouse.execute(full)
        with pipeline.job(spark) as job:
            second = pipeline.both(2, "second")
            pipeline.wait_watermark(second)
            warehouse.execute(full)
            third = pipeline.both(3, "third")
            pipeline.wait_rows(ITEMS, {1: "first", 2: "second", 3: "third"})
            pipeline.wait_watermark(third)
            assert pipeline.aside(ITEMS) is None
            assert job.stop() == 0


def test_an_earlier_version_has_noted_nothing_and_nothing_is_lost(pipeline: Pipeline, spark: SparkSession) -> None:
    _filled(pipeline, spark)
    _forget_identities(pipeline)
    with pipeline.job(spark) as job:
        second = pipeline.both(2, "second")
        pipeline.wait_watermark(second)
        assert pipeline.aside(ITEMS) is None
        assert job.stop() == 0
    opened = pipeline.opened()
    try:
        assert load_identities(opened.records, 1).keys() == {ORDERS.name, ITEMS.name}, "they are noted now"
    finally:
        opened.sink.close()


def _forget_identities(pipeline: Pipeline) -> None:
    opened = pipeline.opened()
    try:
        opened.records.save(identities_name(1), None)
    finally:
        opened.sink.close()
