"""Kill a view's task at every point of its work, and lose its state: the sink ends as the query in PostgreSQL does."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from stack.stack import Endpoints
from tests.databases import Database
from tests.view_jobs import HITS, USERS, VISITORS, ViewPipeline, hits, traffic
from tests.view_task_process import ENDED, KILLED, run_batch, stopped_batch
from views.state.file import FileState
from views.view import View, ViewPosition, identity

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy]

BUILDING_POINTS = 14
STEP_POINTS = 6


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path, shared_database: Database) -> Iterator[ViewPipeline]:
    with psycopg.connect(shared_database.dsn, autocommit=True) as judge:
        made = ViewPipeline(endpoints, tmp_path, judge)
        yield made
        made.close()


@pytest.mark.parametrize("kind", ["redis", "warehouse"])
def test_kill_9_at_every_point_of_a_step(pipeline: ViewPipeline, kind: str) -> None:
    settings = pipeline.settings(kind)
    task = pipeline.task(settings)
    lsn = traffic(pipeline, 30)
    assert run_batch(task) == ENDED
    for point in range(1, STEP_POINTS + 1):
        before = lsn
        lsn = traffic(pipeline, 3, seed=point)
        assert run_batch(task, kill_at=point) == KILLED
        if kind == "warehouse":  # where a step appears at once
            assert pipeline.rows(settings) in (pipeline.states[before], pipeline.states[lsn])
        assert run_batch(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn]


@pytest.mark.parametrize("kind", ["redis", "warehouse"])
def test_kill_9_at_every_point_of_a_building_and_the_state_is_lost(pipeline: ViewPipeline, kind: str) -> None:
    settings = pipeline.settings(kind)
    task = pipeline.task(settings)
    kills = 0
    before = pipeline.log.lsn
    for point in range(1, BUILDING_POINTS + 1):
        lsn = traffic(pipeline, 5, seed=point)
        kills += run_batch(task, kill_at=point) == KILLED
        if kind == "warehouse":  # where what differs from an earlier state appears at once
            assert pipeline.rows(settings) in (pipeline.states[before], pipeline.states[lsn]), point
        if point % 3 == 0:
            lsn = traffic(pipeline, 2, seed=-point)
        assert run_batch(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
        before = lsn
        shutil.rmtree(pipeline.directory / "state")
    assert kills >= BUILDING_POINTS - 3


def test_kill_9_where_each_event_of_an_append_only_table_counts_once(
    endpoints: Endpoints, tmp_path: Path, shared_database: Database
) -> None:
    with psycopg.connect(shared_database.dsn, autocommit=True) as judge:
        pipeline = ViewPipeline(endpoints, tmp_path, judge, view=VISITORS, query=VISITORS.sql, tables=(USERS, HITS))
        settings = pipeline.settings("redis")
        task = pipeline.task(settings)
        kills = 0
        for point in range(1, BUILDING_POINTS + 1):
            lsn = hits(pipeline, 12, seed=point)
            kills += run_batch(task, kill_at=point) == KILLED
            lsn = hits(pipeline, 2, seed=-point)
            assert run_batch(task) == ENDED
            assert pipeline.rows(settings) == pipeline.states[lsn], point
            if point % 2 == 0:
                shutil.rmtree(pipeline.directory / "state")
        assert kills >= BUILDING_POINTS // 2
        pipeline.close()


def test_a_state_that_is_lost_where_nothing_has_happened_since_gives_the_same_rows(pipeline: ViewPipeline) -> None:
    settings = pipeline.settings("redis")
    task = pipeline.task(settings)
    lsn = traffic(pipeline, 20)
    for _ in range(3):
        assert run_batch(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn]
        shutil.rmtree(pipeline.directory / "state")


def test_a_state_from_before_what_the_sink_has_is_built_anew(pipeline: ViewPipeline, tmp_path: Path) -> None:
    """A row that went and came back since then isn't changed, as that state sees it, and the sink lacks it."""
    from tests.events import Delete, Put
    from tests.view_jobs import FOLLOWS, TWEETS, USERS

    settings = pipeline.settings("redis")
    tweet = {"id": 1, "user_id": 1, "body": "b"}
    pipeline.write(
        Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}), Put(TWEETS, tweet)
    )
    assert run_batch(pipeline.task(settings)) == ENDED
    shutil.copytree(tmp_path / "state", tmp_path / "earlier")
    pipeline.write(Delete(TWEETS, {"id": 1}))
    assert run_batch(pipeline.task(settings)) == ENDED
    assert pipeline.rows(settings) == {}
    reached = {(pipeline.log.topic(TWEETS), partition): 0 for partition in range(4)}
    ends = pipeline.ends()
    lsn = pipeline.write(Put(TWEETS, tweet))
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "earlier").rename(tmp_path / "state")
    assert run_batch(pipeline.task(settings, reached=reached | ends)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn] != {}


def test_a_state_that_is_ahead_of_a_sink_that_was_emptied_is_built_again(pipeline: ViewPipeline) -> None:
    """The state has forgotten what it has delivered, and nothing of it changes any more."""
    settings = pipeline.settings("redis")
    lsn = traffic(pipeline, 20)
    assert run_batch(pipeline.task(settings)) == ENDED
    with redis.Redis.from_url(pipeline.endpoints.redis_url) as store:
        store.delete(*store.scan_iter(f"{pipeline.sink}:*"))
    assert run_batch(pipeline.task(settings)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn] != {}


def test_a_state_of_topics_that_were_recreated_is_built_again(pipeline: ViewPipeline) -> None:
    """Nothing was delivered of it, so neither the sink nor an offset tells that it is of other topics."""
    from tests.events import Put
    from tests.view_jobs import FOLLOWS, TWEETS, USERS

    settings = pipeline.settings("redis")
    for number in range(8):
        pipeline.write(Put(USERS, {"id": number, "name": "before"}))
    assert run_batch(pipeline.task(settings, log="before")) == ENDED
    pipeline.log.recreate_topic(USERS)
    pipeline.write(*(Put(USERS, {"id": number, "name": "after"}) for number in range(8)))
    for number in range(8, 40):
        pipeline.write(Put(USERS, {"id": number, "name": "after"}))
    lsn = pipeline.write(
        *(Put(FOLLOWS, {"follower_id": 1, "followee_id": number}) for number in range(8)),
        *(Put(TWEETS, {"id": number, "user_id": number, "body": "b"}) for number in range(8)),
    )
    assert run_batch(pipeline.task(settings, log="after")) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn] != {}


@pytest.mark.parametrize("is_put_back", [True, False])
def test_another_run_goes_on_with_a_state_though_the_sink_was_not_told_of_its_output(
    pipeline: ViewPipeline, is_put_back: bool
) -> None:
    settings = pipeline.settings("redis")
    traffic(pipeline, 20)
    assert run_batch(pipeline.task(settings)) == ENDED
    told = _position(pipeline).offsets
    with redis.Redis.from_url(pipeline.endpoints.redis_url) as store:
        held = {key: store.dump(key) for key in store.scan_iter(f"{pipeline.sink}:*")}
        lsn = traffic(pipeline, 5, seed=2)
        assert run_batch(pipeline.task(settings, reached=told)) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn]
        if is_put_back:  # to where it was when it was told last
            store.delete(*store.scan_iter(f"{pipeline.sink}:*"))
            for key, content in held.items():
                store.restore(key, 0, content)
            assert pipeline.rows(settings) != pipeline.states[lsn]
    steps = _position(pipeline).counters.steps
    lsn = traffic(pipeline, 1, seed=3)
    assert run_batch(pipeline.task(settings, reached=told)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn]
    assert _position(pipeline).counters.steps == steps + 1  # those of a new state are counted anew


def _position(pipeline: ViewPipeline) -> ViewPosition:
    shapes = {table.name: table for table in pipeline.tables}
    state = FileState(pipeline.directory / "state", identity=identity(pipeline.plan, shapes))
    try:
        return View(pipeline.plan, shapes, state).position()
    finally:
        state.close()


@pytest.mark.parametrize("kind", ["redis", "warehouse"])
def test_a_task_that_wakes_up_after_another_one_has_gone_on_changes_nothing(pipeline: ViewPipeline, kind: str) -> None:
    settings = pipeline.settings(kind)
    lsn = traffic(pipeline, 20)
    assert run_batch(pipeline.task(settings)) == ENDED
    for point in range(1, 10):
        told = _position(pipeline).offsets
        traffic(pipeline, 3, seed=point)
        with stopped_batch(pipeline.task(settings, reached=told), stop_at=point) as wake_up:
            lsn = traffic(pipeline, 3, seed=-point)
            task = pipeline.task(settings, reached=told)
            assert run_batch(task) == ENDED
            assert pipeline.rows(settings) == pipeline.states[lsn], point
            code, said = wake_up()
            # Its last transaction was over, or it learns that it isn't the one any more.
            assert code == ENDED or "another" in said, said
            assert pipeline.rows(settings) == pipeline.states[lsn], point
        lsn = traffic(pipeline, 1, seed=100 + point)
        assert run_batch(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
