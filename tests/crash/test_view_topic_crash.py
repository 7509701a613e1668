"""Kill a view's task at every point of its work, and lose its state: its topic has the query's result at each step."""

import shutil
from collections.abc import Callable
from contextlib import closing

import orjson
import pytest
from confluent_kafka import Producer

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import view_topic
from cdc.model.errors import Unavailable
from cdc.model.tag import Tag
from jobs.executor.view_topic import ViewTopic, close_view_topic
from tests.databases import until
from tests.events import Delete, Put
from tests.view_jobs import FOLLOWS, TWEETS, USERS, ViewPipeline, delivered, traffic
from tests.view_task_process import ENDED, KILLED, ViewTasks

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy]

BUILDING_POINTS = 18
STEP_POINTS = 8


@pytest.fixture
def pipeline(view_pipelines: Callable[..., ViewPipeline]) -> ViewPipeline:
    return view_pipelines()


def check_steps(pipeline: ViewPipeline, newest: int) -> None:
    """Each step has the result of its LSN, and the last one is the newest."""
    seen = pipeline.steps()
    assert seen
    for lsn, rows in seen:
        assert rows == pipeline.states[lsn]
    assert [lsn for lsn, _ in seen] == sorted(lsn for lsn, _ in seen)
    assert seen[-1][0] == newest


def test_kill_9_at_every_point_of_a_step(pipeline: ViewPipeline, view_tasks: ViewTasks) -> None:
    settings = pipeline.settings("redis", topic=True)
    task = pipeline.task(settings, result_topic=pipeline.topic())
    lsn = traffic(pipeline, 30)
    assert view_tasks.run(task) == ENDED
    check_steps(pipeline, lsn)
    for point in range(1, STEP_POINTS + 1):
        lsn = traffic(pipeline, 3, seed=point)
        assert view_tasks.run(task, kill_at=point) == KILLED
        assert view_tasks.run(task) == ENDED
        check_steps(pipeline, lsn)
    assert pipeline.rows(settings) == pipeline.states[lsn]


@pytest.mark.soak
def test_kill_9_at_every_point_of_a_building_and_the_state_is_lost(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    settings = pipeline.settings("redis", topic=True)
    task = pipeline.task(settings, result_topic=pipeline.topic())
    kills = 0
    for point in range(1, BUILDING_POINTS + 1, 2):
        lsn = traffic(pipeline, 5, seed=point)
        kills += view_tasks.run(task, kill_at=point) == KILLED
        if point % 3 == 1:
            lsn = traffic(pipeline, 2, seed=-point)
        assert view_tasks.run(task) == ENDED
        check_steps(pipeline, lsn)
        shutil.rmtree(pipeline.directory / "state")
    assert kills >= BUILDING_POINTS // 2 - 3


@pytest.mark.soak
def test_a_row_that_is_gone_when_a_state_is_built_again_gets_a_tombstone(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    settings = pipeline.settings("redis", topic=True)
    task = pipeline.task(settings, result_topic=pipeline.topic())
    tweet = Put(TWEETS, {"id": 1, "user_id": 1, "body": "b"})
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}), tweet)
    assert view_tasks.run(task) == ENDED
    assert len(pipeline.steps()[-1][1]) == 1
    shutil.rmtree(pipeline.directory / "state")
    lsn = pipeline.write(Delete(TWEETS, {"id": 1}))
    assert view_tasks.run(task) == ENDED
    assert pipeline.steps()[-1] == (lsn, {})


def _recreate(pipeline: ViewPipeline, records: int = 0) -> None:
    """Delete the view's topic and create it again, with this many foreign records."""
    client, topic = pipeline.log.kafka.client(), view_topic(pipeline.name, pipeline.sink, 1)
    TopicAdmin(client).remove([topic])
    until(lambda: not TopicAdmin(client).exists(topic))
    pipeline.topic()
    producer = Producer(client)
    for number in range(records):
        producer.produce(topic, b"{}", orjson.dumps(dict.fromkeys(pipeline.view.key, 10_000 + number)))
    assert producer.flush(60) == 0


@pytest.mark.parametrize("records", [pytest.param(0, marks=pytest.mark.soak), 500])
@pytest.mark.soak
def test_a_topic_that_was_made_anew_gets_all_of_the_result(
    pipeline: ViewPipeline, view_tasks: ViewTasks, records: int
) -> None:
    """While no job runs, even if it has more records now than before, and between two batches of a job."""
    task = pipeline.task(pipeline.settings("redis", topic=True), result_topic=pipeline.topic())
    assert task.view is not None
    assert task.view.result_topic is not None
    traffic(pipeline, 20)
    assert view_tasks.run(task) == ENDED
    _recreate(pipeline, records)
    lsn = traffic(pipeline, 1, seed=2)
    try:
        delivered(task)
        assert pipeline.steps()[-1] == (lsn, pipeline.states[lsn])
        _recreate(pipeline)
        lsn = traffic(pipeline, 1, seed=3)
        delivered(task)
        assert pipeline.steps()[-1] == (lsn, pipeline.states[lsn])
    finally:
        close_view_topic(task.view.result_topic)


@pytest.mark.soak
def test_a_step_that_a_topic_made_anew_would_lack_the_beginning_of_is_not_committed(pipeline: ViewPipeline) -> None:
    where, tag = pipeline.topic(), Tag(0, 1, 0)
    with closing(ViewTopic(pipeline.log.kafka.client(), where)) as topic:
        for number in range(3):
            topic.write(b'{"id":%d}' % number, b"{}", tag)
        topic.commit(tag=tag, offsets={}, run="run", is_complete=True)
        known = topic.last
        _recreate(pipeline)
        for number in range(8):
            topic.write(b'{"id":%d}' % number, b"{}", tag)
        with pytest.raises(Unavailable):
            topic.commit(tag=tag, offsets={}, run="run", is_complete=True)
    with closing(ViewTopic(pipeline.log.kafka.client(), where)) as topic:
        assert (known is not None, topic.last) == (True, None)
