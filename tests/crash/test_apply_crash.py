"""Kill and restart jobs and destinations while traffic runs: each sink ends equal to the source."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdc.event_format.decode import tag_of
from cdc.model.table import TableName
from tests.job_process import ENDING
from tests.pipeline import Pipeline, quick, traffic, wait_until

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy]

_numbers = itertools.count(1)
SINK_OF = {"opensearch": "search", "valkey": "cache", "warehouse": "warehouse"}
"""Server -> the end of its sink's name."""

KINDS = tuple(SINK_OF.values())


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    name = f"apply{os.getpid()}_{next(_numbers)}"
    history = f'history = ["{name}.entry"]'
    # Tasks report soon that a server doesn't answer.
    conf = {"spark.driver.memory": "512m"} | getattr(request, "param", {})
    more = {
        "warehouse": history,
        "spark": "retry_s = 1.0\n[spark.conf]\n" + "".join(f'"{key}" = "{conf[key]}"\n' for key in conf),
        "search": "timeout_s = 4.0",
    }
    made = Pipeline(quick(stack.endpoints()), tmp_path, name, sinks=True, more=more)
    yield made
    made.close()


def assert_history_is_whole(pipeline: Pipeline) -> None:
    """The warehouse's history has every published version of ``entry`` once."""
    topic = pipeline.config.topics()[TableName(pipeline.name, "entry")]
    published = [
        tag_of(value).decode()
        for (of_topic, _), events in pipeline.published(snapshot=True).items()
        for _, _, value, _ in events
        if of_topic == topic and value is not None
    ]
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as connection:
        view = f"{pipeline.name}_warehouse.{pipeline.name}__entry_history"
        kept = [tag for (tag,) in connection.execute(f"select _tag from {view}")]
    assert sorted(kept) == sorted(published)


def test_kill_9_of_the_job_in_the_middle_of_batches(pipeline: Pipeline, spark: SparkSession) -> None:
    capture = pipeline.start_capture()
    with traffic(pipeline, pause_s=0.05):
        killed = pipeline.start_apply()
        wait_until(lambda: killed.output().count("batch applied") >= 4, what="batches are applied")
        os.killpg(killed.pid, signal.SIGKILL)  # the driver and its JVM
        killed.wait()
        job = pipeline.apply(spark)
        for kind in KINDS:
            job.wait_for("BatchApplied", sink=f"{pipeline.name}_{kind}")
    pipeline.wait_applied(job)
    pipeline.assert_sinks_equal()
    assert_history_is_whole(pipeline)
    assert job.stop() == 0, job.output()
    assert pipeline.stop(capture) == 0


@pytest.mark.alone
@pytest.mark.soak
@pytest.mark.parametrize("pipeline", [{}, ENDING], ids=["batches go on", "batches end"], indirect=True)
def test_jobs_survive_restarts_of_every_server(pipeline: Pipeline, stack: Any, spark: SparkSession) -> None:
    capture = pipeline.start_capture()
    job = pipeline.apply(spark)
    with traffic(pipeline, pause_s=0.05):
        for name in ("opensearch", "valkey", "warehouse", "kafka"):
            since = len(job.reports)
            for kind in KINDS:
                job.wait_for("BatchApplied", since=since, sink=f"{pipeline.name}_{kind}")
            since = len(job.reports)
            stack.stop(name)
            try:
                # Until its absence is noticed. Kafka's clients find it again by themselves.
                if name in SINK_OF:
                    job.wait_for("SinkWaiting", since=since, sink=f"{pipeline.name}_{SINK_OF[name]}")
            finally:
                stack.start(name)
    pipeline.wait_applied(job)
    pipeline.assert_sinks_equal()
    assert_history_is_whole(pipeline)
    assert job.stop() == 0, job.output()
    assert pipeline.stop(capture) == 0
