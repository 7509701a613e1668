"""The jobs against real servers: a log as capture writes it, read by Spark, applied to Redis and the warehouse."""

import gc
import itertools
import json
import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
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
from jobs.dead_letters.store import DeadLetters
from jobs.driver import TAKEN_OVER, run_sinks
from jobs.generations.lease import pause_request_name, wait_for_pause
from jobs.generations.record import list_generations
from jobs.generations.status import JobState, JobStatus, job_status
from jobs.query.checkpoint import Checkpoint, checkpoint_location
from jobs.query.long_batches import SLOTS
from jobs.query.sink_plan import NO_TASK_LEFT
from jobs.spark.session import STOP_TIMEOUT_MS
from sinks.contract import Progress
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings, open_sink
from sinks.warehouse import generations
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.builders import column, table
from tests.databases import Database, until, url_of
from tests.events import Change, Delete, Log, Put, kafka_settings
from tests.job_process import JobProcess, spark_settings
from tests.spark_here import Job
from tests.spark_session import python_workers
from tests.topics import configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

TOO_LONG = "x" * 20_000  # for the cache's max_value_bytes
ORDERS = table(column("id", "int8"), column("note"), column("amount", "numeric"))
Rows = dict[JsonValue, Mapping[str, JsonValue]]


class Pipeline:
    """A log, the sinks that follow it, and what they have to hold."""

    def __init__(self, endpoints: Endpoints, directory: Path) -> None:
        self.name = f"jobs{uuid.uuid4().hex[:8]}"
        self.endpoints = endpoints
        self.directory = directory
        self.log = Log(kafka_settings(endpoints.kafka_bootstrap), self.name, [ORDERS])
        self.cache = RedisSettings.model_validate(
            {"url": endpoints.redis_url, "prefix": self.name, "timeout_s": 1, "max_value_bytes": 10_000}
        )
        # The warehouse keeps its books by the sink's name, so every test has one of its own.
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
        """Random changes of random rows."""
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
        """What ``run_sinks`` takes for these sinks; ``settings`` are Spark's."""
        return {
            "pipeline": self.name,
            "kafka": self.log.kafka,
            "tables": self.log.table_names,
            "sinks": sinks or {"cache": self.cache},
            "spark": spark_settings(self.directory, **settings),
        }

    def job(self, spark: SparkSession, **arguments: Any) -> Job:
        """A job in this process."""
        return Job(spark, partial(run_sinks, **self.arguments(**arguments)))

    def apply_once(self, spark: SparkSession, **arguments: Any) -> Job:
        """The same for what the log holds now. Returns when it is done."""
        job = Job(spark, partial(run_sinks, **self.arguments(**arguments), once=True))
        job.finish()
        return job

    def process(self, *, once: bool = False, **arguments: Any) -> JobProcess:
        """A job in a process of its own."""
        return JobProcess(**self.arguments(**arguments), once=once)

    def checkpoint(self) -> str:
        directory = spark_settings(self.directory).checkpoint_directory
        return checkpoint_location(directory, pipeline=self.name, sink="cache", generation=1)

    def rows(self, name: str = "cache", settings: SinkSettings | None = None) -> Rows:
        sink = open_sink(name, settings or self.cache, 1).sink
        try:
            return {stored.key["id"]: stored.row for stored in sink.scan(ORDERS)}
        finally:
            sink.close()

    def job_status(self) -> JobStatus:
        opened = open_sink("cache", self.cache, 1)
        try:
            return job_status(opened.records, 1, now_ms=time.time_ns() // 1_000_000)
        finally:
            opened.sink.close()

    def progress(self) -> Progress:
        opened = open_sink("cache", self.cache, 1)
        try:
            stored = opened.generations.load_progress()
        finally:
            opened.sink.close()
        assert stored is not None
        return stored


def put(key: int, note: str = "", *, amount: str = "1.10") -> Put:
    return Put(ORDERS, {"id": key, "note": note, "amount": amount})


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(endpoints, tmp_path)
    yield pipeline
    pipeline.log.close()


def test_the_log_is_applied_to_every_sink(pipeline: Pipeline, spark: SparkSession) -> None:
    lsn = pipeline.write_traffic(50)
    sinks = {"cache": pipeline.cache, pipeline.warehouse_name: pipeline.warehouse}
    assert pipeline.apply_once(spark, sinks=sinks).poll() == 0
    assert pipeline.rows() == pipeline.expected
    assert pipeline.rows(pipeline.warehouse_name, pipeline.warehouse) == pipeline.expected
    assert pipeline.progress().watermark_lsn == lsn


@pytest.mark.parametrize("trigger", [pytest.param("micro-batch", marks=pytest.mark.soak), "continuous"])
def test_a_running_job_follows_the_log_and_stops_when_asked(
    pipeline: Pipeline, spark: SparkSession, trigger: str
) -> None:
    pipeline.write(put(1, "first"), put(2, "second"))
    with pipeline.job(spark, trigger=trigger) as job:
        job.wait_for("StatusReport")
        pipeline.write(put(3, "third"))
        # Compaction leaves the tombstone of a deleted row alone; its tag is in the header.
        lsn = pipeline.write(Delete(ORDERS, {"id": 1}, tombstone_only=True))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows() == pipeline.expected
        # Nothing but a heartbeat: no batch runs, and the watermark moves all the same.
        lsn = pipeline.write()
        job.wait_for("WatermarkRaised", watermark_lsn=lsn)
        assert pipeline.progress().watermark_lsn == lsn
        assert job.stop() == 0
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]


@pytest.mark.soak
def test_a_limit_holds_for_its_sink_alone_and_whoever_stops_waits_for_none(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    limited = pipeline.cache.model_copy(update={"events_per_s": 40})
    lsn = pipeline.write(*(put(key) for key in range(400)))
    began = time.monotonic()
    with pipeline.job(spark, sinks={"cache": limited, pipeline.warehouse_name: pipeline.warehouse}) as job:
        job.wait_until(lambda seen: seen.get("sink") == pipeline.warehouse_name and seen.get("watermark_lsn") == lsn)
        assert pipeline.rows(pipeline.warehouse_name, pipeline.warehouse) == pipeline.expected
        for _ in range(3):
            job.wait_for("StatusReport", since=len(job.reports), sink="cache")
        elapsed_s = time.monotonic() - began
        held = pipeline.rows()
        # A second's worth at once, and no more than the limit after that.
        assert len(held) <= 40 * (elapsed_s + 2)
        assert held.items() < pipeline.expected.items()
        assert job.stop() == 0
    batches = [seen["rows"] for seen in job.reports if seen["report"] == "StatusReport" and seen["sink"] == "cache"]
    assert max(batches) <= 40 + 4  # Spark rounds up for each partition
    assert [seen["reason"] for seen in job.reports if seen["report"] == "KeepsMicroBatches"] == [
        "events_per_s is kept from batch to batch"
    ]
    left = 400 - len(pipeline.rows())
    began = time.monotonic()
    assert pipeline.apply_once(spark, sinks={"cache": limited}).poll() == 0
    assert time.monotonic() - began >= left / 40 - 2, "what the log holds now has the same limit"
    assert pipeline.rows() == pipeline.expected


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
        # With the progress after that of the deletions. A batch may have been under way, so not with the first, always.
        for _ in range(50):
            lsn = pipeline.write()
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            if not stored()[0]:
                break
        assert stored() == (0, len(pipeline.expected))
        assert job.stop() == 0
    again = pipeline.apply_once(spark, sinks=sinks, checkpoint_directory=str(pipeline.directory / "another"))
    assert (again.poll(), again.total("applied"), again.total("rejected")) == (0, 0, 0)
    assert again.total("stale") > len(pipeline.expected)
    assert stored() == (0, len(pipeline.expected))
    assert pipeline.rows(pipeline.warehouse_name, purging) == pipeline.expected


SIZES = pytest.mark.parametrize("settings", [{}, {"small_batch_rows": 0}], ids=["small", "large"])


@SIZES
@pytest.mark.soak
def test_an_idle_job_rests_and_goes_on_when_something_comes(
    pipeline: Pipeline, spark: SparkSession, settings: dict[str, int]
) -> None:
    """Spark's batch is committed when the rest is over: the next one shows that it was in one."""
    committed = Checkpoint(spark, pipeline.checkpoint()).committed
    lsn = pipeline.write(put(1))
    with pipeline.job(spark, trigger="micro-batch", **settings) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        for number in (2, 3):
            assert committed() != pipeline.progress().next_offsets
            lsn = pipeline.write(put(number))
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            assert pipeline.rows() == pipeline.expected
        assert job.stop() == 0
    # An orderly stop leaves nothing to be read again.
    assert committed() == pipeline.progress().next_offsets


@pytest.mark.soak
def test_a_batch_of_several_windows_is_committed_before_the_query_rests(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    """Read again after a long rest, an earlier window would bring back for a while what a later one deletes."""
    committed = Checkpoint(spark, pipeline.checkpoint()).committed
    lsn = pipeline.write(*(put(number, "n" * 100_000) for number in range(60)))
    with pipeline.job(spark, trigger="micro-batch", window_mb=1) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        until(lambda: committed() == pipeline.progress().next_offsets)
        assert job.stop() == 0


@pytest.mark.soak
def test_a_job_that_has_applied_all_starts_no_query_before_something_comes(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    lsn = pipeline.write(put(1))
    assert pipeline.apply_once(spark).poll() == 0
    with pipeline.job(spark) as job:
        job.wait_for("SinkStarted")
        assert not spark.streams.active
        lsn = pipeline.write(put(2))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows() == pipeline.expected
        assert job.stop() == 0
    with pipeline.job(spark) as job:
        job.wait_for("SinkStarted")
        assert job.stop() == 0


@pytest.mark.soak
def test_a_job_that_is_to_read_again_does_so_though_nothing_comes(pipeline: Pipeline, spark: SparkSession) -> None:
    lsn = pipeline.write(put(1), put(2))
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.progress().watermark_lsn == lsn
    shutil.rmtree(pipeline.checkpoint())
    with pipeline.job(spark) as job:
        job.wait_until(lambda seen: seen.get("stale", 0) > 0)
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
@SIZES
def test_a_job_that_rests_gets_rows_without_a_progress_record(
    pipeline: Pipeline, spark: SparkSession, settings: dict[str, int]
) -> None:
    lsn = pipeline.write(put(1))
    with pipeline.job(spark, trigger="micro-batch", **settings) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        pipeline.log.commit([put(2)], progress=False)
        until(lambda: set(pipeline.rows()) == {1, 2})
        assert job.stop() == 0


@pytest.mark.soak
def test_batches_that_reject_or_close_are_committed_at_once(pipeline: Pipeline, spark: SparkSession) -> None:
    """Read again after a kill, they would open rejections that somebody has closed since."""
    committed = Checkpoint(spark, pipeline.checkpoint()).committed
    lsn = pipeline.log.commit([put(1, TOO_LONG)])
    with pipeline.job(spark) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        until(lambda: committed() == pipeline.progress().next_offsets)
        lsn = pipeline.write(put(1, "short"))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        until(lambda: committed() == pipeline.progress().next_offsets)
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected
    assert job.total("rejected") == 1


@pytest.mark.soak
def test_a_rejection_that_somebody_has_closed_stays_closed_after_a_kill(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    committed = Checkpoint(spark, pipeline.checkpoint()).committed
    lsn = pipeline.log.commit([put(1, TOO_LONG)])
    job = pipeline.process()
    job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
    until(lambda: committed() == pipeline.progress().next_offsets)
    job.kill()
    topic = pipeline.log.topic(ORDERS)
    dead_letters = DeadLetters(pipeline.log.kafka.client(), pipeline.name, sink="cache", generation=1)
    assert dead_letters.read([topic])
    dead_letters.close(dead_letters.read([topic]))
    assert pipeline.apply_once(spark).total("rejected") == 0
    assert not dead_letters.read([topic])


@pytest.mark.soak
def test_batches_over_topics_that_lose_records_are_short(pipeline: Pipeline, spark: SparkSession) -> None:
    """Spark commits a batch's range when it ends: after a kill, that has to be there to be read again."""
    day_ms = 24 * 60 * 60 * 1000
    settings = {"cleanup.policy": "compact,delete", "retention.ms": f"{day_ms}"}
    configure(pipeline.log.kafka.client(), [pipeline.log.topic(ORDERS)], settings)
    committed = Checkpoint(spark, pipeline.checkpoint()).committed
    lsn = pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=3600.0) as job:
        for number in (2, 3):
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            until(lambda: committed() == pipeline.progress().next_offsets)
            lsn = pipeline.write(put(number))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_nothing_of_a_topic_that_was_recreated_during_a_rest_is_applied(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.query.threads._SCHEMA_LOOK_S", 3600.0)  # only the batch itself can notice it
    lsn = pipeline.write(put(1, "before"))
    with pipeline.job(spark, trigger="micro-batch") as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        pipeline.log.recreate_topic(ORDERS)
        # So many that each partition is longer than it was.
        pipeline.log.commit([put(number, "after") for number in range(2, 60)])
        assert "was recreated" in job.wait_for("SinkFailed")["error"]
    assert pipeline.rows() == pipeline.expected


@pytest.mark.parametrize("trigger", ["micro-batch", "continuous"])
@pytest.mark.soak
def test_no_watermark_is_raised_by_what_a_recreated_topic_has_got(
    trigger: str, pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets begin again: all of them are below those that were applied."""
    monkeypatch.setattr("jobs.query.threads._SCHEMA_LOOK_S", 3600.0)  # nobody else looks for it
    lsn = pipeline.write(*(put(number, "before") for number in range(1, 60)))
    with pipeline.job(spark, trigger=trigger) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        pipeline.log.recreate_topic(ORDERS)
        pipeline.log.commit([put(60, "after")])
        assert "was recreated" in job.wait_for("SinkFailed")["error"]
    assert pipeline.progress().watermark_lsn == lsn


@pytest.mark.soak
def test_a_job_that_is_killed_in_a_rest_reads_its_last_batch_again(pipeline: Pipeline, spark: SparkSession) -> None:
    lsn = pipeline.write(put(1), put(2))
    job = pipeline.process(trigger="micro-batch")
    job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
    job.kill()
    pipeline.write(put(2, "again"), Delete(ORDERS, {"id": 1}))
    after = pipeline.apply_once(spark)
    assert (after.total("rows"), after.total("stale")) == (5, 2)
    assert pipeline.rows() == pipeline.expected


@pytest.mark.crash
@pytest.mark.soak
def test_a_killed_job_goes_on_and_nothing_is_lost_or_taken_back(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write_traffic(300)
    with pipeline.process(trigger="micro-batch", max_offsets_per_trigger=300) as job:
        job.wait_for("StatusReport", batch_id=2)
        job.kill()
    lsn = pipeline.write_traffic(20, seed=2)
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.rows() == pipeline.expected
    assert pipeline.progress().watermark_lsn == lsn


@pytest.mark.crash
@pytest.mark.soak
def test_a_job_that_was_killed_while_it_wrote_its_first_offsets_goes_on(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    lsn = pipeline.write(put(1), put(2))
    directory = pipeline.arguments()["spark"].checkpoint_directory
    checkpoint = checkpoint_location(directory, pipeline=pipeline.name, sink="cache", generation=1)
    left = Path(checkpoint) / "offsets" / f".0.{uuid.uuid4()}.tmp"  # as Hadoop's file systems name it
    left.parent.mkdir(parents=True)
    left.write_text("v1\n")
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.rows() == pipeline.expected
    assert pipeline.progress().watermark_lsn == lsn


def test_reading_the_log_again_from_its_start_changes_nothing(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write_traffic(50)
    assert pipeline.apply_once(spark).poll() == 0
    job = pipeline.apply_once(spark, checkpoint_directory=str(pipeline.directory / "another"))
    assert job.poll() == 0
    assert (job.total("applied"), job.total("rejected")) == (0, 0)
    assert job.total("stale") > 0
    assert pipeline.rows() == pipeline.expected


def test_a_rejected_event_is_kept_and_its_neighbours_are_applied(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1, "fine"))
    poison = put(2, "x" * 20_000)
    pipeline.log.commit([poison])
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.rows() == pipeline.expected
    assert pipeline.progress().rejected == 1
    letters = read_compacted(pipeline.log.kafka.client(), control_topic(pipeline.name, DEAD_LETTERS))
    [(key, letter)] = letters.items()
    facts = json.loads(letter.value)
    assert json.loads(key) == ["cache", 1, pipeline.log.topic(ORDERS), {"id": 2}, facts["tag"]]
    assert facts["value"]["after"] == poison.row
    assert "max_value_bytes" in facts["reason"]
    assert facts["generation"] == 1

    # A newer event of the row gets through: the letter is void.
    pipeline.write(put(2, "short"))
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.rows() == pipeline.expected
    assert not read_compacted(pipeline.log.kafka.client(), control_topic(pipeline.name, DEAD_LETTERS))


@pytest.mark.soak
def test_a_long_batch_has_all_that_comes_while_it_runs(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1, "before"))
    with pipeline.job(spark, trigger="continuous", continuous_s=600) as job:
        job.wait_for("StatusReport", batch_id=0)
        for number in range(2, 6):
            lsn = pipeline.write(put(number), Delete(ORDERS, {"id": number - 1}, tombstone_only=number % 2 == 0))
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            assert pipeline.rows() == pipeline.expected
        # Progress is where the log ends, markers of transactions included: it isn't behind by one for each.
        reached = pipeline.progress().next_offsets
        assert reached[pipeline.log.topic(ORDERS), 0] + reached.get((pipeline.log.topic(ORDERS), 1), 0) > 0
        assert job.stop() == 0
    assert {seen["batch_id"] for seen in job.reports if seen["report"] == "StatusReport"} == {0}
    assert job.total("rows") >= 9


@pytest.mark.soak
def test_a_long_batch_ends_by_itself_and_the_next_goes_on_from_there(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=0.5) as job:
        job.wait_for("StatusReport", batch_id=0)
        lsn = 0
        for number in range(2, 40):
            lsn = pipeline.write(put(number % 7, f"note {number}"))
            time.sleep(0.05)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected
    assert max(seen["batch_id"] for seen in job.reports if seen["report"] == "StatusReport") > 1
    # What a batch has read beyond its plan isn't read again by the next one.
    assert job.total("rows") == 39
    # Nor does anything depend on the long batches when the log is read in the other way.
    assert pipeline.apply_once(spark).total("rejected") == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_what_a_long_batch_has_read_before_a_new_shape_is_not_read_again(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(put(1))
    wider = table(*ORDERS.columns, column("extra"))
    with pipeline.job(spark, trigger="continuous", continuous_s=600) as job:
        job.wait_for("StatusReport", batch_id=0)
        lsn = pipeline.write(*(put(number) for number in range(2, 100)))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        rows, since = job.total("rows"), len(job.reports)
        pipeline.log.publish_shapes([wider])
        job.wait_for("SinkStarted", since=since)
        row = {"id": 100, "note": "after", "amount": "2", "extra": "new"}
        lsn = pipeline.log.commit([Put(wider, row)])
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    assert (rows, job.total("rows")) == (99, 100)
    assert len(pipeline.rows()) == 100


@pytest.mark.soak
def test_a_rejection_in_the_middle_of_a_long_batch_is_kept(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=600) as job:
        job.wait_for("StatusReport", batch_id=0)
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


@pytest.mark.soak
def test_a_sink_for_which_no_task_is_left_says_so_once(pipeline: Pipeline, spark: SparkSession) -> None:
    taken = 0
    while SLOTS.take(spark.sparkContext.defaultParallelism):
        taken += 1
    try:
        pipeline.write(put(1))
        with pipeline.job(spark) as job:
            for number in range(2, 4):
                lsn = pipeline.write(put(number))
                job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
            assert job.stop() == 0
    finally:
        for _ in range(taken):
            SLOTS.give_back()
    assert [seen["reason"] for seen in job.reports if seen["report"] == "KeepsMicroBatches"] == [NO_TASK_LEFT]
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_a_backlog_ends_a_long_batch(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=600, small_batch_rows=50) as job:
        job.wait_for("StatusReport", batch_id=0)
        lsn = pipeline.write_traffic(100)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.crash
def test_a_worker_that_is_killed_in_a_long_batch_is_replaced(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=600) as job:
        job.wait_for("StatusReport", batch_id=0)
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
    with pipeline.process(trigger="continuous", continuous_s=600) as killed:
        killed.wait_for("StatusReport", batch_id=0)
        lsn = pipeline.write(put(2, "before"), Delete(ORDERS, {"id": 1}))
        killed.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        workers = python_workers(killed.pid)
        assert workers
        for worker in workers:
            worker.suspend()
        pipeline.write(put(3, "not seen yet"))
        killed.kill()
    try:
        with pipeline.job(spark, trigger="continuous", continuous_s=600) as job:
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
    with pipeline.job(spark, sinks=sinks, trigger="continuous", continuous_s=600) as job:
        job.wait_for("StatusReport", batch_id=0)
        other = open_sink(pipeline.warehouse_name, pipeline.warehouse, 1).sink
        try:
            other.claim()
        finally:
            other.close()
        pipeline.write(put(2, "too late"))
        assert job.wait_ended(180) == TAKEN_OVER
    assert pipeline.rows(pipeline.warehouse_name, pipeline.warehouse).keys() == {1}


@pytest.mark.crash
@pytest.mark.parametrize("trigger", [pytest.param("micro-batch", marks=pytest.mark.soak), "continuous"])
def test_the_older_of_two_jobs_ends_and_the_newer_one_goes_on(
    pipeline: Pipeline, spark: SparkSession, trigger: str
) -> None:
    """The destination refuses neither of them."""
    pipeline.write(put(1))
    with pipeline.process(trigger=trigger) as older:
        older.wait_for("StatusReport")
        with pipeline.job(spark, trigger=trigger) as newer:
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
    status = pipeline.job_status()  # nobody has told the older one to stop
    assert (status.state, "newer job had taken its place" in (status.reason or "")) == (JobState.STOPPED, True)
    assert "another job has begun to apply" in older.wait_for("SinkFailed")["error"]


@pytest.mark.crash
@pytest.mark.soak
def test_apply_once_beside_a_job_leaves_the_sink_with_that_job(pipeline: Pipeline, spark: SparkSession) -> None:
    lsn = pipeline.write(put(1))
    with pipeline.process() as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.apply_once(spark).poll() == 0
        since = job.reports.index(job.wait_for("SinkFailed"))
        job.wait_for("SinkStarted", since=since)
        lsn = pipeline.write(put(2))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.job_status().state is JobState.RUNNING
        assert job.stop() == 0
    assert pipeline.job_status().state is JobState.ABSENT
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_a_checkpoint_that_another_job_has_written_to_does_not_end_the_newest_one(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=0.5) as job:
        job.wait_for("StatusReport", batch_id=0)
        # As an older job does that hasn't noticed yet: it commits the batch that this one is at work with.
        (Path(pipeline.checkpoint()) / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        since = len(job.reports)
        while not any(seen["report"] == "SinkWaiting" for seen in job.reports[since:]):
            pipeline.write(put(2, f"{time.monotonic()}"))
            time.sleep(0.05)
        lsn = pipeline.write(put(3))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_a_long_batch_pauses_when_it_is_asked_to(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    with pipeline.job(spark, trigger="continuous", continuous_s=600) as job:
        job.wait_for("StatusReport", batch_id=0)
        records = open_sink("cache", pipeline.cache, 1).records
        records.save(pause_request_name(1), "somebody")
        assert wait_for_pause(records, 1, "somebody")
        pipeline.write(put(2))
        assert pipeline.rows().keys() == {1}
        records.save(pause_request_name(1), None)
        lsn = pipeline.write(put(3))
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows() == pipeline.expected
        assert job.stop() == 0


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
    # As if it had read records that this copy of Kafka hasn't got.
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


@pytest.mark.soak
def test_why_a_job_has_stopped_outlives_it_until_one_is_at_work_again(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1))
    assert pipeline.apply_once(spark).poll() == 0
    assert pipeline.job_status().state is JobState.ABSENT
    pipeline.log.recreate_topic(ORDERS)
    began_ms = time.time_ns() // 1_000_000
    assert pipeline.apply_once(spark).poll() == 1
    stopped = pipeline.job_status()
    assert (stopped.state, stopped.needs_somebody) == (JobState.STOPPED, True)
    assert "was recreated since sink" in (stopped.reason or "")
    assert stopped.since_ms is not None
    assert stopped.since_ms >= began_ms
    assert pipeline.apply_once(spark).poll() == 1
    assert pipeline.job_status().since_ms == stopped.since_ms


@pytest.mark.soak
def test_a_slip_of_the_pen_at_the_first_start_is_mended_in_the_file_alone(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(put(1, "x"))
    typo = pipeline.cache.model_copy(update={"exclude": ("public.orders.noet",)})
    job = pipeline.apply_once(spark, sinks={"cache": typo})
    assert job.poll() == 1
    mended = pipeline.cache.model_copy(update={"exclude": ("public.orders.note",)})
    assert pipeline.apply_once(spark, sinks={"cache": mended}).poll() == 0
    opened = open_sink("cache", mended, 1)
    (generation,) = list_generations(opened)
    opened.sink.close()
    assert generation.is_live
    live = open_sink("cache", mended, generation.number)
    (stored,) = live.sink.scan(ORDERS)
    assert "note" not in stored.row
    live.sink.close()


def test_a_destination_that_lost_its_data_is_refused(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.write(put(1, "before"))
    assert pipeline.apply_once(spark).poll() == 0
    emptied = pipeline.cache.model_copy(update={"prefix": f"{pipeline.name}-emptied"})
    job = pipeline.apply_once(spark, sinks={"cache": emptied})
    assert job.poll() == 1
    assert "has lost data" in job.wait_for("SinkFailed")["error"]


@pytest.mark.parametrize("trigger", [pytest.param("micro-batch", marks=pytest.mark.soak), "continuous"])
def test_a_new_column_is_prepared_before_its_first_row(pipeline: Pipeline, spark: SparkSession, trigger: str) -> None:
    pipeline.write(put(1, "before"))
    wider = table(*ORDERS.columns, column("extra"))
    with pipeline.job(spark, sinks={pipeline.warehouse_name: pipeline.warehouse}, trigger=trigger) as job:
        job.wait_for("StatusReport")
        row = {"id": 2, "note": "after", "amount": "2", "extra": "new"}
        lsn = pipeline.log.commit([Put(wider, row)], schemas=[SchemaRecord(wider, pipeline.log.lsn)])
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    sink = open_sink(pipeline.warehouse_name, pipeline.warehouse, 1).sink
    try:
        assert {stored.row["id"]: stored.row["extra"] for stored in sink.scan(wider)} == {1: None, 2: "new"}
    finally:
        sink.close()


@pytest.mark.soak
def test_the_next_query_waits_for_one_that_takes_too_long_to_stop(
    endpoints: Endpoints, pipeline: Pipeline, spark: SparkSession
) -> None:
    """A table gets a column while the driver waits for a lock of the warehouse's, in the middle of a batch."""
    pipeline.write(put(1, "before"))
    wider = table(*ORDERS.columns, column("extra"))
    with ExitStack() as closing:
        database = Database(endpoints.warehouse_dsn)
        closing.callback(database.drop)
        url = url_of(endpoints.warehouse_url, database.name)
        settings = WarehouseSettings.model_validate({"url": url, "lock_timeout_s": 600})
        spark.conf.set("spark.sql.streaming.stopTimeout", "100")
        closing.callback(spark.conf.set, "spark.sql.streaming.stopTimeout", str(STOP_TIMEOUT_MS))
        sinks = {pipeline.warehouse_name: settings}
        with pipeline.job(spark, sinks=sinks, trigger="micro-batch", stop_timeout_s=0.1) as job:
            job.wait_for("StatusReport")
            with psycopg.connect(database.dsn) as holder:
                holder.execute("lock table lockstep.progress in exclusive mode")
                pipeline.write(put(2, "held up"))
                until(lambda: database.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock'"))
                row = {"id": 3, "note": "after", "amount": "2", "extra": "new"}
                lsn = pipeline.log.commit([Put(wider, row)], schemas=[SchemaRecord(wider, pipeline.log.lsn)])
                assert "hasn't ended yet" in job.wait_for("SinkWaiting")["reason"]
            job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
            assert "SinkFailed" not in job.told()
            # With this limit the last stop may well be too long for a batch that is under way.
        stored = pipeline.rows(pipeline.warehouse_name, settings)
    assert {key: row["note"] for key, row in stored.items()} == {1: "before", 2: "held up", 3: "after"}


@pytest.mark.parametrize("trigger", ["micro-batch", "continuous"])
@pytest.mark.soak
def test_a_column_that_comes_and_goes_in_one_transaction_ends_no_sink(
    pipeline: Pipeline, spark: SparkSession, trigger: str
) -> None:
    """When the job looks for the shape that it didn't know, the newest one is that which it was prepared for."""
    pipeline.write(put(1, "before"))
    with pipeline.job(spark, trigger=trigger) as job:
        job.wait_for("StatusReport")
        lsn = 0
        for number in range(2, 5):
            passing = table(*ORDERS.columns, column(f"passing_{number}"))
            row = {"id": 1, "note": f"passing {number}", "amount": "2"}
            change = Put(passing, {**row, f"passing_{number}": "gone"})
            shapes = [SchemaRecord(passing, pipeline.log.lsn), SchemaRecord(ORDERS, pipeline.log.lsn, from_seq=2)]
            lsn = pipeline.log.commit([change, put(number, "beside it")], schemas=shapes)
            pipeline.expected |= {1: row, number: {"id": number, "note": "beside it", "amount": "1.10"}}
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
        assert job.stop() == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.parametrize("trigger", [pytest.param("micro-batch", marks=pytest.mark.soak), "continuous"])
@pytest.mark.soak
def test_a_query_that_has_ended_leaves_no_client_and_no_connection_open(
    pipeline: Pipeline, spark: SparkSession, trigger: str
) -> None:
    """A job of months begins many queries, one for each new shape: what each of them left would add up."""
    pipeline.write(put(1, "before"))
    before = _open_here(spark)
    with pipeline.job(spark, trigger=trigger) as job:
        job.wait_for("StatusReport")
        wider, row = ORDERS, {"id": 1, "note": "after", "amount": "1"}
        for number in range(3):
            wider, row = table(*wider.columns, column(f"extra_{number}")), row | {f"extra_{number}": "new"}
            lsn = pipeline.log.commit([Put(wider, row)], schemas=[SchemaRecord(wider, pipeline.log.lsn)])
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)  # type: ignore[misc]
        assert job.stop() == 0
    # A thread that looks at a query's surroundings ends with its next look. What was left would stay.
    until(lambda: _open_here(spark)["kafka clients"] <= before["kafka clients"])
    # One may be that of the JVM's thread that tells what is no longer in use there, whichever query comes first.
    assert _open_here(spark)["spark's calls"] <= before["spark's calls"] + 1


def _open_here(spark: SparkSession) -> dict[str, int]:
    """How many clients of Kafka this process has, and connections by which the JVM calls it."""
    gc.collect()
    callbacks = spark.sparkContext._gateway.get_callback_server()  # type: ignore[union-attr]
    port = None if callbacks is None else callbacks.get_listening_port()
    return {
        "kafka clients": sum(name == "rdk:main" for name in _names_of_threads()),
        "spark's calls": sum(
            connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED
            for connection in psutil.Process().net_connections("tcp")
        ),
    }


def _names_of_threads() -> Iterator[str]:
    """Of this process, those that libraries have started included."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            yield (thread / "comm").read_text().strip()


@pytest.mark.soak
def test_an_interrupt_of_the_terminal_stops_it_in_order(pipeline: Pipeline) -> None:
    pipeline.write(put(1, "before"))
    with pipeline.process() as job:
        job.wait_for("StatusReport")
        # Ctrl-C goes to the whole process group; Spark's JVM must not die of it before the batch is done.
        os.killpg(job.pid, signal.SIGINT)
        assert job.finish() == 0
    assert pipeline.rows() == pipeline.expected


@pytest.mark.soak
def test_sockets_of_workers_are_where_nobody_else_can_look(spark: SparkSession) -> None:
    directory = Path(spark.conf.get("spark.python.unix.domain.socket.dir") or "")
    assert spark.sparkContext.parallelize([1]).map(lambda number: number).collect() == [1]
    assert any(path.is_socket() for path in directory.iterdir())
    assert directory.stat().st_mode & 0o777 == 0o700
