"""What a view can't do: it says so, leaves nothing half done, and its rows stay readable as they were."""

import shutil
from collections.abc import Callable

import pytest

from tests.events import Put
from tests.view_jobs import FOLLOWS, TWEETS, USERS, ViewPipeline
from tests.view_task_process import ENDED, ViewTasks
from views.state.file import FILE_NAME

pytestmark = [pytest.mark.live, pytest.mark.busy]


@pytest.fixture
def pipeline(view_pipelines: Callable[..., ViewPipeline]) -> ViewPipeline:
    return view_pipelines()


def celebrity(pipeline: ViewPipeline, followers: int) -> int:
    return pipeline.write(
        Put(USERS, {"id": 1, "name": "n"}),
        *(Put(FOLLOWS, {"follower_id": number, "followee_id": 1}) for number in range(followers)),
    )


@pytest.mark.soak
def test_a_full_disk_stops_a_step_and_a_building_and_the_rows_stay(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    settings = pipeline.settings("redis")
    celebrity(pipeline, 3)
    before = pipeline.write(Put(TWEETS, {"id": 1, "user_id": 1, "body": "b"}))
    assert view_tasks.run(pipeline.task(settings)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[before] != {}
    stored = pipeline.ends()
    state = pipeline.directory / "state"
    lsn = pipeline.write(*(Put(TWEETS, {"id": number, "user_id": 1, "body": "b" * 100_000}) for number in range(9)))
    for is_lost in (False, True):
        size = (state / FILE_NAME).stat().st_size
        if is_lost:
            shutil.rmtree(state)
        told = view_tasks.failed(pipeline.task(settings, reached=stored), file_bytes=size)
        assert str(state) in told
        assert "full disk" in told
        assert pipeline.rows(settings) == pipeline.states[before]
    assert view_tasks.run(pipeline.task(settings, reached=stored)) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn]
