"""A comparison's result is stored in the sink, and the commands show it."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from cdc.model.lsn import parse_lsn
from monitor.collector import LagCollector
from monitor.verification import Verification, VerifyOutcome
from stack.stack import Endpoints
from tests.databases import until
from tests.pipeline import Pipeline

pytestmark = [pytest.mark.live, pytest.mark.busy]


@pytest.fixture(scope="module")
def pipeline(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Pipeline]:
    made = Pipeline(endpoints, tmp_path_factory.mktemp("due"), f"due{os.getpid()}", sinks=True)
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


def _compare(pipeline: Pipeline, *, ends_with: int) -> Verification:
    pipeline.run("verify", f"{pipeline.name}_cache", ends_with=ends_with)
    kept = _kept(pipeline)
    assert kept is not None
    return kept


@pytest.mark.soak
def test_what_a_comparison_found_is_kept_and_shown(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_cache"
    kept = _compare(pipeline, ends_with=0)
    assert (kept.outcome, kept.differing) == (VerifyOutcome.EQUAL, 0)
    assert kept.through_lsn > 0

    client: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
    live = client.get(f"{sink}:live").decode()
    assert client.delete(f"{sink}:{live}:{pipeline.name}.account:7") == 1  # behind the pipeline's back
    client.close()

    worse = _compare(pipeline, ends_with=1)
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
    """Looked up, since an attempt could disturb the process that should take it."""
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
