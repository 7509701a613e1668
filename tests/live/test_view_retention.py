"""Rows of a view's tables age out, on real servers: whoever is killed, whatever is lost, and while nothing happens."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from sinks.registry import SinkSettings, open_sink
from sinks.view_settings import RetainSettings, ViewSettings
from tests.databases import until
from tests.events import Change, Put
from tests.opened import closing_sink
from tests.view_jobs import USERS, ViewPipeline
from tests.view_queries import column, shape
from tests.view_task_process import ENDED, KILLED, ViewTasks
from views.retention import NotedTime, noted_name

pytestmark = [pytest.mark.live, pytest.mark.busy]

SEEN = shape("seen", [], column("user_id", "int4"), column("at", "timestamptz"))
RECENT = ViewSettings(
    name="recent",
    key=("user_id",),
    sql="select s.user_id, u.name, count(*) as n from seen s join users u on u.id = s.user_id"
    " group by s.user_id, u.name",
    retain=(RetainSettings(table="seen", column="at", age="1h"),),
)
MINUTE_MS = 60_000
NOON_MS = 1_772_452_800_000
"""2026-03-02T12:00:00Z."""

POINTS = 8


def seen(user: int, at_ms: int) -> Change:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    return Put(SEEN, {"user_id": user, "at": at})


def noted(pipeline: ViewPipeline, settings: SinkSettings) -> NotedTime:
    """As of which time the sink has the result: what `lockstep verify` goes by."""
    with closing_sink(open_sink(pipeline.sink, settings, 1)) as opened:
        return NotedTime.from_json(opened.records.load(noted_name(1)))


@pytest.mark.soak
def test_rows_age_out_on_a_quiet_database_whoever_is_killed_and_whatever_is_lost(
    view_pipelines: Callable[..., ViewPipeline], view_tasks: ViewTasks
) -> None:
    pipeline = view_pipelines(view=RECENT, query="", tables=(USERS, SEEN))
    settings = pipeline.settings("redis")
    task = pipeline.task(settings)
    now_ms = NOON_MS
    pipeline.write(*(Put(USERS, {"id": user, "name": f"n{user}"}) for user in range(3)), at_ms=now_ms)
    assert view_tasks.run(task) == ENDED
    kills, sizes = 0, []
    for point in range(1, POINTS + 1):
        pipeline.write(
            seen(0, now_ms - 59 * MINUTE_MS), seen(1, now_ms), seen(2, now_ms - 60 * MINUTE_MS), at_ms=now_ms
        )
        assert view_tasks.run(task) == ENDED
        now_ms += 31 * MINUTE_MS
        lsn = pipeline.write(at_ms=now_ms)  # a heartbeat
        kills += view_tasks.run(task, kill_at=point) == KILLED
        assert view_tasks.run(task) == ENDED
        assert pipeline.rows(settings) == pipeline.states[lsn], point
        assert noted(pipeline, settings) == NotedTime(now_ms, now_ms)
        sizes.append(len(pipeline.rows(settings)))
    assert kills >= POINTS - 2
    assert set(sizes) == {1}

    shutil.rmtree(pipeline.directory / "state")
    lsn = pipeline.write(seen(0, now_ms - 90 * MINUTE_MS), at_ms=now_ms - 120 * MINUTE_MS)  # its clock went back
    assert view_tasks.run(task) == ENDED
    assert pipeline.rows(settings) == pipeline.states[lsn] != {}
    assert noted(pipeline, settings) == NotedTime(now_ms, now_ms)


@pytest.mark.soak
def test_a_job_that_rests_takes_rows_away_when_their_time_has_come(
    view_pipelines: Callable[..., ViewPipeline], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until there is something to read, and a heartbeat gives it nothing."""
    pipeline = view_pipelines(view=RECENT, query="", tables=(USERS, SEEN))
    settings = pipeline.settings("redis")
    pipeline.write(Put(USERS, {"id": 1, "name": "n"}), seen(1, NOON_MS - 30 * MINUTE_MS), at_ms=NOON_MS)
    monkeypatch.setattr("jobs.batch_limits.PARTITIONS_MAX", 0)  # batches end with the log
    with pipeline.job(spark, settings) as job:
        job.wait_for("BatchApplied")
        until(lambda: len(pipeline.rows(settings)) == 1)
        pipeline.write(at_ms=NOON_MS + 31 * MINUTE_MS)
        until(lambda: not pipeline.rows(settings))
        assert job.stop() == 0
