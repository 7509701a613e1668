"""The jobs against real servers: a log as capture writes it, read by Spark, applied to Redis and the warehouse."""

import itertools
import os
import random
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_names import DEAD_LETTERS, control_topic
from cdc.model.event import JsonValue
from cdc.protocol.control_records import SchemaRecord
from jobs.driver import TAKEN_OVER
from jobs.generations.status import JobState, JobStatus, job_status
from jobs.query.start_position import moved_to
from sinks.contract import Progress
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings, open_sink
from sinks.warehouse import generations
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.builders import column, table
from tests.contract.copies import redis_copy
from tests.databases import until
from tests.events import Change, Delete, Log, Put, kafka_settings
from tests.job_process import ENDING, JobProcess, run_sinks, spark_settings
from tests.opened import closing_sink
from tests.spark_here import Job
from tests.spark_session import python_workers

pytestmark = [pytest.mark.live, pytest.mark.busy]

TOO_LONG = "x" * 20_000  # for the cache's max_value_bytes
ORDERS = table(column("id", "int8"), column("note"), column("amount", "numeric"))
Rows = dict[JsonValue, Mapping[str, JsonValue]]


class Pipeline:
    """A log, the sinks that follow it, and the rows that they must hold."""

    def __init__(self, endpoints: Endpoints, directory: Path) -> None:
        self.name = f"jobs{uuid.uuid4().hex[:8]}"
        self.endpoints = endpoints
        self.directory = directory
        self.log = Log(kafka_settings(endpoints.kafka_bootstrap), self.name, [ORDERS])
        self.cache = RedisSettings.model_validate(
            {"url": f"{endpoints.redis_url}?socket_timeout=1", "prefix": self.name, "max_value_bytes": 10_000}
        )
        # The warehouse's bookkeeping is by the sink's name, so every test has one of its own.
        self.warehouse_name = f"{self.name}w"
        self.warehouse = WarehouseSettings.model_validate({"url": endpoints.warehouse_url})
        self.expected: Rows = {}

    def write(self, *changes: Change) -> int:
        """Commit these changes and expect them."""
        lsn = self.log.commit(changes, commit_time_ms=time.time_ns() // 1_000_000)
        for change in changes:
            match change:
                case Put(_, row):
                    self.expected[row["id"]] = row
                case Delete(_, key):
                    self.expected.pop(key["id"], None)
        return lsn

    def write_traffic(self, transactions: int, *, keys: int = 200, seed: int = 1) -> int:
        chance = random.Random(seed)
        lsn = 0
        for number in range(transactions):
            changes: dict[int, Change] = {}
            for _ in range(chance.randint(1, 20)):
                key = chance.randrange(keys)
                gone = chance.random() < 0.2
                changes[key] = (
                    Delete(ORDERS, {"id": key}) if gone else put(key, f"note {number}", amount=f"{number}.10")
                )
            lsn = self.write(*changes.values())
        return lsn

    def arguments(self, *, sinks: Mapping[str, SinkSettings] | None = None, **settings: Any) -> dict[str, Any]:
        """The arguments of ``run_sinks`` for these sinks; ``settings`` are Spark's."""
        return {
            "pipeline": self.name,
            "kafka": self.log.kafka,
            "tables": self.log.table_names,
            "sinks": sinks or {"cache": self.cache},
            "spark": spark_settings(self.directory, **settings),
        }

    def job(self, spark: SparkSession, **arguments: Any) -> Job:
        return Job(spark, partial(run_sinks, **self.arguments(**arguments)))

    def apply_once(self, spark: SparkSession, **arguments: Any) -> Job:
        """Apply what the log holds now. Returns when it is done."""
        job = Job(spark, partial(run_sinks, **self.arguments(**arguments), once=True))
        job.finish()
        return job

    def process(self, *, once: bool = False, **arguments: Any) -> JobProcess:
        return JobProcess(**self.arguments(**arguments), once=once)

    def read_again(self, name: str = "cache", settings: SinkSettings | None = None) -> None:
        """Make the next job read the log from its beginning, as `lockstep apply --from-lsn 0/0` does."""
        opened = open_sink(name, settings or self.cache, 1)
        try:
            opened.sink.claim()
            stored = opened.generations.load_progress()
            assert stored is not None
            opened.generations.save_progress(moved_to(stored, dict.fromkeys(stored.next_offsets, 0)), whole=())
        finally:
            opened.sink.close()

    def rows(self, name: str = "cache", settings: SinkSettings | None = None) -> Rows:
        with closing(open_sink(name, settings or self.cache, 1).sink) as sink:
            return {stored.key["id"]: stored.row for stored in sink.scan(ORDERS)}

    def job_status(self) -> JobStatus:
        with closing_sink(open_sink("cache", self.cache, 1)) as opened:
            return job_status(opened.records, 1, now_ms=time.time_ns() // 1_000_000)

    def progress(self) -> Progress:
        with closing_sink(open_sink("cache", self.cache, 1)) as opened:
            stored = opened.generations.load_progress()
        assert stored is not None
        return stored


def put(key: int, note: str = "", *, amount: str = "1.10") -> Put:
    return Put(ORDERS, {"id": key, "note": note, "amount": amount})


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(endpoints, tmp_path)
    yield pipeline
    pipeline.log.close()


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches end where the log ends, like those of sinks with many partitions."""
    monkeypatch.setattr("jobs.batch_limits.PARTITIONS_MAX", 0)


def test_a_running_job_follows_the_log_and_stops_when_asked(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1, "first"), put(2, "second"))
    with pipeline.job(spark) as job:
        job.wait_for("BatchApplied")
        pipeline.write(put(3, "third"))
        # Compaction leaves only the tombstone of a deleted row; its tag is in the header.
        lsn = pipeline.write(Delete(ORDERS, {"id": 1}, tombstone_only=True))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows() == pipeline.expected
        # Nothing but a heartbeat: no batch runs, and the watermark moves all the same.
        lsn = pipeline.write()
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.progress().watermark_lsn == lsn
        assert job.stop() == 0
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]


@pytest.mark.soak
def test_a_job_purges_what_was_deleted_and_the_log_read_again_brings_none_of_it_back(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "PURGE_S", 0.0)
    monkeypatch.setattr(generations, "IDLE_S", 0.0)
    purging = pipeline.warehouse.model_copy(update={"synced_at": True, "purge_deleted_after_days": 1e-9})
    sinks = {pipeline.warehouse_name: purging}
    query = f"select count(*) filter (where _deleted), count(*) from {pipeline.warehouse_name}_g1.orders"

    def stored() -> tuple[int, int]:
        with psycopg.connect(pipeline.endpoints.warehouse_dsn) as warehouse:
            found = warehouse.execute(query).fetchone()
        assert found is not None
        return found

    pipeline.write_traffic(50)
    with pipeline.job(spark, sinks=sinks) as job:
        lsn = pipeline.write(*(Delete(ORDERS, {"id": key}) for key in range(100)))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        # With the progress after the deletions'. A batch may have been under way, so not always with the first.
        for _ in range(50):
            lsn = pipeline.write()
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            if not stored()[0]:
                break
        assert stored() == (0, len(pipeline.expected))
        assert job.stop() == 0
    pipeline.read_again(pipeline.warehouse_name, purging)
    again = pipeline.apply_once(spark, sinks=sinks)
    assert (again.poll(), again.total("applied"), again.total("rejected")) == (0, 0, 0)
    assert again.total("stale") > len(pipeline.expected)
    assert stored() == (0, len(pipeline.expected))
    assert pipeline.rows(pipeline.warehouse_name, purging) == pipeline.expected


SIZES = pytest.mark.parametrize("settings", [{}, {"small_batch_rows": 0}], ids=["small", "large"])


@SIZES
@pytest.mark.soak
@pytest.mark.usefixtures("ending")
def test_an_idle_job_rests_and_goes_on_when_something_comes(
    pipeline: Pipeline, spark: SparkSession, settings: dict[str, int]
) -> None:
    lsn = pipeline.write(put(1))
    with pipeline.job(spark, **settings) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        for number in (2, 3):
            lsn = pipeline.write(put(number))
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            assert pipeline.rows() == pipeline.expected
        assert job.stop() == 0
    assert job.total("rows") == 3


@pytest.mark.soak
@pytest.mark.usefixtures("ending")
def test_nothing_of_a_topic_that_was_recreated_during_a_rest_is_applied(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.query.threads.SCHEMA_LOOK_S", 3600.0)  # only the batch itself can notice it
    lsn = pipeline.write(put(1, "before"))
    with pipeline.job(spark) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        pipeline.log.recreate_topic(ORDERS)
        # So many that each partition is longer than before.
        pipeline.log.commit([put(number, "after") for number in range(2, 60)])
        assert "was recreated" in job.wait_for("SinkFailed")["error"]
    assert pipeline.rows() == pipeline.expected


@pytest.mark.parametrize("partitions_max", [0, 200], ids=["batches end", "batches go on"])
@pytest.mark.soak
def test_no_watermark_is_raised_by_what_a_recreated_topic_has_got(
    partitions_max: int, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets begin again: all of them are below those that were applied."""
    monkeypatch.setattr("jobs.batch_limits.PARTITIONS_MAX", partitions_max)
    monkeypatch.setattr("jobs.query.threads.SCHEMA_LOOK_S", 3600.0)  # nobody else looks for it
    lsn = pipeline.write(*(put(number, "before") for number in range(1, 60)))
    with pipeline.job(spark) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        pipeline.log.recreate_topic(ORDERS)
        pipeline.log.commit([put(60, "after")])
        assert "was recreated" in job.wait_for("SinkFailed")["error"]
    assert pipeline.progress().watermark_lsn == lsn


@pytest.mark.soak
def test_a_killed_job_reads_nothing_again_that_it_had_stored(pipeline: Pipeline, spark: SparkSession) -> None:
    """Read again, rejections that somebody has closed since would be open again."""
    pipeline.log.commit([put(3, TOO_LONG)])
    lsn = pipeline.write(put(1), put(2))
    with pipeline.process() as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        job.kill()
    pipeline.write(put(2, "again"), Delete(ORDERS, {"id": 1}))
    after = pipeline.apply_once(spark)
    assert (after.total("rows"), after.total("stale"), after.total("rejected")) == (3, 0, 0)
    assert pipeline.rows() == pipeline.expected
    assert not list(pipeline.directory.rglob("offsets")), "a sink has its progress, and nothing else"


def test_a_job_that_is_killed_in_a_batch_reads_it_again(pipeline: Pipeline, spark: SparkSession) -> None:
    sinks = {pipeline.warehouse_name: pipeline.warehouse}
    pipeline.write(put(1))
    assert pipeline.apply_once(spark, sinks=sinks).poll() == 0
    known = open_sink(pipeline.warehouse_name, pipeline.warehouse, 1)
    pipeline.write(put(1, "second"), put(2))
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as holder:
        holder.execute(f"lock table {pipeline.warehouse_name}_g1.orders in exclusive mode")
        with pipeline.process(sinks=sinks) as job:
            until(lambda: _is_waiting(pipeline, holder))
            job.kill()
    stored = known.generations.load_progress()
    known.sink.close()
    assert stored is not None
    after = pipeline.apply_once(spark, sinks=sinks)
    assert (after.poll(), after.total("rows")) == (0, 2)
    assert pipeline.rows(pipeline.warehouse_name, pipeline.warehouse) == pipeline.expected


def _is_waiting(pipeline: Pipeline, holder: psycopg.Connection[Any]) -> bool:
    """Whether somebody waits for a lock that this connection holds."""
    query = "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as warehouse:
        found = warehouse.execute(query, [holder.info.backend_pid]).fetchone()
    return found is not None and found[0] > 0


def test_reading_the_log_again_from_its_start_changes_nothing(pipeline: Pipeline, spark: SparkSession) -> None:
    lsn = pipeline.write_traffic(50)
    sinks = {"cache": pipeline.cache, pipeline.warehouse_name: pipeline.warehouse}
    assert pipeline.apply_once(spark, sinks=sinks).poll() == 0
    assert pipeline.progress().watermark_lsn == lsn
    for name, settings in sinks.items():
        pipeline.read_again(name, settings)
    job = pipeline.apply_once(spark, sinks=sinks)
    assert job.poll() == 0
    assert (job.total("applied"), job.total("rejected")) == (0, 0)
    assert job.total("stale") > 0
    assert pipeline.rows() == pipeline.rows(pipeline.warehouse_name, pipeline.warehouse) == pipeline.expected
    assert pipeline.apply_once(spark, sinks=sinks).total("rows") == 0


@pytest.mark.soak
def test_a_rejection_in_the_middle_of_a_long_batch_is_kept(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark) as job:
        job.wait_for("BatchApplied", batch_id=0)
        pipeline.write(put(2))
        lsn = pipeline.log.commit([put(3, "x" * 20_000)])
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.progress().rejected == 1
        letters = read_compacted(pipeline.log.kafka.client(), control_topic(pipeline.name, DEAD_LETTERS))
        assert len(letters) == 1
        assert pipeline.rows() == pipeline.expected
        lsn = pipeline.write(put(3, "short"))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        # Void at the end of the batch that says so.
        pipeline.write(put(4))
        assert job.stop() == 0
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.rows() == pipeline.expected
    assert not read_compacted(pipeline.log.kafka.client(), control_topic(pipeline.name, DEAD_LETTERS))


@pytest.mark.crash
def test_a_worker_that_is_killed_in_a_long_batch_is_replaced(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark) as job:
        job.wait_for("BatchApplied", batch_id=0)
        lsn = pipeline.write(put(2, "before"), Delete(ORDERS, {"id": 1}))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        for worker in python_workers(os.getpid()):
            worker.kill()
        lsn = pipeline.write(put(3, "after"))
        job.wait_for("SinkWaiting")
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows() == pipeline.expected
        assert job.stop() == 0


@pytest.mark.crash
@pytest.mark.soak
def test_workers_of_a_driver_that_was_killed_in_a_long_batch_change_nothing_and_end(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(put(1))
    with pipeline.process() as killed:
        killed.wait_for("BatchApplied", batch_id=0)
        lsn = pipeline.write(put(2, "before"), Delete(ORDERS, {"id": 1}))
        killed.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        workers = python_workers(killed.pid)
        assert workers
        for worker in workers:
            worker.suspend()
        pipeline.write(put(3, "not seen yet"))
        killed.kill()
    try:
        with pipeline.job(spark) as job:
            lsn = pipeline.write(put(3, "after"), Delete(ORDERS, {"id": 2}))
            job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
            assert pipeline.rows() == pipeline.expected
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.resume()
            psutil.wait_procs(workers, timeout=300)
            assert not any(worker.is_running() for worker in workers)
            assert pipeline.rows() == pipeline.expected
            assert job.stop() == 0
    finally:
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()


def test_a_long_batch_of_a_job_that_was_taken_over_is_fenced(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    sinks = {pipeline.warehouse_name: pipeline.warehouse}
    with pipeline.job(spark, sinks=sinks) as job:
        job.wait_for("BatchApplied", batch_id=0)
        with closing(open_sink(pipeline.warehouse_name, pipeline.warehouse, 1).sink) as other:
            other.claim()
        pipeline.write(put(2, "too late"))
        assert job.wait_ended(180) == TAKEN_OVER
    assert pipeline.rows(pipeline.warehouse_name, pipeline.warehouse).keys() == {1}


@pytest.mark.crash
def test_the_older_of_two_jobs_ends_and_the_newer_one_goes_on(pipeline: Pipeline, spark: SparkSession) -> None:
    """The destination refuses neither of them."""
    pipeline.write(put(1))
    with pipeline.process() as older:
        older.wait_for("BatchApplied")
        with pipeline.job(spark) as newer:
            newer.wait_for("SinkStarted")
            for number in itertools.count(2):
                lsn = pipeline.write(put(number))
                if older.poll() is not None:
                    break
                time.sleep(0.05)
            assert older.finish() == TAKEN_OVER
            newer.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
            assert pipeline.rows() == pipeline.expected
            assert newer.stop() == 0
    status = pipeline.job_status()  # nobody has stopped the older one
    assert (status.state, "newer job had taken its place" in (status.reason or "")) == (JobState.STOPPED, True)
    assert "another job has begun to apply" in older.wait_for("SinkFailed")["error"]


def test_a_topic_that_was_recreated_is_refused_and_the_other_sinks_go_on(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(put(1, "before"))
    assert pipeline.apply_once(spark).poll() == 0
    pipeline.log.recreate_topic(ORDERS)
    pipeline.write(put(2, "after"))
    job = pipeline.apply_once(spark, sinks={"cache": pipeline.cache, pipeline.warehouse_name: pipeline.warehouse})
    assert job.poll() == 1
    failure = job.wait_for("SinkFailed", sink="cache")
    assert "was recreated" in failure["error"]
    assert "lockstep snapshot table TABLE" in failure["error"]
    job.wait_for("SinkStopped", sink=pipeline.warehouse_name)
    assert list(pipeline.rows(pipeline.warehouse_name, pipeline.warehouse)) == [2]


@pytest.mark.soak
def test_a_log_that_kafka_has_an_earlier_copy_of_is_refused_before_and_after_a_recovery(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(put(1))
    assert pipeline.apply_once(spark).poll() == 0
    # As if it had read records that this copy of Kafka lacks.
    opened = open_sink("cache", pipeline.cache, 1)
    stored = opened.generations.load_progress()
    assert stored is not None
    ahead = {at: offset + 10 for at, offset in stored.next_offsets.items()}
    opened.generations.save_progress(replace(stored, next_offsets=ahead))
    opened.sink.close()
    for _ in range(2):
        job = pipeline.apply_once(spark)
        assert job.poll() == 1
        assert "Kafka was put back to an earlier copy" in job.wait_for("SinkFailed")["error"]
        pipeline.log.begin_epoch()
        pipeline.write(*(put(key, "copied") for key in range(100)))


def test_a_destination_that_was_put_back_is_read_for_again_from_there(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1, "before"), put(2))
    assert pipeline.apply_once(spark).poll() == 0
    put_back = redis_copy(pipeline.endpoints.redis_url, pipeline.name)
    pipeline.write(put(1, "after"), Delete(ORDERS, {"id": 2}), put(3))
    assert pipeline.apply_once(spark).poll() == 0
    put_back()
    assert pipeline.rows() != pipeline.expected
    again = pipeline.apply_once(spark)
    assert (again.poll(), again.total("applied"), again.total("stale")) == (0, 3, 0)
    assert pipeline.rows() == pipeline.expected
    emptied = pipeline.cache.model_copy(update={"prefix": f"{pipeline.name}-emptied"})
    assert pipeline.apply_once(spark, sinks={"cache": emptied}).poll() == 0
    assert pipeline.rows("cache", emptied) == pipeline.expected


def test_a_log_that_has_lost_what_a_sink_has_still_to_read_is_refused(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    assert pipeline.apply_once(spark).poll() == 0
    _lose_records(pipeline)
    assert "were deleted" in pipeline.apply_once(spark).wait_for("SinkFailed")["error"]
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_a_log_that_loses_what_a_running_sink_has_still_to_read_stops_it(pipeline: Pipeline) -> None:
    """A task that goes on would already have the records."""
    lsn = pipeline.write(put(1))
    with pipeline.process(conf=ENDING) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        os.kill(job.pid, signal.SIGSTOP)
        _lose_records(pipeline)
        os.kill(job.pid, signal.SIGCONT)
        assert "no longer holds" in job.wait_for("SinkFailed")["error"]
    assert pipeline.rows() == pipeline.expected


def _lose_records(pipeline: Pipeline) -> None:
    pipeline.log.commit([put(key) for key in range(2, 50)])
    pipeline.log.delete_records(ORDERS)
    pipeline.log.commit([put(key) for key in range(50, 100)])


@pytest.mark.soak
def test_a_new_column_is_prepared_before_its_first_row(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1, "before"))
    wider = table(*ORDERS.columns, column("extra"))
    with pipeline.job(spark, sinks={pipeline.warehouse_name: pipeline.warehouse}) as job:
        job.wait_for("BatchApplied")
        row = {"id": 2, "note": "after", "amount": "2", "extra": "new"}
        lsn = pipeline.log.commit([Put(wider, row)], schemas=[SchemaRecord(wider, pipeline.log.lsn)])
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    with closing(open_sink(pipeline.warehouse_name, pipeline.warehouse, 1).sink) as sink:
        assert {stored.row["id"]: stored.row["extra"] for stored in sink.scan(wider)} == {1: None, 2: "new"}
