"""A comparison that was due, by real processes: what it found is kept in the sink, and shown by the commands."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from cdc.model.lsn import parse_lsn
from lockstep.config import load
from lockstep.verify_schedule import VerifySchedule
from monitor.collector import LagCollector
from monitor.verification import Verification, VerifyOutcome
from stack.stack import Endpoints
from tests.databases import until
from tests.pipeline import Pipeline

pytestmark = [pytest.mark.live, pytest.mark.busy]

_PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def pipeline(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Pipeline]:
    made = Pipeline(endpoints, tmp_path_factory.mktemp("due"), f"due{os.getpid()}", sinks=True)
    made.path.write_text(made.path.read_text() + f'[verify]\nevery = "1d"\nsinks = ["{made.name}_cache"]\n')
    made.config = load(made.path)
    with made.sql() as connection:
        connection.execute(f"insert into {made.name}.account (id, owner) select i, 'o' from generate_series(1, 50) i")
    made.start_capture()
    job = made.apply(spark)
    made.wait_applied(job)
    yield made
    made.close()


def _kept(pipeline: Pipeline) -> Verification | None:
    with LagCollector(pipeline.config.as_pipeline(), pipeline.config.sinks) as collector:
        return collector.collect(with_jobs=False).verified.get(f"{pipeline.name}_cache")


def _compare_when_due(pipeline: Pipeline, schedule: VerifySchedule, now_ms: int) -> Verification:
    before = _kept(pipeline)
    with LagCollector(pipeline.config.as_pipeline(), pipeline.config.sinks) as collector:
        schedule.look(collector.collect(with_jobs=False), now_ms=now_ms)
    return until(lambda: (kept := _kept(pipeline)) != before and kept, seconds=_PATIENCE_S)


@pytest.mark.soak
def test_what_a_due_comparison_found_is_kept_shown_and_not_done_again(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_cache"
    schedule = VerifySchedule(pipeline.config, pipeline.path)
    now_ms = time.time_ns() // 1_000_000
    kept = _compare_when_due(pipeline, schedule, now_ms)
    assert (kept.outcome, kept.differing) == (VerifyOutcome.EQUAL, 0)
    assert kept.through_lsn > 0
    schedule.close()

    client: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
    live = client.get(f"{sink}:live").decode()
    assert client.delete(f"{sink}:{live}:{pipeline.name}.account:7") == 1  # behind the pipeline's back
    client.close()

    again = VerifySchedule(pipeline.config, pipeline.path)
    with LagCollector(pipeline.config.as_pipeline(), pipeline.config.sinks) as collector:
        again.look(collector.collect(with_jobs=False), now_ms=now_ms + 60_000)
    assert again._running is None, "a restart begins none before it is due"
    worse = _compare_when_due(pipeline, again, now_ms + 86_400_000 + 60_000)
    again.close()
    assert (worse.outcome, worse.differing) == (VerifyOutcome.DIFFERENT, 1)
    assert worse.through_lsn == kept.through_lsn, "up to where it was equal stays known"

    document = json.loads(pipeline.run("lag", "--json"))["verified"][sink]
    assert (document["outcome"], document["differing"]) == ("different", 1)
    assert parse_lsn(document["verified_through"]) == kept.through_lsn
    assert json.loads(pipeline.run("generations", sink, "--json"))[0]["verified"] == document
    pipeline.run("verify", sink, "--repair")
    assert _kept(pipeline).outcome is VerifyOutcome.EQUAL  # type: ignore[union-attr]
    pipeline.run("verify", sink, "--table", f"{pipeline.name}.entry")
    assert _kept(pipeline).through_lsn > kept.through_lsn  # type: ignore[union-attr]


def _is_locked(path: Path) -> bool:
    """Looked up, since to try it could get in the way of whoever is to take it."""
    return f":{path.stat().st_ino} " in Path("/proc/locks").read_text()


@pytest.mark.soak
def test_no_two_of_a_sink_run_at_once_and_kill_9_of_one_keeps_nobody(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_search"
    directory = pipeline.config.watch_directory
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"verify-{sink}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pipeline.run("verify", sink, ends_with=1)
    first = pipeline.start("lockstep", "verify", sink, "--config", str(pipeline.path))
    until(lambda: _is_locked(directory / f"verify-{sink}.lock"))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    pipeline.run("verify", sink)
