"""Jobs that keep views, on real servers: at its LSN the sink has the rows that the query has in PostgreSQL there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from stack.stack import Endpoints
from tests.databases import Database
from tests.events import Put
from tests.view_jobs import FOLLOWS, TWEETS, USERS, ViewPipeline, traffic

pytestmark = [pytest.mark.live, pytest.mark.busy]

TRIGGERS = ("micro-batch", "continuous")
KINDS = ("redis", "warehouse")


@pytest.fixture(scope="module")
def judge(shared_database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shared_database.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def pipelines(
    endpoints: Endpoints, tmp_path: Path, judge: psycopg.Connection[Any]
) -> Iterator[Callable[..., ViewPipeline]]:
    made: list[ViewPipeline] = []

    def make(**more: Any) -> ViewPipeline:
        made.append(ViewPipeline(endpoints, tmp_path, judge, **more))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_built_and_kept_by_one_job_after_the_other(
    pipelines: Callable[..., ViewPipeline], spark: SparkSession, kind: str
) -> None:
    pipeline = pipelines()
    settings = pipeline.settings(kind)
    for seed in range(3):
        lsn = traffic(pipeline, 20, seed=seed)
        job = pipeline.apply_once(spark, settings)
        assert job.poll() == 0, job.told()
        assert pipeline.progress(settings).watermark_lsn == lsn
        assert pipeline.rows(settings) == pipeline.states[lsn]


def test_who_applies_once_says_that_no_progress_record_came(
    pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = pipelines()
    settings = pipeline.settings("redis")
    pipeline.write(Put(USERS, {"id": 1, "name": "a"}), progress=False)
    unbuilt = pipeline.apply_once(spark, settings)
    assert unbuilt.poll() == 1
    assert "no progress record is newer than all rows that were read" in unbuilt.told()
    lsn = pipeline.write(Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}))
    assert pipeline.apply_once(spark, settings).poll() == 0
    pipeline.write(Put(TWEETS, {"id": 1, "user_id": 1, "body": "b"}), progress=False)
    built = pipeline.apply_once(spark, settings)
    assert built.poll() == 0
    assert built.wait_for("ViewLacksRecord")["watermark_lsn"] == lsn
    assert pipeline.rows(settings) == pipeline.states[lsn]


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_running_job_keeps_a_view(
    pipelines: Callable[..., ViewPipeline], spark: SparkSession, kind: str, trigger: str
) -> None:
    pipeline = pipelines()
    settings = pipeline.settings(kind)
    traffic(pipeline, 10)
    with pipeline.job(spark, settings, trigger=trigger) as job:
        job.wait_for("StatusReport")
        for seed in range(2, 6):
            lsn = traffic(pipeline, 5, seed=seed)
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)
            assert pipeline.rows(settings) == pipeline.states[lsn]
        assert job.stop() == 0
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]
