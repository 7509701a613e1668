"""Jobs of views, on real servers: at its LSN the sink has the rows that the query has in PostgreSQL there."""

from collections.abc import Callable

import orjson
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.topic_names import table_topic
from jobs.dead_letters.store import DeadLetters
from tests.events import Delete, Put
from tests.topics import configure
from tests.view_jobs import FOLLOWS, TWEETS, USERS, ViewPipeline, traffic

pytestmark = [pytest.mark.live, pytest.mark.busy]


@pytest.mark.soak
def test_a_view_that_ended_in_its_first_batch_is_refused_once_deletes_may_be_gone(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    """No progress says that it was away. Its state is whole, and would keep rows whose deletes it never reads."""
    pipeline = view_pipelines()
    settings = pipeline.settings("redis", max_value_bytes=200, max_open_rejections=1)
    topics = [pipeline.log.topic(table) for table in (USERS, TWEETS, FOLLOWS)]

    def keep_tombstones(ms: int) -> None:
        configure(pipeline.log.kafka.client(), topics, {"delete.retention.ms": str(ms)})

    keep_tombstones(1)
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), progress=False)
    for _ in range(2):  # there is no state yet that could lack a delete
        assert "no progress record is newer" in pipeline.apply_once(spark, settings).output()
    keep_tombstones(86_400_000)
    tweets = [{"id": number, "user_id": 1, "body": "b" * 300} for number in (1, 2)]
    pipeline.write(Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}), *(Put(TWEETS, tweet) for tweet in tweets))
    assert "max_open_rejections allows" in pipeline.apply_once(spark, settings).output()
    lsn = pipeline.write(Delete(TWEETS, {"id": 1}))
    keep_tombstones(1)
    refused = pipeline.apply_once(spark, settings)
    assert refused.poll() == 1
    assert "deletes may be missing" in refused.output()
    assert f"lockstep rebuild {pipeline.sink} --switch" in refused.output()
    keep_tombstones(86_400_000)
    assert pipeline.apply_once(spark, settings).poll() == 0
    assert pipeline.progress(settings).watermark_lsn == lsn


@pytest.mark.parametrize("kind", [pytest.param("redis", marks=pytest.mark.soak), "warehouse"])
def test_a_view_is_built_by_one_job_and_kept_by_the_next(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession, kind: str
) -> None:
    pipeline = view_pipelines()
    settings = pipeline.settings(kind)
    lsn = traffic(pipeline, 10)
    job = pipeline.apply_once(spark, settings)
    assert job.poll() == 0, job.output()
    assert pipeline.progress(settings).watermark_lsn == lsn
    assert pipeline.rows(settings) == pipeline.states[lsn]
    with pipeline.job(spark, settings) as job:
        for seed in range(2, 6):
            lsn = traffic(pipeline, 5, seed=seed)
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)
            assert pipeline.rows(settings) == pipeline.states[lsn]
        assert job.stop() == 0
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]


@pytest.mark.soak
def test_too_many_refused_rows_stop_the_view_and_none_of_them_is_lost(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines()
    settings = pipeline.settings("redis", max_value_bytes=200, max_open_rejections=2)
    tweets = [{"id": number, "user_id": 1, "body": "b" * (300 if number < 4 else 3)} for number in range(1, 6)]
    lsn = pipeline.write(
        Put(USERS, {"id": 1, "name": "n"}),
        Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}),
        *(Put(TWEETS, tweet) for tweet in tweets),
    )
    job = pipeline.apply_once(spark, settings)
    assert job.poll() == 1
    assert "more rejections of sink" in job.output()
    assert "max_open_rejections allows" in job.output()

    more = settings.model_copy(update={"max_open_rejections": 3})
    job = pipeline.apply_once(spark, more)
    assert job.poll() == 0, job.output()
    assert pipeline.progress(more).watermark_lsn == lsn
    assert {row["tweet_id"] for row in pipeline.rows(more).values()} == {4, 5}
    dead_letters = DeadLetters(pipeline.log.kafka.client(), pipeline.name, sink=pipeline.sink, generation=1)
    topic = table_topic(pipeline.name, pipeline.view.table)
    assert sorted(orjson.loads(key)["tweet_id"] for _, key in dead_letters.read([topic])) == [1, 2, 3]
