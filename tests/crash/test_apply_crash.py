"""Kill and restart jobs and destinations while traffic runs: each sink ends equal to the source."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.model.table import TableName
from cdc.protocol.envelope import TAG_END, TAG_START
from tests.pipeline import Pipeline, traffic, wait_until

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy]

_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    name = f"apply{os.getpid()}_{next(_numbers)}"
    history = f'history = ["{name}.entry"]'
    made = Pipeline(stack.endpoints(), tmp_path, name, sinks=True, more={"warehouse": history})
    yield made
    made.close()


def _batches(log: Path) -> int:
    return log.read_text().count("batch applied")


def assert_history_is_whole(pipeline: Pipeline) -> None:
    """Every version of ``entry`` that was published is in the warehouse's history, once."""
    topic = pipeline.config.topics()[TableName(pipeline.name, "entry")]
    published = [
        value[TAG_START:TAG_END].decode()
        for (of_topic, _), events in pipeline.published(snapshot=True).items()
        for _, _, value, _ in events
        if of_topic == topic and value is not None
    ]
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as connection:
        view = f"{pipeline.name}_warehouse.{pipeline.name}__entry_history"
        kept = [tag for (tag,) in connection.execute(f"select _tag from {view}")]
    assert sorted(kept) == sorted(published)


def test_kill_9_of_the_job_in_the_middle_of_batches(pipeline: Pipeline) -> None:
    capture = pipeline.start_capture()
    with traffic(pipeline, pause_s=0.05):
        for _ in range(2):
            job = pipeline.start_apply()
            wait_until(lambda log=job.log: _batches(log) >= 4, what="batches are applied", timeout_s=300)
            os.killpg(job.pid, signal.SIGKILL)  # the driver and its JVM
            job.wait()
        job = pipeline.start_apply()
        wait_until(lambda: _batches(job.log) >= 4, what="batches are applied", timeout_s=300)
    pipeline.wait_applied(job)
    pipeline.assert_sinks_equal()
    assert_history_is_whole(pipeline)
    assert pipeline.stop(job) == 0, job.log.read_text()
    assert pipeline.stop(capture) == 0


def test_jobs_survive_restarts_of_every_server(pipeline: Pipeline, stack: Any) -> None:
    capture = pipeline.start_capture()
    job = pipeline.start_apply()
    with traffic(pipeline, pause_s=0.05):
        for name in ("opensearch", "valkey", "warehouse", "kafka"):
            before = _batches(job.log)
            wait_until(lambda n=before: _batches(job.log) >= n + 3, what=f"batches before {name}", timeout_s=300)
            stack.stop(name)
            time.sleep(2)
            stack.start(name)
    pipeline.wait_applied(job)
    pipeline.assert_sinks_equal()
    assert_history_is_whole(pipeline)
    assert pipeline.stop(job) == 0, job.log.read_text()
    assert pipeline.stop(capture) == 0
