"""A view that two tasks keep: at its LSN the sink has the rows that the query has in PostgreSQL there."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
import redis
from pyspark.sql import SparkSession

from jobs.generations.view_state import load_told
from jobs.query.view_shards import ViewShards
from sinks.registry import open_sink
from tests.databases import until
from tests.events import Put
from tests.spark_here import Job
from tests.spark_session import python_workers
from tests.view_jobs import TWEETS, USERS, WRITERS, ViewPipeline, traffic

pytestmark = [pytest.mark.live, pytest.mark.busy]


def kill_task_of(state: Path) -> None:
    """kill -9 of the worker that has this state open."""

    def found() -> psutil.Process | None:
        for worker in python_workers(os.getpid()):
            with suppress(psutil.Error):
                if any(opened.path.startswith(f"{state}/") for opened in worker.open_files()):
                    return worker
        return None

    until(found)
    worker = found()
    assert worker is not None
    worker.kill()


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
                    kill_task_of(states / "shard-2-of-2")
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
