"""A view that two tasks keep: at its LSN the sink has the rows that the query has in PostgreSQL there."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import lmdb
import orjson
import pytest
import redis
from pyspark.sql import SparkSession

from cdc.kafka.topic_names import table_topic
from jobs.dead_letters.store import DeadLetters
from jobs.generations.view_state import load_told
from jobs.query.view_shards import ViewShards
from sinks.registry import open_sink
from tests.databases import until
from tests.events import Put
from tests.spark_here import Job
from tests.spark_session import worker_with
from tests.view_jobs import TWEETS, USERS, WRITERS, ViewPipeline, traffic
from views.state.file import FILE_NAME

pytestmark = [pytest.mark.live, pytest.mark.busy]


def put_back_under(job: Job, pipeline: ViewPipeline) -> int:
    """The store goes back to an earlier moment, as after a failover to a server that lacked its last writes.

    The tasks have forgotten by then what they wrote after that. Returns the LSN that the view is to have.
    """
    with redis.Redis.from_url(pipeline.endpoints.redis_url) as store:
        held = {key: store.dump(key) for key in store.scan_iter(f"{pipeline.sink}:*")}
        for seed in range(20, 23):
            lsn = traffic(pipeline, 5, seed=seed)
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)
        with store.pipeline(transaction=True) as step:
            step.delete(*store.scan_iter(f"{pipeline.sink}:*"))
            for key, content in held.items():
                step.restore(key, 0, content)
            step.execute()
    return pipeline.write(Put(USERS, {"id": 1, "name": "after"}))


def test_two_tasks_keep_a_view_whose_rows_move_and_of_which_one_is_killed_and_loses_its_state(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines(view=WRITERS, query=WRITERS.sql)
    settings = pipeline.settings("redis")
    traffic(pipeline, 20)
    states = pipeline.directory / "state" / pipeline.name / pipeline.sink / "g1"
    for loses in (None, "shard-1-of-2"):
        if loses is not None:
            shutil.rmtree(states / loses)
        with pipeline.job(spark, settings, trigger="continuous") as job:
            for number in range(3):
                lsn = traffic(pipeline, 5, seed=number)
                # One transaction with a row of each shard, and tweets that leave one user for another one.
                users = [Put(USERS, {"id": user, "name": f"n{number}"}) for user in range(8)]
                tweets = [Put(TWEETS, {"id": 90 + t, "user_id": (t + number) % 8, "body": "b"}) for t in range(8)]
                lsn = pipeline.write(*users, *tweets)
                job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)
                assert pipeline.rows(settings) == pipeline.states[lsn]
                if number == 1 and loses is None:
                    worker_with(states / "shard-2-of-2").kill()
                    job.wait_for("SinkWaiting")
            if loses is not None:
                lsn = put_back_under(job, pipeline)
                job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)
                assert pipeline.rows(settings) == pipeline.states[lsn]
            assert job.stop() == 0
        waits = [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]
        assert len(waits) == 1, waits
    assert sorted(path.name for path in states.iterdir()) == ["shard-1-of-2", "shard-2-of-2"]
    opened = open_sink(pipeline.sink, settings, 1)
    with closing(opened.sink):
        told = load_told(opened.records, 1)
        progress = opened.generations.load_progress()
    assert told is not None
    assert (told.figures.lsn, told.figures.rows) == (lsn, len(pipeline.states[lsn]))
    assert progress is not None
    reached = ViewShards.of_progress(progress.shards, count=2, reached=progress.next_offsets)
    assert (len(progress.shards), progress.next_offsets) == (2, reached.least)


@contextmanager
def held(state: Path) -> Iterator[None]:
    """Another process is in the middle of a step: whoever wants the state waits."""
    with closing(lmdb.open(str(state / FILE_NAME), subdir=False)) as environment, environment.begin(write=True):
        yield


@pytest.mark.soak
def test_a_rejection_of_one_shard_is_kept_and_closed_while_another_one_can_not_go_on(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines(view=WRITERS, query=WRITERS.sql)
    settings = pipeline.settings("redis", max_value_bytes=200)
    states = pipeline.directory / "state" / pipeline.name / pipeline.sink / "g1"
    dead_letters = DeadLetters(pipeline.log.kafka.client(), pipeline.name, sink=pipeline.sink, generation=1)
    topic = table_topic(pipeline.name, pipeline.view.table)
    first, second, *_ = (user for user in range(8) if pipeline.shards()[1].has(user))

    def all_users(name: str, *, large: str | None = None) -> int:
        return pipeline.write(
            *(Put(USERS, {"id": user, "name": large or name if user == first else name}) for user in range(8))
        )

    def rejected() -> list[int]:
        return [orjson.loads(key)["id"] for _, key in dead_letters.read([topic])]

    before = all_users("before")
    assert pipeline.apply_once(spark, settings).poll() == 0
    with ExitStack() as holding:
        holding.enter_context(held(states / "shard-1-of-2"))
        with pipeline.job(spark, settings, trigger="continuous") as job:
            try:
                for name in ("once", "again"):
                    all_users(name, large=name * 100)
                    until(lambda: rejected() == [first])
                    until(lambda name=name: pipeline.rows(settings)[second,]["name"] == name)
                lsn = all_users("small")
                until(lambda: rejected() == [])
                until(lambda: pipeline.rows(settings)[first,]["name"] == "small")
                assert pipeline.progress(settings).watermark_lsn == before
            finally:
                holding.close()
            job.wait_until(lambda seen: seen.get("watermark_lsn") == lsn)
            assert pipeline.rows(settings) == pipeline.states[lsn]
            assert pipeline.progress(settings).rejected == 2
            assert job.stop() == 0
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]
