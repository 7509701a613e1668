"""Which conditions and figures stream queries come to, and what the page shows of them."""

import subprocess
import sys
from typing import Any

import pytest

from cdc.model.errors import LockstepError, Unavailable
from extensions.streams.extension import STREAMS
from extensions.streams.jobs.posted import Posted
from extensions.streams.jobs.resume import Figures
from extensions.streams.status import StreamQueryStatus
from extensions.streams.watch import found_of
from jobs.generations.read_so_far import ReadSoFar
from jobs.generations.status import JobState, JobStatus
from monitor.conditions import Severity


def _query(generation: int = 1, *, is_live: bool = True, **changes: Any) -> StreamQueryStatus:
    return StreamQueryStatus("recent", "topic", generation, is_live, **changes)


_STOPPED = JobStatus(JobState.STOPPED, 7, "its checkpoint is gone", "build it again")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (_query(job=JobStatus(JobState.RUNNING)), None),
        (_query(job=JobStatus(JobState.ABSENT)), None),
        (_query(job=JobStatus(JobState.RUNNING), waits_for="there is no topic"), None),
        (_query(job=_STOPPED), ("stream-query-stopped", "recent")),
        (_query(2, is_live=False, job=_STOPPED), ("stream-query-stopped", "recent g2")),
        (_query(job=JobStatus(JobState.SILENT, 7)), ("stream-query-stopped", "recent")),
        (_query(job=_STOPPED, problem=Unavailable("down")), ("stream-query-unreachable", "recent")),
        (_query(posted=Posted(waiting=3)), None),
        (_query(posted=Posted(waiting=3, reason="no answer")), ("stream-query-undelivered", "recent")),
    ],
)
def test_a_query_that_is_not_run_is_an_alert(query: StreamQueryStatus, expected: tuple[str, str] | None) -> None:
    found = found_of([query]).conditions
    assert [condition.key for condition in found] == ([expected] if expected else [])
    assert all(condition.severity is Severity.CRITICAL and condition.name in STREAMS.conditions for condition in found)


def test_of_a_query_whose_store_is_silent_nothing_is_over() -> None:
    found = found_of([_query(), _query(2, is_live=False, problem=Unavailable("down"))])
    assert ("stream-query-stopped", "recent g2") in found.unknown
    assert ("stream-query-stopped", "recent") not in found.unknown


def _figures(name: str, *statuses: StreamQueryStatus) -> list[tuple[tuple[str, ...], float]]:
    figures = found_of(statuses).figures
    return [(each.labels, each.value) for each in figures if each.definition.name == f"lockstep_stream_query_{name}"]


def test_the_state_of_a_query_is_one_and_an_unknown_one_stands_alone() -> None:
    stopped = StreamQueryStatus("recent", "topic", 2, False, JobStatus(JobState.STOPPED))
    silent = StreamQueryStatus("taps", "topic", problem=Unavailable("no answer"))
    shown = _figures("job", stopped, silent, StreamQueryStatus("never", "topic"))
    assert (("recent", "2", "stopped"), 1.0) in shown
    assert (("recent", "2", "running"), 0.0) in shown
    assert [one for one in shown if one[0][0] != "recent"] == [(("taps", "", "unknown"), 1.0)]


def test_rows_that_wait_for_a_webhook_are_counted_where_that_is_known() -> None:
    waiting = StreamQueryStatus("recent", "topic", 2, True, posted=Posted(waiting=3))
    silent = StreamQueryStatus("taps", "topic", problem=Unavailable("no answer"))
    assert _figures("undelivered_rows", waiting, silent) == [(("recent", "2"), 3)]


def test_what_a_query_has_read_without_a_result_is_counted() -> None:
    job = JobStatus(JobState.RUNNING, read=ReadSoFar(9))
    known = StreamQueryStatus("taps", "topic", 1, True, job, Figures(offsets={("t", 0): 7}))
    assert _figures("in_hand_events", known) == [(("taps", "1"), 2)]


def test_a_query_is_shown_and_one_that_stopped_is_told_with_reason_and_step() -> None:
    figures = Figures(batch=1, watermark_ms=5, results=7, late=2)
    running = StreamQueryStatus("clicks", "topic", 1, True, JobStatus(JobState.RUNNING), figures)
    stopped = StreamQueryStatus("recent", "topic", 2, False, JobStatus(JobState.STOPPED, 7, "it is gone", "do it"))
    silent = StreamQueryStatus("taps", "topic", problem=LockstepError("no answer"))
    panel = found_of([running, stopped, silent]).panel
    assert panel is not None
    shown = [dict(zip(panel.columns, row.figures, strict=True)) for row in panel.rows]
    assert [(row.name, row.state) for row in panel.rows] == [
        ("clicks", "running"),
        ("recent g2", "stopped"),
        ("taps", "unanswered"),
    ]
    assert [(known["watermark"], known["results"], known["late"]) for known in shown] == [
        (5, 7, 2), (None, 0, 0), (None, 0, 0),
    ]  # fmt: skip
    assert [(row.name, row.reason, row.step) for row in panel.rows if row.is_reported] == [
        ("recent g2", "it is gone", "do it"),
        ("taps", "no answer", "`lockstep doctor` looks at every server"),
    ]
    assert found_of([]).panel is None


def test_what_is_asked_again_and_again_loads_nothing_of_what_writes() -> None:
    """``lockstep lag`` is in scripts: what it loads is most of the time that it takes."""
    code = "import sys; import extensions.streams.watch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    heavy = {"pyspark", "pyarrow", "sqlalchemy", "opensearchpy", "deltalake", "redis", "jobs.executor", "views.view"}
    assert set(done.stdout.split()) & heavy == set()
