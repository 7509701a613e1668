"""Single tables of a sink are paused, resumed, taken out, or fail, while the others go on."""

import random
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Column, Table, TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.generations.held_tables import (
    HeldState,
    HeldTable,
    Order,
    Wish,
    dump_held_tables,
    give_order,
    held_tables_name,
    is_done,
    load_held_tables,
)
from jobs.generations.status import JobStatus, job_status
from lockstep.cli.main import exit_code
from lockstep.generations import check_none_held, switch_to
from sinks.contract import OpenedSink, Progress
from sinks.opensearch.settings import OpenSearchSettings
from sinks.registry import SinkSettings, open_sink
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.builders import column, table
from tests.databases import until
from tests.events import Delete, Log, Put, kafka_settings
from tests.job_process import JobProcess, run_sinks, spark_settings
from tests.opened import closing_sink
from tests.pipeline import Pipeline as Captures
from tests.spark_here import Job
from tests.topics import configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

ORDERS = table(column("id", "int8"), column("note"))
ITEMS = table(column("id", "int8"), column("note"), name=TableName("public", "items"))


class Pipeline:
    """A log of two tables, and a warehouse that follows it."""

    def __init__(self, endpoints: Endpoints, directory: Path) -> None:
        self.name = f"held{uuid.uuid4().hex[:8]}"
        self.endpoints = endpoints
        self.directory = directory
        self.log = Log(kafka_settings(endpoints.kafka_bootstrap), self.name, [ORDERS, ITEMS])
        self.sink = f"{self.name}w"
        self.settings: SinkSettings = WarehouseSettings.model_validate({"url": endpoints.warehouse_url})

    def write(self, *changes: Put | Delete) -> int:
        return self.log.commit(changes, commit_time_ms=time.time_ns() // 1_000_000)

    def both(self, key: int, note: str) -> int:
        row = {"id": key, "note": note}
        return self.write(Put(ORDERS, row), Put(ITEMS, row))

    def _arguments(self) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "kafka": self.log.kafka,
            "tables": self.log.table_names,
            "sinks": {self.sink: self.settings},
            "spark": spark_settings(self.directory),
        }

    def job(self, spark: SparkSession, *tables: Table) -> Job:
        """If ``tables`` are named, no others are captured."""
        captured = [table.name for table in tables] or self.log.table_names
        return Job(spark, partial(run_sinks, **self._arguments() | {"tables": captured}))

    def process(self) -> JobProcess:
        return JobProcess(**self._arguments(), once=False)

    def opened(self) -> OpenedSink:
        return open_sink(self.sink, self.settings, 1)

    def order(self, wish: Wish, of: Table) -> None:
        with closing_sink(self.opened()) as opened:
            give_order(opened.records, 1, [of.name], wish, now_ms=time.time_ns() // 1_000_000)

    def held(self, of: Table) -> HeldTable | None:
        with closing_sink(self.opened()) as opened:
            return load_held_tables(opened.records, 1).get(of.name)

    def tries(self, of: Table) -> int:
        """How often it was tried again in vain."""
        held = self.held(of)
        return 0 if held is None else held.tries

    def is_tried(self, of: Table, tries: int) -> bool:
        """Whether it is tried again now, or was after this many ``tries``."""
        held = self.held(of)
        return held is None or held.state is not HeldState.FAILED or held.tries > tries

    def make_due(self, of: Table) -> None:
        """Makes the next try due. No job runs."""
        with closing_sink(self.opened()) as opened:
            held_tables = load_held_tables(opened.records, 1)
            opened.records.save(
                held_tables_name(1),
                dump_held_tables({**held_tables, of.name: replace(held_tables[of.name], retry_at_ms=0)}),
            )

    def has_done(self, of: Table, number: int) -> bool:
        """Whether the job has obeyed or refused the order of this number."""
        return is_done(Order(Wish.APPLY, number), self.held(of))

    def wait_held(self, of: Table, state: HeldState | None) -> HeldTable | None:
        def is_so() -> bool:
            held = self.held(of)
            return (None if held is None else held.state) is state

        until(is_so)
        return self.held(of)

    def wait_refused(self, of: Table, reason: str) -> None:
        def is_so() -> bool:
            held = self.held(of)
            return held is not None and reason in (held.reason or "")

        until(is_so)

    def rows(self, of: Table) -> dict[Any, Any]:
        with closing_sink(self.opened()) as opened:
            return {stored.key["id"]: stored.row["note"] for stored in opened.sink.scan(of)}

    def wait_rows(self, of: Table, expected: dict[int, str]) -> None:
        def is_there() -> bool:
            try:
                return self.rows(of) == expected
            except LockstepError:  # the job hasn't made its tables yet
                return False

        until(is_there)

    def _progress(self) -> Progress | None:
        with closing_sink(self.opened()) as opened:
            return opened.generations.load_progress()

    def progress(self) -> Progress:
        stored = self._progress()
        assert stored is not None
        return stored

    def wait_watermark(self, lsn: int) -> None:
        def is_reached() -> bool:
            stored = self._progress()
            return stored is not None and stored.watermark_lsn == lsn

        until(is_reached)

    def status(self) -> JobStatus:
        with closing_sink(self.opened()) as opened:
            return job_status(opened.records, 1, now_ms=time.time_ns() // 1_000_000)


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(endpoints, tmp_path)
    yield made
    made.log.close()


def test_a_paused_table_waits_where_it_is_and_goes_on_from_there(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.both(1, "first")
    held = pipeline.both(2, "second")
    with pipeline.job(spark) as job:
        pipeline.wait_watermark(held)
        pipeline.order(Wish.PAUSE, ITEMS)
        pipeline.wait_held(ITEMS, HeldState.PAUSED)
        pipeline.both(1, "later")
        pipeline.write(Delete(ITEMS, {"id": 2}), Put(ITEMS, {"id": 3, "note": "third"}))
        pipeline.wait_rows(ORDERS, {1: "later", 2: "second"})
        assert job.stop() == 0
    assert pipeline.rows(ITEMS) == {1: "first", 2: "second"}
    assert pipeline.progress().watermark_lsn == held
    with pipeline.job(spark) as job:
        pipeline.both(4, "after a restart")
        pipeline.wait_rows(ORDERS, {1: "later", 2: "second", 4: "after a restart"})
        assert pipeline.rows(ITEMS) == {1: "first", 2: "second"}
        assert pipeline.progress().watermark_lsn == held
        pipeline.order(Wish.APPLY, ITEMS)
        pipeline.wait_rows(ITEMS, {1: "later", 3: "third", 4: "after a restart"})
        pipeline.wait_held(ITEMS, None)
        newest = pipeline.both(5, "newest")
        pipeline.wait_watermark(newest)
        assert job.stop() == 0
    assert pipeline.progress().left_at_ms == {}


@pytest.mark.soak
def test_kill_9_while_paused_and_while_resuming_loses_nothing(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.both(1, "first")
    with pipeline.process() as process:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.order(Wish.PAUSE, ITEMS)
        pipeline.wait_held(ITEMS, HeldState.PAUSED)
        for key in range(2, 50):
            pipeline.both(key, "while paused")
        process.kill()
    expected = {1: "first"} | dict.fromkeys(range(2, 50), "while paused")
    pipeline.order(Wish.APPLY, ITEMS)
    with pipeline.process() as process:
        pipeline.wait_held(ITEMS, HeldState.RESUMING)
        process.kill()
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, expected)
        pipeline.wait_rows(ORDERS, expected)
        pipeline.wait_held(ITEMS, None)
        assert job.stop() == 0


@pytest.mark.parametrize("wish", [Wish.PAUSE, pytest.param(Wish.OUT, marks=pytest.mark.soak)])
def test_what_may_have_lost_its_deletes_is_not_resumed_and_its_neighbours_go_on(
    wish: Wish, pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.order(wish, ITEMS)
        pipeline.wait_held(ITEMS, HeldState.PAUSED if wish is Wish.PAUSE else HeldState.OUT)
        pipeline.write(Delete(ITEMS, {"id": 1}), Put(ORDERS, {"id": 2, "note": "meanwhile"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "meanwhile"})
        configure(pipeline.log.kafka.client(), [pipeline.log.topic(ITEMS)], {"delete.retention.ms": "1"})
        pipeline.order(Wish.APPLY, ITEMS)
        failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
        assert failed is not None
        assert "deletes may be missing" in (failed.reason or "")
        assert f"lockstep rebuild {pipeline.sink} --switch" in (failed.hint or "")
        newest = pipeline.write(Put(ORDERS, {"id": 2, "note": "second"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
        assert pipeline.status().has_failed_tables
        # The table is to be applied again, so nobody may hear that the sink has everything.
        assert pipeline.progress().watermark_lsn < newest
        assert job.stop() == 0
    assert pipeline.rows(ITEMS) == {1: "first"}


@pytest.mark.parametrize("has_failed", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_topic_that_was_recreated_while_its_table_was_held_is_not_read_on(
    has_failed: bool, pipeline: Pipeline, spark: SparkSession
) -> None:
    """Its first records would be skipped: its job goes on at its offset in the earlier topic."""
    retyped = table(column("id", "int8"), column("note", "int4"), name=TableName("public", "items"))
    pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        if has_failed:
            pipeline.log.publish_shapes([retyped])
            pipeline.wait_held(ITEMS, HeldState.FAILED)
        else:
            pipeline.order(Wish.OUT, ITEMS)
            pipeline.wait_held(ITEMS, HeldState.OUT)
        pipeline.write(Put(ORDERS, {"id": 2, "note": "meanwhile"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "meanwhile"})
        pipeline.log.recreate_topic(ITEMS)
        pipeline.log.publish_shapes([ITEMS])
        for key in range(3, 30):
            pipeline.write(Put(ITEMS, {"id": key, "note": "of the new topic"}))
        pipeline.order(Wish.APPLY, ITEMS)
        pipeline.wait_refused(ITEMS, "was recreated")
        pipeline.write(Put(ORDERS, {"id": 3, "note": "third"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "meanwhile", 3: "third"})
        assert job.stop() == 0
    assert pipeline.rows(ITEMS) == {1: "first"}


@pytest.mark.parametrize("by_itself", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_table_that_is_tried_again_and_whose_topic_is_gone_holds_up_no_neighbour(
    by_itself: bool, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself or by an order."""
    retyped = table(column("id", "int8"), column("note", "int4"), name=TableName("public", "items"))
    pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        if by_itself:
            pipeline.log.publish_shapes([retyped])
            pipeline.wait_held(ITEMS, HeldState.FAILED)
            assert job.stop() == 0
        else:
            pipeline.order(Wish.PAUSE, ITEMS)
            pipeline.wait_held(ITEMS, HeldState.PAUSED)
    pipeline.log.publish_shapes([ITEMS])
    pipeline.log.delete_topic(ITEMS)
    _try_again_soon(monkeypatch)
    if by_itself:
        pipeline.make_due(ITEMS)
    else:
        pipeline.order(Wish.APPLY, ITEMS)
    with pipeline.job(spark):
        pipeline.wait_refused(ITEMS, f"topic {pipeline.log.topic(ITEMS)} doesn't exist any more")
        # Nobody can say how far a missing topic is.
        newest = pipeline.log.commit([Put(ORDERS, {"id": 2, "note": "second"})], progress=False)
        pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
        failed = pipeline.held(ITEMS)
        assert failed is not None
        assert f"lockstep rebuild {pipeline.sink} --switch" in (failed.next_step(pipeline.sink, str(ITEMS.name)) or "")
        assert pipeline.status().has_failed_tables
        assert pipeline.progress().watermark_lsn < newest
    assert pipeline.rows(ITEMS) == {1: "first"}


_REFUSES = """
create function {schema}.refuses() returns trigger language plpgsql as
$$ begin if new.id > 1 then raise exception 'no room for %', new.note; end if; return new; end $$;
create trigger refuses before insert or update on {table} for each row execute function {schema}.refuses();
"""


def _refuse_items(warehouse: psycopg.Connection, pipeline: Pipeline) -> str:
    """Put a trigger on the warehouse's table that refuses most rows. Returns the schema of its function."""
    found = warehouse.execute(
        "select quote_ident(schemaname), quote_ident(schemaname) || '.' || quote_ident(tablename) from pg_tables"
        " where schemaname like %s and tablename like '%%items%%'",
        (f"%{pipeline.sink}%",),
    ).fetchone()
    assert found is not None
    schema, of_items = found
    warehouse.execute(_REFUSES.format(schema=schema, table=of_items).encode())
    return str(schema)


@pytest.mark.soak
def test_a_table_that_was_refused_in_its_first_batch_may_have_rows_without_their_deletes(
    pipeline: Pipeline, endpoints: Endpoints, spark: SparkSession
) -> None:
    """Nothing of it counts as applied, and rows of it may exist. So it isn't new when it is resumed."""
    lsn = pipeline.write(Put(ORDERS, {"id": 1, "note": "first"}))
    with pipeline.job(spark, ORDERS) as job:
        pipeline.wait_watermark(lsn)
        assert job.stop() == 0
    with pipeline.job(spark) as job, psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
        pipeline.wait_rows(ITEMS, {})
        schema = _refuse_items(warehouse, pipeline)
        pipeline.both(2, "second")
        pipeline.wait_held(ITEMS, HeldState.FAILED)
        pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
        topic = pipeline.log.topic(ITEMS)
        stored = pipeline.progress()
        assert {offset for at, offset in stored.next_offsets.items() if at[0] == topic} == {0}
        assert (topic in stored.left_at_ms, stored.joining) == (True, (topic,))
        warehouse.execute(f"drop function {schema}.refuses cascade".encode())
        configure(pipeline.log.kafka.client(), [topic], {"delete.retention.ms": "1"})
        pipeline.order(Wish.APPLY, ITEMS)
        pipeline.wait_refused(ITEMS, "deletes may be missing")
        assert job.stop() == 0


def _try_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.generations.held_tables.PAUSE_FIRST_S", 1)


@pytest.mark.soak
def test_a_table_that_failed_is_tried_again_by_itself_and_comes_back_whole(
    pipeline: Pipeline, endpoints: Endpoints, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbour goes on meanwhile, and the watermark waits."""
    _try_again_soon(monkeypatch)
    held = pipeline.both(1, "first")
    with pipeline.job(spark) as job, psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(held)
        schema = _refuse_items(warehouse, pipeline)
        for key in (2, 3):
            pipeline.both(key, "meanwhile")
        pipeline.wait_held(ITEMS, HeldState.FAILED)
        pipeline.write(Delete(ITEMS, {"id": 1}), Delete(ITEMS, {"id": 3}))
        for tries in (1, 2, 3):
            pipeline.write(Put(ORDERS, {"id": 10 + tries, "note": "a neighbour"}))
            until(lambda tries=tries: pipeline.tries(ITEMS) >= tries)
        pipeline.wait_rows(ORDERS, {1: "first"} | dict.fromkeys((2, 3), "meanwhile") | _NEIGHBOURS)
        failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
        assert failed is not None
        assert "P0001" in (failed.reason or "")
        assert "it is tried again by itself at" in (failed.next_step(pipeline.sink, str(ITEMS.name)) or "")
        assert pipeline.status().has_failed_tables
        assert (pipeline.rows(ITEMS), pipeline.progress().watermark_lsn) == ({1: "first"}, held)
        warehouse.execute(f"drop function {schema}.refuses cascade".encode())
        pipeline.wait_rows(ITEMS, {2: "meanwhile"})
        pipeline.wait_held(ITEMS, None)
        newest = pipeline.both(4, "newest")
        pipeline.wait_watermark(newest)
        assert pipeline.rows(ITEMS) == {2: "meanwhile", 4: "newest"}
        assert job.stop() == 0
        told = [str(report) for report in job.reports if report["report"] == "TablesHeld"]
        assert any("after 2 tries in vain" in sentences for sentences in told)
    assert pipeline.progress().left_at_ms == {}


_NEIGHBOURS = dict.fromkeys((11, 12, 13), "a neighbour")


@pytest.mark.soak
def test_kill_9_while_a_table_is_tried_again_loses_and_resurrects_nothing(
    pipeline: Pipeline, endpoints: Endpoints, spark: SparkSession
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    lsn = pipeline.both(1, "first")
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
        with pipeline.process() as process:
            pipeline.wait_rows(ITEMS, {1: "first"})
            pipeline.wait_watermark(lsn)
            schema = _refuse_items(warehouse, pipeline)
            pipeline.both(2, "while it is refused")
            pipeline.wait_held(ITEMS, HeldState.FAILED)
            process.kill()
        expected = {1: "first", 2: "while it is refused"}
        for cut in range(3):
            key = 10 + cut
            pipeline.both(key, "while it is tried")
            pipeline.write(Put(ITEMS, {"id": 5, "note": "of short life"}), Delete(ITEMS, {"id": 1}))
            pipeline.write(Delete(ITEMS, {"id": 5}))
            expected[key] = "while it is tried"
            tries = pipeline.tries(ITEMS)
            pipeline.make_due(ITEMS)
            with pipeline.process() as process:
                until(lambda tries=tries: pipeline.is_tried(ITEMS, tries))
                time.sleep(chance.random() * 2)
                if cut == 2:
                    warehouse.execute(f"drop function {schema}.refuses cascade".encode())
                process.kill()
            assert cut == 2 or pipeline.progress().watermark_lsn == lsn
        if pipeline.held(ITEMS) is not None:
            pipeline.make_due(ITEMS)
    with pipeline.job(spark) as job:
        of_items = {key: note for key, note in expected.items() if key != 1}
        pipeline.wait_rows(ITEMS, of_items)
        pipeline.wait_rows(ORDERS, expected)
        pipeline.wait_held(ITEMS, None)
        newest = pipeline.both(20, "newest")
        pipeline.wait_watermark(newest)
        assert pipeline.rows(ITEMS) == of_items | {20: "newest"}
        assert job.stop() == 0


@pytest.mark.soak
def test_a_table_that_may_have_lost_its_deletes_is_not_tried_again(
    pipeline: Pipeline, endpoints: Endpoints, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _try_again_soon(monkeypatch)
    lsn = pipeline.both(1, "first")
    with pipeline.job(spark) as job, psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(lsn)
        schema = _refuse_items(warehouse, pipeline)
        pipeline.both(2, "second")
        pipeline.wait_held(ITEMS, HeldState.FAILED)
        pipeline.write(Delete(ITEMS, {"id": 1}))
        configure(pipeline.log.kafka.client(), [pipeline.log.topic(ITEMS)], {"delete.retention.ms": "1"})
        pipeline.wait_refused(ITEMS, "deletes may be missing")
        warehouse.execute(f"drop function {schema}.refuses cascade".encode())
        failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
        assert failed is not None
        assert failed.retry_at_ms is None
        pipeline.write(Put(ORDERS, {"id": 3, "note": "third"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "second", 3: "third"})
        assert job.stop() == 0
    assert pipeline.rows(ITEMS) == {1: "first"}


@pytest.mark.soak
def test_an_index_that_somebody_has_removed_does_not_come_back_without_its_rows(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _try_again_soon(monkeypatch)
    pipeline = Pipeline(endpoints, tmp_path)
    pipeline.settings = OpenSearchSettings(urls=[endpoints.opensearch_url])
    client = OpenSearch(endpoints.opensearch_url)
    try:
        held = pipeline.both(1, "first")
        with pipeline.job(spark) as job:
            pipeline.wait_rows(ITEMS, {1: "first"})
            pipeline.wait_watermark(held)
            (index,) = client.indices.get(index=f"{pipeline.sink}.*items*")
            client.indices.delete(index=index)
            pipeline.both(2, "second")
            failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
            assert failed is not None
            assert (failed.retry_at_ms, "lockstep rebuild" in (failed.hint or "")) == (None, True)
            pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
            assert pipeline.progress().watermark_lsn == held
            assert job.stop() == 0
    finally:
        client.close()
        pipeline.log.close()


@pytest.mark.parametrize("wish", [Wish.PAUSE, pytest.param(Wish.OUT, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_table_that_somebody_has_removed_while_it_was_held_is_not_taken_up_without_its_rows(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession, wish: Wish
) -> None:
    pipeline = Pipeline(endpoints, tmp_path)
    pipeline.settings = OpenSearchSettings(urls=[endpoints.opensearch_url])
    client = OpenSearch(endpoints.opensearch_url)
    try:
        held = pipeline.both(1, "first")
        with pipeline.job(spark) as job:
            pipeline.wait_rows(ITEMS, {1: "first"})
            pipeline.wait_watermark(held)
            pipeline.order(wish, ITEMS)
            pipeline.wait_held(ITEMS, HeldState.PAUSED if wish is Wish.PAUSE else HeldState.OUT)
            (index,) = client.indices.get(index=f"{pipeline.sink}.*items*")
            client.indices.delete(index=index)
            pipeline.both(2, "second")
            for number in (2, 3):
                pipeline.order(Wish.APPLY, ITEMS)
                until(partial(pipeline.has_done, ITEMS, number))
                failed = pipeline.held(ITEMS)
                assert failed is not None
                assert failed.state is HeldState.FAILED
                assert "its data was removed" in (failed.reason or "")
                assert (failed.retry_at_ms, "lockstep rebuild" in (failed.hint or "")) == (None, True)
            assert not client.indices.exists(index=index)
            pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
            assert job.stop() == 0
        assert pipeline.held(ITEMS) is not None
    finally:
        client.close()
        pipeline.log.close()


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        pytest.param([column("note", "int4")], {}, marks=pytest.mark.soak, id="a column of another type"),
        pytest.param([], {"public.items": "note <> 'x'"}, id="none for its condition"),
    ],
)
def test_a_table_whose_shape_the_sink_refuses_is_held_and_its_neighbours_go_on(
    pipeline: Pipeline, spark: SparkSession, columns: list[Column], where: Mapping[str, str]
) -> None:
    pipeline.settings = pipeline.settings.model_copy(update={"where": where})
    changed = table(column("id", "int8"), *columns, name=TableName("public", "items"))
    lsn = pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.wait_watermark(lsn)
        row: dict[str, JsonValue] = {"id": 2, **dict.fromkeys((each.name for each in columns), 5)}
        pipeline.log.commit([Put(changed, row)], schemas=[SchemaRecord(changed, pipeline.log.lsn)])
        failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
        assert failed is not None
        assert failed.reason
        assert failed.retry_at_ms is None, "to try again is no use"
        pipeline.write(Put(ORDERS, {"id": 2, "note": "second"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
        assert pipeline.progress().watermark_lsn == lsn
        assert job.stop() == 0
    with closing_sink(pipeline.opened()) as opened, pytest.raises(LockstepError, match="can't be switched to"):
        check_none_held(opened.records, pipeline.sink, 1, pipeline.log.table_names, live=None)


def test_a_table_that_the_sink_cannot_hold_is_held_at_the_first_start(pipeline: Pipeline, spark: SparkSession) -> None:
    odd = replace(ITEMS, columns=(*ITEMS.columns, column("_tag")))
    pipeline.settings = WarehouseSettings.model_validate(
        {"url": pipeline.endpoints.warehouse_url, "names": {"public.items": "things"}, "exclude": ["public.items.gone"]}
    )
    gone = replace(odd, columns=(*odd.columns, column("gone")))
    row = {"id": 1, "note": "first", "_tag": "t", "gone": "g"}
    pipeline.log.commit(
        [Put(ORDERS, {"id": 1, "note": "first"}), Put(gone, row)], schemas=[SchemaRecord(gone, pipeline.log.lsn)]
    )
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ORDERS, {1: "first"})
        failed = pipeline.wait_held(ITEMS, HeldState.FAILED)
        assert failed is not None
        assert "has a column '_tag', a name that the warehouse sink needs" in (failed.reason or "")
        assert "`lockstep rebuild" in (failed.hint or ""), "settings of what is there aren't read again"
        pipeline.write(Put(ORDERS, {"id": 2, "note": "second"}))
        pipeline.wait_rows(ORDERS, {1: "first", 2: "second"})
        assert pipeline.status().has_failed_tables
        assert job.stop() == 0


@pytest.mark.soak
def test_a_table_that_is_taken_out_holds_nothing_up_and_its_rows_stay(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.both(1, "first")
    with pipeline.job(spark) as job:
        pipeline.wait_rows(ITEMS, {1: "first"})
        pipeline.order(Wish.OUT, ITEMS)
        pipeline.wait_held(ITEMS, HeldState.OUT)
        newest = pipeline.both(2, "second")
        pipeline.wait_watermark(newest)
        assert pipeline.rows(ITEMS) == {1: "first"}
        pipeline.order(Wish.APPLY, ITEMS)
        pipeline.wait_rows(ITEMS, {1: "first", 2: "second"})
        assert job.stop() == 0


@pytest.mark.soak
def test_truncate_and_shapes_while_paused_and_a_rebuild_in_between(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    name = f"pause{uuid.uuid4().hex[:8]}"
    pipeline = Captures(endpoints, tmp_path, name, sinks=True)
    sink, account = f"{name}_cache", f"{name}.account"
    options = ["--config", str(pipeline.path)]
    try:
        with pipeline.sql() as sql:
            sql.execute(f"insert into {account} (id, owner) select i, 'o' from generate_series(1, 20) i")
            sql.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 20) i")
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        assert pipeline.apply(spark, sink, once=True).finish() == 0
        assert exit_code(["pause", sink, account, *options]) == 0
        assert pipeline.apply(spark, sink, once=True).finish() == 0
        with pipeline.sql() as sql:
            sql.execute(f"truncate {account}")
            sql.execute(f"alter table {account} add column extra text default 'x', drop column tags")
            sql.execute(f"insert into {account} (id, owner) select i, 'new' from generate_series(15, 30) i")
            sql.execute(f"update {name}.entry set note = 'changed'")
        pipeline.wait_published(capture)
        assert pipeline.apply(spark, sink, once=True).finish() == 0
        opened = open_sink(sink, pipeline.config.sinks[sink], 1)
        shapes = read_tables(pipeline.client, name)
        by_name = {shape.name.name: shape for shape in shapes.values()}
        assert {stored.row["note"] for stored in opened.sink.scan(by_name["entry"])} == {"changed"}
        assert {stored.row["owner"] for stored in opened.sink.scan(by_name["account"])} == {"o"}
        built = pipeline.rebuild(spark, sink, switch_over=True).finish()
        assert (built.report.is_equal, built.is_live) == (True, True), "a rebuild has all tables"
        with pytest.raises(LockstepError, match=r"generation 1 of sink .* can't be switched to: .*account is paused"):
            switch_to(pipeline.config, sink, number=None, back=True)
        assert exit_code(["resume", sink, account, *options]) == 0
        job = pipeline.apply(spark, sink)
        until(lambda: not load_held_tables(opened.records, 1))
        assert switch_to(pipeline.config, sink, number=None, back=True) == (2, 1)
        assert job.stop() == 0
        assert {stored.key["id"]: stored.row["owner"] for stored in opened.sink.scan(by_name["account"])} == (
            dict.fromkeys(range(15, 31), "new")
        )
        opened.sink.close()
    finally:
        pipeline.close()
