"""Jobs of a view with four tasks are killed, lose states, hang and meet: the sink ends equal to PostgreSQL."""

import random
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import orjson
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.topic_names import table_topic
from jobs.dead_letters.store import DeadLetters
from sinks.registry import SinkSettings
from tests.databases import until
from tests.events import Put
from tests.job_process import ENDING, run_sinks
from tests.spark_here import Job
from tests.spark_session import worker_with
from tests.view_jobs import TWEETS, USERS, WRITERS, ViewPipeline, traffic

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy, pytest.mark.soak]

FOUR: Final = WRITERS.model_copy(update={"tasks": 4})
SHARDS: Final = [f"shard-{number}-of-4" for number in range(1, 5)]


def states_of(pipeline: ViewPipeline, root: str = "state") -> Path:
    return pipeline.directory / root / pipeline.name / pipeline.sink / "g1"


def each_was_there(pipeline: ViewPipeline, settings: SinkSettings) -> bool:
    """Whether each row is one that its key had at some commit. Several shards needn't be as of the same one."""
    return all(
        any(rows.get(key) == row for rows in pipeline.states.values()) for key, row in pipeline.rows(settings).items()
    )


def large(pipeline: ViewPipeline, user: int, *, size: int) -> int:
    """One transaction with a name of this size, which the store may refuse. Returns its LSN."""
    return pipeline.write(Put(USERS, {"id": user, "name": f"{len(pipeline.states)}".ljust(size, "n")}))


def rejected(pipeline: ViewPipeline) -> list[int]:
    dead_letters = DeadLetters(pipeline.log.kafka.client(), pipeline.name, sink=pipeline.sink, generation=1)
    return [orjson.loads(key)["id"] for _, key in dead_letters.read([table_topic(pipeline.name, pipeline.view.table)])]


def all_users(pipeline: ViewPipeline, number: int) -> int:
    """One transaction with a row of each shard, and tweets that move to another user. Returns its LSN."""
    return pipeline.write(
        *(Put(USERS, {"id": user, "name": f"all {number}"}) for user in range(8)),
        *(Put(TWEETS, {"id": 90 + tweet, "user_id": (tweet + number) % 8, "body": "b"}) for tweet in range(8)),
    )


@pytest.mark.parametrize("kind", ["redis", "opensearch"])
def test_kill_9_of_the_job_anywhere_and_states_that_are_lost(
    view_pipelines: Callable[..., ViewPipeline], kind: str
) -> None:
    chance = random.Random(f"{kind} 5")
    pipeline = view_pipelines(view=FOUR, query=FOUR.sql)
    settings = pipeline.settings(kind, **({"max_value_bytes": 200} if kind == "redis" else {}))
    lsn = traffic(pipeline, 20)
    for number in range(5):
        with pipeline.process(settings, conf=chance.choice([{}, ENDING])) as job:
            job.wait_for("SinkStarted")
            for _ in range(chance.randrange(4)):
                traffic(pipeline, 3, seed=chance.randrange(1_000))
                large(pipeline, chance.randrange(8), size=100 * chance.randrange(1, 4))
            if number % 2:
                job.wait_for("BatchApplied")
            threading.Event().wait(chance.uniform(0, 2))
            job.kill()
        assert each_was_there(pipeline, settings), number
        lost = (SHARDS[:0], chance.sample(SHARDS, 1), SHARDS)[number % 3]
        for shard in lost:
            shutil.rmtree(states_of(pipeline) / shard, ignore_errors=True)
        if lost == SHARDS:
            shutil.rmtree(pipeline.directory / "state", ignore_errors=True)
    lsn = all_users(pipeline, 0)
    with pipeline.process(settings) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows(settings) == pipeline.states[lsn]
        assert rejected(pipeline) == []
        large(pipeline, 3, size=300)
        lsn = large(pipeline, 4, size=300)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    refused = [3, 4] if kind == "redis" else []
    assert sorted(rejected(pipeline)) == refused
    rows, expected = pipeline.rows(settings), pipeline.states[lsn]
    assert {at: rows[at] for at in rows if at[0] not in refused} == {
        at: expected[at] for at in expected if at[0] not in refused
    }


def test_a_shard_that_hangs_keeps_nothing_but_its_own_rows_and_the_watermark(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines(view=FOUR, query=FOUR.sql)
    settings = pipeline.settings("redis")
    before = all_users(pipeline, 0)
    with pipeline.job(spark, settings) as job:
        job.wait_until(lambda seen: seen.get("watermark_lsn") == before)
        hung = worker_with(states_of(pipeline) / SHARDS[1])
        hung.send_signal(signal.SIGSTOP)
        try:
            lsn = all_users(pipeline, 1)
            shards = pipeline.shards()
            own = {key for key in pipeline.states[lsn] if shards[1].has(key[0])}
            assert 0 < len(own) < 8
            mixed = {at: pipeline.states[before if at in own else lsn][at] for at in pipeline.states[lsn]}
            until(lambda: pipeline.rows(settings) == mixed)
            assert pipeline.progress(settings).watermark_lsn == before
        finally:
            hung.send_signal(signal.SIGCONT)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows(settings) == pipeline.states[lsn]
        assert job.stop() == 0


@pytest.mark.parametrize(
    "elsewhere",
    [pytest.param(False, id="one directory"), pytest.param(True, id="two machines")],
)
def test_of_two_jobs_at_once_the_newer_goes_on_with_all_shards(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession, *, elsewhere: bool
) -> None:
    pipeline = view_pipelines(view=FOUR, query=FOUR.sql)
    settings = pipeline.settings("redis")
    lsn = all_users(pipeline, 0)
    arguments = pipeline.arguments(settings)
    if elsewhere:
        views = pipeline.directory / "other-views"
        arguments["spark"] = arguments["spark"].model_copy(update={"view_directory": views})
    with pipeline.job(spark, settings) as older:
        older.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        stop = threading.Event()
        writing = threading.Thread(target=_write_until, args=(pipeline, stop), daemon=True)
        writing.start()
        with Job(spark, partial(run_sinks, **arguments)) as newer:
            newer.wait_for("BatchApplied")
            assert older.wait_ended(300) != 0
            assert "another job" in older.output()
            stop.set()
            writing.join()
            lsn = all_users(pipeline, 1)
            newer.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
            assert pipeline.rows(settings) == pipeline.states[lsn]
            assert newer.stop() == 0
    with pipeline.job(spark, settings) as older:  # with its states of that time
        lsn = all_users(pipeline, 2)
        older.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
        assert pipeline.rows(settings) == pipeline.states[lsn]
        assert older.stop() == 0


def _write_until(pipeline: ViewPipeline, stop: threading.Event) -> None:
    number = 100
    while not stop.wait(0.1):
        number += 1
        traffic(pipeline, 1, seed=number)
