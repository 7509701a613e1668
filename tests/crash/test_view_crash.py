"""Kill a view's task at every point of its work, and lose its state: the sink ends equal to the query in PostgreSQL."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import redis

from cdc.kafka.topic_names import PROGRESS, control_topic
from jobs.executor.task_input import Task
from jobs.offsets import Offsets
from tests.events import Delete, Put
from tests.view_jobs import FOLLOWS, HITS, TWEETS, USERS, VISITORS, WRITERS, ViewPipeline, delivered, hits, traffic
from tests.view_task_process import ENDED, FAILED, KILLED, ViewTasks

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy]

BUILDING_POINTS = 14
AHEAD_POINTS = 24
STEP_POINTS = 6


# At every change, the test that kills a shard covers Redis.
REDIS_IN_SOAK = pytest.param("redis", marks=pytest.mark.soak)


@pytest.fixture
def pipeline(view_pipelines: Callable[..., ViewPipeline]) -> ViewPipeline:
    return view_pipelines()


@pytest.mark.parametrize("kind", [REDIS_IN_SOAK, "warehouse"])
def test_kill_9_at_every_point_of_a_step(pipeline: ViewPipeline, view_tasks: ViewTasks, kind: str) -> None:
    settings = pipeline.settings(kind)
    task = pipeline.task(settings)
    lsn = traffic(pipeline, 30)
    assert view_tasks.run(task) == ENDED
    for point in range(1, STEP_POINTS + 1):
        before = lsn
        lsn = traffic(pipeline, 3, seed=point)
        assert view_tasks.run(task, kill_at=point) == KILLED
        if kind == "warehouse":  # which shows a step at once
            assert pipeline.rows(settings) in (pipeline.states[before], pipeline.states[lsn])
        assert view_tasks.run(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn]


@pytest.mark.parametrize("kind", [REDIS_IN_SOAK, "warehouse"])
def test_kill_9_at_every_point_of_a_building_and_the_state_is_lost(
    pipeline: ViewPipeline, view_tasks: ViewTasks, kind: str
) -> None:
    settings = pipeline.settings(kind)
    task = pipeline.task(settings)
    kills = 0
    before = pipeline.log.lsn
    for point in range(1, BUILDING_POINTS + 1):
        lsn = traffic(pipeline, 5, seed=point)
        kills += view_tasks.run(task, kill_at=point) == KILLED
        if kind == "warehouse":  # which shows changes from an earlier state at once
            assert pipeline.rows(settings) in (pipeline.states[before], pipeline.states[lsn]), point
        if point % 3 == 0:
            lsn = traffic(pipeline, 2, seed=-point)
        assert view_tasks.run(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
        before = lsn
        shutil.rmtree(pipeline.directory / "state")
    assert kills >= BUILDING_POINTS - 3


@pytest.mark.soak
@pytest.mark.parametrize(
    "kind", ["redis", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("warehouse", "opensearch", "delta"))]
)
def test_kill_9_at_every_point_of_a_building_that_writes_while_it_computes(
    view_pipelines: Callable[..., ViewPipeline], view_tasks: ViewTasks, kind: str
) -> None:
    """The sink has nothing at first, and after that a part of a result that is never whole."""
    kills = 0
    for point in range(1, AHEAD_POINTS + 1, 3):
        pipeline = view_pipelines()
        settings = pipeline.settings(kind)
        traffic(pipeline, 30, seed=point)
        kills += view_tasks.run(pipeline.task(settings), kill_at=point, is_large=True) == KILLED
        lsn = traffic(pipeline, 4, seed=-point)
        assert view_tasks.run(pipeline.task(settings), is_large=True) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
        lsn = traffic(pipeline, 2, seed=100 + point)
        assert view_tasks.run(pipeline.task(settings)) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
    assert kills >= AHEAD_POINTS // 3 - 2


@pytest.mark.soak
def test_a_state_from_before_one_that_was_killed_while_it_wrote_is_built_anew(
    pipeline: ViewPipeline, view_tasks: ViewTasks, tmp_path: Path
) -> None:
    """Another one was built on another machine. A row that it wrote is gone since, and this one never had it."""
    settings = pipeline.settings("redis")
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), *(follow(number) for number in range(8)))
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    told = pipeline.position().offsets
    reached = {at: offset for at, offset in told.items() if at[0] != control_topic(pipeline.name, PROGRESS)}
    pipeline.write(*(Put(TWEETS, {"id": number, "user_id": 1, "body": "b"}) for number in range(4)))
    there = pipeline.task(settings)
    assert there.view is not None
    there = replace(there, view=replace(there.view, directory=str(tmp_path / "there")))
    assert any(
        view_tasks.run(there, kill_at=point, is_large=True) == KILLED and pipeline.rows(settings)
        for point in range(1, AHEAD_POINTS)
    )
    assert len(pipeline.rows(settings)) < 4 * 8
    lsn = pipeline.write(*(Delete(TWEETS, {"id": number}) for number in range(4)))
    assert view_tasks.run(pipeline.task(settings, reached=reached)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn] == {}


def follow(follower: int) -> Put:
    return Put(FOLLOWS, {"follower_id": follower, "followee_id": 1})


@pytest.mark.soak
def test_kill_9_where_each_event_of_an_append_only_table_counts_once(
    view_pipelines: Callable[..., ViewPipeline], view_tasks: ViewTasks
) -> None:
    pipeline = view_pipelines(view=VISITORS, query=VISITORS.sql, tables=(USERS, HITS))
    settings = pipeline.settings("redis")
    task = pipeline.task(settings)
    kills = 0
    for point in range(1, BUILDING_POINTS + 1):
        lsn = hits(pipeline, 12, seed=point)
        kills += view_tasks.run(task, kill_at=point) == KILLED
        lsn = hits(pipeline, 2, seed=-point)
        assert view_tasks.run(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
        if point % 2 == 0:
            shutil.rmtree(pipeline.directory / "state")
    assert kills >= BUILDING_POINTS // 2


@pytest.mark.soak
def test_kill_9_of_one_shard_at_every_point_of_a_step_and_of_a_building(
    view_pipelines: Callable[..., ViewPipeline], view_tasks: ViewTasks
) -> None:
    """The other shard goes on meanwhile, and rows move between the two."""
    pipeline = view_pipelines(view=WRITERS, query=WRITERS.sql)
    settings = pipeline.settings("redis")
    killed, other = pipeline.shard_tasks(settings)
    lsn = traffic(pipeline, 20)
    assert (view_tasks.run(killed), view_tasks.run(other)) == (ENDED, ENDED)
    assert pipeline.rows(settings) == pipeline.states[lsn]
    kills = 0
    for point in range(1, STEP_POINTS + 1):
        lsn = traffic(pipeline, 3, seed=point)
        kills += view_tasks.run(killed, kill_at=point) == KILLED
        assert view_tasks.run(other) == ENDED
        lsn = traffic(pipeline, 2, seed=-point)
        assert view_tasks.run(killed) == ENDED
        assert view_tasks.run(other) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
    for point in range(1, BUILDING_POINTS + 1, 3):
        assert killed.view is not None
        shutil.rmtree(killed.view.directory)
        kills += view_tasks.run(killed, kill_at=point) == KILLED
        lsn = traffic(pipeline, 3, seed=10 * point)
        assert view_tasks.run(other) == ENDED
        assert view_tasks.run(killed) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
    assert kills >= STEP_POINTS


@pytest.mark.soak
def test_a_state_from_before_what_the_sink_has_is_built_anew(
    pipeline: ViewPipeline, view_tasks: ViewTasks, tmp_path: Path
) -> None:
    """A row that went and came back since then isn't a change to that state, and the sink lacks it."""
    settings = pipeline.settings("redis")
    tweet = {"id": 1, "user_id": 1, "body": "b"}
    pipeline.write(
        Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}), Put(TWEETS, tweet)
    )
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    shutil.copytree(tmp_path / "state", tmp_path / "earlier")
    pipeline.write(Delete(TWEETS, {"id": 1}))
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    assert pipeline.rows(settings) == {}
    reached = {(pipeline.log.topic(TWEETS), partition): 0 for partition in range(4)}
    ends = pipeline.ends()
    lsn = pipeline.write(Put(TWEETS, tweet))
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "earlier").rename(tmp_path / "state")
    assert view_tasks.run(pipeline.task(settings, reached=reached | ends)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn] != {}


@pytest.mark.parametrize("is_put_back", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_another_run_goes_on_with_a_state_though_the_sink_was_not_told_of_its_output(
    pipeline: ViewPipeline, view_tasks: ViewTasks, is_put_back: bool
) -> None:
    settings = pipeline.settings("redis")
    traffic(pipeline, 20)
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    told = pipeline.position().offsets
    with redis.Redis.from_url(pipeline.endpoints.redis_url) as store:
        held = {key: store.dump(key) for key in store.scan_iter(f"{pipeline.sink}:*")}
        lsn = traffic(pipeline, 5, seed=2)
        assert view_tasks.run(pipeline.task(settings, reached=told)) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn]
        if is_put_back:  # to its last reported position
            store.delete(*store.scan_iter(f"{pipeline.sink}:*"))
            for key, content in held.items():
                store.restore(key, 0, content)
            assert pipeline.rows(settings) != pipeline.states[lsn]
    steps = pipeline.position().counters.steps
    lsn = traffic(pipeline, 1, seed=3)
    assert view_tasks.run(pipeline.task(settings, reached=told)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn]
    # A new state counts from zero. A store that was put back still records an earlier run's writes.
    assert pipeline.position().counters.steps == (0 if is_put_back else steps + 1)


@pytest.mark.parametrize("kind", ["redis", pytest.param("warehouse", marks=pytest.mark.soak)])
def test_a_task_that_wakes_up_after_another_one_has_gone_on_changes_nothing(
    pipeline: ViewPipeline, view_tasks: ViewTasks, kind: str
) -> None:
    settings = pipeline.settings(kind)
    lsn = traffic(pipeline, 20)
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    for point in range(1, 10):
        told = pipeline.position().offsets
        traffic(pipeline, 3, seed=point)
        with view_tasks.stopped(pipeline.task(settings, reached=told), stop_at=point) as wake_up:
            lsn = traffic(pipeline, 3, seed=-point)
            task = pipeline.task(settings, reached=told)
            assert view_tasks.run(task) == ENDED
            assert pipeline.rows(settings) == pipeline.states[lsn], point
            code, said = wake_up()
            # Either its last transaction was over, or it learns that it was replaced.
            assert code == ENDED or "another" in said, said
            assert pipeline.rows(settings) == pipeline.states[lsn], point
        lsn = traffic(pipeline, 1, seed=100 + point)
        assert view_tasks.run(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point


@pytest.mark.soak
def test_a_state_that_another_run_has_left_behind_unseen_is_built_anew(
    pipeline: ViewPipeline, view_tasks: ViewTasks, tmp_path: Path
) -> None:
    """That run had a state of its own, as on another machine, and was killed before its last output was reported. A row
    of it that is gone since never existed for the state that was left behind."""
    settings = pipeline.settings("redis")
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}))

    def run_here(*, reached: Offsets) -> None:
        assert view_tasks.run(pipeline.task(settings, reached=reached)) == ENDED

    run_here(reached={})
    told = pipeline.position().offsets
    tables = {at: offset for at, offset in told.items() if at[0] != control_topic(pipeline.name, PROGRESS)}
    task = pipeline.task(settings, reached=tables)
    assert task.view is not None
    there = replace(task, view=replace(task.view, directory=str(tmp_path / "there")))
    assert view_tasks.run(there) == ENDED
    pipeline.write(Put(TWEETS, {"id": 1, "user_id": 1, "body": "b"}))
    assert any(view_tasks.run(there, kill_at=point) == KILLED and pipeline.rows(settings) for point in range(1, 9))
    lsn = pipeline.write(Delete(TWEETS, {"id": 1}))
    run_here(reached=tables)
    assert pipeline.rows(settings) == pipeline.states[lsn] == {}


@pytest.mark.parametrize("kind", ["redis", pytest.param("opensearch", marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_row_that_an_older_job_was_about_to_write_stays_gone(
    pipeline: ViewPipeline, view_tasks: ViewTasks, tmp_path: Path, kind: str
) -> None:
    """Each has a state of its own, as on two machines. The newer one searches in vain for a row that it never had."""
    settings = pipeline.settings(kind)
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}))

    def task(directory: str) -> Task:
        made = pipeline.task(settings)
        assert made.view is not None
        return replace(made, view=replace(made.view, directory=str(tmp_path / directory)))

    assert view_tasks.run(task("older")) == ENDED
    for point in range(4, 8):  # before and after the row is sent
        lost, kept = ({"id": 2 * point + more, "user_id": 1, "body": "b"} for more in (0, 1))
        pipeline.write(Put(TWEETS, lost))
        with view_tasks.stopped(task("older"), stop_at=point) as wake_up:
            pipeline.write(Delete(TWEETS, {"id": lost["id"]}))
            lsn = pipeline.write(Put(TWEETS, kept))
            shutil.rmtree(tmp_path / "newer", ignore_errors=True)
            assert view_tasks.run(task("newer")) == ENDED
            assert pipeline.rows(settings) == pipeline.states[lsn] != {}
            code, said = wake_up()
            assert code == FAILED
            assert "another job has become the writer" in said
            assert pipeline.rows(settings) == pipeline.states[lsn], point
        lsn = pipeline.write(Delete(TWEETS, {"id": kept["id"]}))
        assert view_tasks.run(task("older")) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn] == {}, point


@pytest.mark.parametrize(
    "is_built", [pytest.param(True, id="step"), pytest.param(False, id="building", marks=pytest.mark.soak)]
)
@pytest.mark.soak
def test_kill_9_loses_no_row_that_the_sink_refuses(
    pipeline: ViewPipeline, view_tasks: ViewTasks, *, is_built: bool
) -> None:
    """Rejections that the driver hasn't stored are repeated; those that it has aren't reported again."""
    settings = pipeline.settings("redis", max_value_bytes=200)
    task = pipeline.task(settings)
    assert task.view is not None
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), Put(FOLLOWS, {"follower_id": 2, "followee_id": 1}))
    if is_built:
        assert view_tasks.run(task) == ENDED
    kept: dict[tuple[str, bytes], str] = {}
    for point in range(1, (STEP_POINTS if is_built else BUILDING_POINTS - 3) + 1):
        long, short = ({"id": 2 * point + more, "user_id": 1, "body": "b" * size} for more, size in ((0, 300), (1, 3)))
        lsn = pipeline.write(Put(TWEETS, long), Put(TWEETS, short))
        if not is_built:
            shutil.rmtree(pipeline.directory / "state", ignore_errors=True)
        assert view_tasks.run(replace(task, rejected_before=dict(kept)), kill_at=point) == KILLED
        result = delivered(replace(task, rejected_before=dict(kept)))
        told = {orjson.loads(event.key)["tweet_id"]: event for event in result.rejected}
        large = {row["tweet_id"] for row in pipeline.states[lsn].values() if len(str(row["body"])) == 300}
        known = {orjson.loads(key)["tweet_id"] for _, key in kept}
        assert told.keys() == (large - known if is_built else large), point
        assert {orjson.loads(key)["tweet_id"] for _, key in result.resolved} == (known - large), point
        assert pipeline.rows(settings) == {
            key: row for key, row in pipeline.states[lsn].items() if len(str(row["body"])) < 300
        }
        kept = {at: tag for at, tag in kept.items() if at not in result.resolved}
        kept |= {(event.position.topic, event.key): event.tag for event in result.rejected}
        after = delivered(replace(task, rejected_before=dict(kept)))
        assert (after.rejected, after.resolved) == ([], [])
        if not is_built:
            shutil.rmtree(pipeline.directory / "state")
    assert kept
