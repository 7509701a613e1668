"""Jobs that keep views, on real servers: at its LSN the sink has the rows that the query has in PostgreSQL there."""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan
from cdc.kafka.topic_names import VIEWS, control_topic, table_topic, view_topic
from cdc.model.errors import Unavailable
from cdc.protocol.view_steps import step_key
from jobs.dead_letters.store import DeadLetters
from jobs.executor.long_batch import LongBatch, Told
from jobs.executor.result import VALUES_BYTES_MAX, Result, from_arrow
from jobs.executor.view_task import deliver_view
from jobs.generations.view_state import remove_kept
from tests.databases import until
from tests.events import Delete, Put
from tests.job_process import spark_settings
from tests.topics import configure
from tests.view_jobs import FOLLOWS, TWEETS, USERS, ViewPipeline, traffic
from views.figures import Doing, ViewFigures
from views.state.file import FileState
from views.view import View, stored_position

pytestmark = [pytest.mark.live, pytest.mark.busy]


@pytest.mark.parametrize("kind", [pytest.param("redis", marks=pytest.mark.soak), "warehouse"])
def test_a_view_is_built_and_kept_by_one_job_after_the_other(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession, kind: str
) -> None:
    pipeline = view_pipelines()
    settings = pipeline.settings(kind)
    for seed in range(3):
        lsn = traffic(pipeline, 20, seed=seed)
        job = pipeline.apply_once(spark, settings)
        assert job.poll() == 0, job.told()
        assert pipeline.progress(settings).watermark_lsn == lsn
        assert pipeline.rows(settings) == pipeline.states[lsn]


@pytest.mark.soak
def test_who_applies_once_says_that_no_progress_record_came(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines()
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
    assert built.wait_for("LacksRecord")["watermark_lsn"] == lsn
    assert pipeline.rows(settings) == pipeline.states[lsn]


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
    for _ in range(2):  # there is no state yet that could lack a delete, so nobody has missed one
        assert "no progress record is newer" in pipeline.apply_once(spark, settings).told()
    keep_tombstones(86_400_000)
    tweets = [{"id": number, "user_id": 1, "body": "b" * 300} for number in (1, 2)]
    pipeline.write(Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}), *(Put(TWEETS, tweet) for tweet in tweets))
    assert "max_open_rejections allows" in pipeline.apply_once(spark, settings).told()
    lsn = pipeline.write(Delete(TWEETS, {"id": 1}))
    keep_tombstones(1)
    refused = pipeline.apply_once(spark, settings)
    assert refused.poll() == 1
    assert "deletes may be missing" in refused.told()
    assert f"lockstep rebuild {pipeline.sink} --switch" in refused.told()
    keep_tombstones(86_400_000)
    assert pipeline.apply_once(spark, settings).poll() == 0
    assert pipeline.progress(settings).watermark_lsn == lsn


@pytest.mark.parametrize("trigger", [pytest.param("micro-batch", marks=pytest.mark.soak), "continuous"])
@pytest.mark.parametrize("kind", [pytest.param("redis", marks=pytest.mark.soak), "warehouse"])
def test_a_running_job_keeps_a_view(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession, kind: str, trigger: str
) -> None:
    pipeline = view_pipelines()
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
    assert "more rejections of sink" in job.told()
    assert "max_open_rejections allows" in job.told()

    more = settings.model_copy(update={"max_open_rejections": 3})
    job = pipeline.apply_once(spark, more)
    assert job.poll() == 0, job.told()
    assert pipeline.progress(more).watermark_lsn == lsn
    assert {row["tweet_id"] for row in pipeline.rows(more).values()} == {4, 5}
    dead_letters = DeadLetters(pipeline.log.kafka.client(), pipeline.name, sink=pipeline.sink, generation=1)
    topic = table_topic(pipeline.name, pipeline.view.table)
    assert sorted(orjson.loads(key)["tweet_id"] for _, key in dead_letters.read([topic])) == [1, 2, 3]


@pytest.mark.soak
def test_large_refused_rows_are_kept_by_one_batch_that_takes_several_results(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines()
    settings = pipeline.settings("redis", max_value_bytes=200)
    count = 2 * VALUES_BYTES_MAX // 1_000_000 + 1
    pipeline.write(
        Put(USERS, {"id": 1, "name": "n"}),
        *(Put(FOLLOWS, {"follower_id": number, "followee_id": 1}) for number in range(count)),
    )
    lsn = pipeline.write(Put(TWEETS, {"id": 1, "user_id": 1, "body": "b" * 1_000_000}))
    job = pipeline.apply_once(spark, settings)
    assert job.poll() == 0, job.told()
    assert pipeline.rows(settings) == {}
    assert pipeline.progress(settings).watermark_lsn == lsn
    dead_letters = DeadLetters(pipeline.log.kafka.client(), pipeline.name, sink=pipeline.sink, generation=1)
    topic = table_topic(pipeline.name, pipeline.view.table)
    assert len(dead_letters.read([topic])) == count


@pytest.mark.soak
def test_a_task_tells_how_far_a_building_is_from_its_begin_to_its_end(
    view_pipelines: Callable[..., ViewPipeline], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A driver that hears nothing for long ends the batch, and the building would begin again for ever."""
    monkeypatch.setattr("views.view._ROW_BY_ROW_MAX", 0)
    monkeypatch.setattr("jobs.executor.view_task._PORTION", 2)
    monkeypatch.setattr("jobs.executor.view_task.TELL_S", 0.0)
    pipeline = view_pipelines()
    lsn = traffic(pipeline, 40)
    with Driver(tmp_path / "line") as driver:
        result = delivered(deliver_view(pipeline.task(pipeline.settings("redis")), [], batch=driver.batch))
    told = [figures.building for figures in driver.told if figures.building is not None]
    parts = [list(part) for _, part in itertools.groupby(told, key=lambda building: building.doing)]
    assert [part[0].doing for part in parts] == [Doing.READING, Doing.COMPUTING, Doing.WRITING]
    for part in parts:
        done = [building.done for building in part]
        assert done == sorted(done)
        assert max(done) <= part[-1].total
    assert len(parts[1]) > 3
    assert parts[2][-1].done == len(pipeline.states[lsn])
    assert result.view is not None
    assert (result.view.lsn, result.view.building, result.view.rows) == (lsn, None, len(pipeline.states[lsn]))
    assert result.view.counters.steps == 0

    last = 0
    for seed in (2, 3):
        last = traffic(pipeline, 4, seed=seed)
    stepped = delivered(deliver_view(pipeline.task(pipeline.settings("redis"), reached=result.next_offsets), []))
    assert stepped.view is not None
    assert (stepped.view.lsn, stepped.view.rows) == (last, len(pipeline.states[last]))
    assert stepped.view.counters.transactions == 8


@pytest.mark.soak
def test_a_whole_result_that_was_interrupted_goes_on_as_a_building_and_gives_back_its_space(
    view_pipelines: Callable[..., ViewPipeline], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("jobs.executor.view_task._PORTION", 2)
    monkeypatch.setattr("jobs.executor.view_task.TELL_S", 0.0)
    pipeline = view_pipelines()
    lsn = traffic(pipeline, 40)
    task = pipeline.task(pipeline.settings("redis"))

    compact, compacted = FileState.compact, []

    def lost(*_: object, **__: object) -> None:
        raise Unavailable("the answer got lost")

    def watched(state: FileState) -> None:
        compacted.append(state.read(stored_position).lsn)
        compact(state)

    monkeypatch.setattr(FileState, "compact", watched)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(View, "acknowledge", lost)
        (failure,) = from_arrow(pa.Table.from_batches(list(deliver_view(task, [])))).failures
    assert failure.message == "the answer got lost"
    with Driver(tmp_path / "line") as driver:
        result = delivered(deliver_view(task, [], batch=driver.batch))
    told = [figures.building for figures in driver.told if figures.building is not None]
    assert {building.doing for building in told} == {Doing.WRITING}
    assert told[-1].done == told[-1].total == len(pipeline.states[lsn])
    assert result.view is not None
    assert result.view.building is None
    assert compacted == [lsn]


def delivered(batches: Iterator[pa.RecordBatch]) -> Result:
    result = from_arrow(pa.Table.from_batches(list(batches)))
    assert not result.failures, result.failures
    return result


class Driver:
    """Hears what a task tells until its line ends."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.batch = LongBatch(str(path), 10.0, 1000)
        self.told: list[ViewFigures] = []
        self._thread = threading.Thread(target=self._hear)

    def _hear(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                told = Told()
                told.add_json(line)
                if told.view is not None:
                    self.told.append(told.view)

    def __enter__(self) -> "Driver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()


@pytest.mark.soak
def test_a_topic_that_somebody_else_has_made_is_refused_with_the_command(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines()
    settings, client = pipeline.settings("redis", topic=True), pipeline.log.kafka.client()
    topic = view_topic(pipeline.name, pipeline.sink, 1)
    TopicAdmin(client).create([TopicPlan(topic, 3, 1, {"cleanup.policy": "delete"})])
    lsn = traffic(pipeline, 3)
    job = pipeline.apply_once(spark, settings)
    assert (job.poll(), f"topic {topic} has cleanup.policy=delete" in job.told()) == (1, True), job.told()
    configure(client, [topic], {"cleanup.policy": "compact"})
    job = pipeline.apply_once(spark, settings)
    assert (job.poll(), f"topic {topic} has 3 partitions" in job.told()) == (1, True), job.told()
    TopicAdmin(client).remove([topic])
    job = pipeline.apply_once(spark, settings)
    assert job.poll() == 0, job.told()
    assert pipeline.steps()[-1] == (lsn, pipeline.states[lsn])


@pytest.mark.soak
def test_a_job_keeps_the_topic_of_a_view_until_its_generation_is_removed(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession
) -> None:
    pipeline = view_pipelines()
    settings = pipeline.settings("redis", topic=True)
    traffic(pipeline, 10)
    with pipeline.job(spark, settings) as job:
        for seed in range(2, 4):
            lsn = traffic(pipeline, 5, seed=seed)
            job.wait_until(lambda seen, lsn=lsn: seen.get("watermark_lsn") == lsn)
        assert job.stop() == 0
    seen = pipeline.steps()
    assert [rows for _, rows in seen] == [pipeline.states[at] for at, _ in seen]
    assert seen[-1] == (lsn, pipeline.states[lsn])
    spark_of_job = spark_settings(pipeline.directory, view_directory=pipeline.directory / "state")
    remove_kept(spark_of_job, pipeline.log.kafka, pipeline=pipeline.name, sink=pipeline.sink, generation=1)
    cluster = TopicAdmin(pipeline.log.kafka.client())
    until(lambda: view_topic(pipeline.name, pipeline.sink, 1) not in cluster.all_partition_counts())
    assert step_key(pipeline.sink, 1) not in read_compacted(
        pipeline.log.kafka.client(), control_topic(pipeline.name, VIEWS)
    )
