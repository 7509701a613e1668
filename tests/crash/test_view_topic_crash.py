"""Kill a view's task at every point of its work, and lose its state: its topic has the query's result at each step."""

import shutil
from collections.abc import Callable

import pytest

from jobs.executor.view_topic import close_view_topic
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


def test_a_state_that_another_one_has_overtaken_on_the_topic_is_built_again(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    """A row that went and came back since then isn't changed, as that state sees it, and the topic lacks it."""
    settings = pipeline.settings("redis", topic=True)
    topic = pipeline.topic()
    tweet = Put(TWEETS, {"id": 1, "user_id": 1, "body": "b"})
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}), tweet)
    assert view_tasks.run(pipeline.task(settings, result_topic=topic)) == ENDED
    told = pipeline.ends()
    shutil.copytree(pipeline.directory / "state", pipeline.directory / "older")
    pipeline.write(Delete(TWEETS, {"id": 1}))
    assert view_tasks.run(pipeline.task(settings, result_topic=topic, reached=told)) == ENDED
    assert pipeline.steps()[-1][1] == {}
    shutil.rmtree(pipeline.directory / "state")
    (pipeline.directory / "older").rename(pipeline.directory / "state")
    lsn = pipeline.write(tweet)
    assert view_tasks.run(pipeline.task(settings, result_topic=topic, reached=told)) == ENDED
    assert pipeline.steps()[-1] == (lsn, pipeline.states[lsn])
    assert pipeline.states[lsn]


def test_a_topic_that_is_asked_for_later_gets_all_of_the_result(pipeline: ViewPipeline, view_tasks: ViewTasks) -> None:
    settings = pipeline.settings("redis")
    lsn = traffic(pipeline, 20)
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    assert view_tasks.run(pipeline.task(settings, result_topic=pipeline.topic(), reached=pipeline.ends())) == ENDED
    assert pipeline.steps() == [(lsn, pipeline.states[lsn])]


def test_a_view_that_moves_between_workers_goes_on_with_its_state(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    """This process is one worker, whose writer stays open, and each other batch is in another one."""
    task = pipeline.task(pipeline.settings("redis", topic=True), result_topic=pipeline.topic())
    assert task.view is not None
    assert task.view.result_topic is not None
    try:
        traffic(pipeline, 20)
        delivered(task)
        for seed in range(2, 5):
            traffic(pipeline, 2, seed=seed)
            assert view_tasks.run(task) == ENDED
            lsn = traffic(pipeline, 2, seed=-seed)
            result = delivered(task)
            check_steps(pipeline, lsn)
    finally:
        close_view_topic(task.view.result_topic)
    assert result.view is not None
    assert result.view.counters.steps == 6  # those of a new state are counted anew
