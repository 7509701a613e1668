"""lockstep.dashboard.documents"""

from dataclasses import replace
from typing import Any

import pytest

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.status import JobState, JobStatus
from jobs.generations.view_state import ReportedView
from lockstep.dashboard.documents import (
    Rates,
    Subject,
    findings,
    pipeline_state,
    sink_detail,
    verified,
)
from lockstep.dashboard.model import PipelineState, StageFigures
from lockstep.dashboard.server import health_of
from monitor.lag import LagReport, SinkFacts, SourceFacts, report
from monitor.stalls import Look, Stalls, unreachable
from monitor.verification import Verification, VerifyOutcome
from monitor.watching import Panel, PanelRow
from tests.lag import sink_facts, source_facts
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures

SUBJECT = Subject("shop", "1", "db:5432", "shop", "lockstep_shop", 3, {"search": "opensearch", "cache": "redis"})


def source(**changes: Any) -> SourceFacts:
    published = {"published_lsn": Lsn(0x100), "published_commit_time_ms": 1_000}
    return source_facts(
        **{"wal_end": Lsn(0x200), "received_lsn": Lsn(0x180), "retained_bytes": 512} | published | changes
    )


def sink(name: str = "search", generation: int = 1, **changes: Any) -> SinkFacts:
    facts = {"watermark_lsn": 0x80, "commit_time_ms": 500, "records_behind": 7, "job": JobStatus(JobState.RUNNING)}
    return sink_facts(name, generation, **facts | changes)


def looked(facts: SourceFacts, *sinks: SinkFacts, seconds: int = 1) -> LagReport:
    """What is known after so many looks at the same facts, a second after the other."""
    stalls, lag = Stalls(), report(facts, sinks, now_ms=0)
    for at_s in range(seconds):
        now_ms = 2_000 + 1000 * at_s
        lag = stalls.judge(report(facts, sinks, now_ms=now_ms), Look(at_s, now_ms, facts, {}, "lockstep_shop"))
    return lag


def state_of(lag: LagReport, **options: Any) -> PipelineState:
    return pipeline_state(SUBJECT, lag.to_json(), Rates(), sampled_ms=2_000, **options)


def _figures(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: stage[name] for name in StageFigures.model_fields}


def test_the_figures_are_those_of_the_lag_report() -> None:
    lag = looked(source(), sink())
    state, shown = state_of(lag), lag.to_json()
    in_kafka, read, applied = shown["stages"][2:]
    for document, stage in ((state.capture, in_kafka), (state.sinks[0], applied)):
        assert document.lsn == stage["lsn"]
        assert document.seconds_behind == stage["seconds_behind"]
        assert document.bytes_behind == stage["bytes_behind"]
    assert state.sinks[0].events_behind == 7
    assert (state.sinks[0].read, state.sinks[0].visible) == (StageFigures(**_figures(read)), None)
    assert state.source.retained_bytes == 512
    assert state.problems == ()
    assert state.other_rejections == 0


def test_rejections_of_what_extensions_write_to_are_counted_for_the_page() -> None:
    state = state_of(replace(looked(source(), sink()), refused_rows={"recent": 2, "taps": 3}))
    assert state.other_rejections == 5
    assert [problem.where for problem in state.problems] == ["recent", "taps"]


def test_what_an_extension_runs_is_shown_and_is_a_problem_where_it_is_told() -> None:
    rows = (
        PanelRow("clicks", "running", (7, None), {}),
        PanelRow("recent g2", "stopped", (0, 5), {}, "it is gone", "do it", 7, needs_somebody=True, is_reported=True),
    )
    panel = Panel("things", "Things", "thing", ("results", "watermark"), rows, frozenset({"watermark"}))
    state = state_of(looked(source(), sink()), panels=[panel])
    [shown] = state.panels
    assert (shown.columns, shown.times) == (("results", "watermark"), ("watermark",))
    assert [(row.name, row.state, row.figures) for row in shown.rows] == [
        ("clicks", "running", (7, None)),
        ("recent g2", "stopped", (0, 5)),
    ]
    assert [(one.where, one.state, one.since_ms, one.reason, one.next_step) for one in state.problems] == [
        ("thing recent g2", "stopped", 7, "it is gone", "do it"),
    ]
    assert not health_of(state, state.sampled_ms).ready


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (source(walsender="WalSenderWriteData"), "given no sign of life"),
        (source(walsender=""), "committed nothing to Kafka"),
    ],
)
def test_a_capture_that_hangs_is_stalled_and_the_pipeline_isnt_ready(facts: SourceFacts, reason: str) -> None:
    state = state_of(looked(facts, seconds=20))
    (problem,) = state.problems
    assert (state.capture.state, problem.where, problem.state) == ("stalled", "capture", "stalled")
    assert reason in problem.reason
    assert not health_of(state, 2_000).ready


def test_a_pipeline_without_a_capture_isnt_ready_and_one_with_a_paused_copy_is() -> None:
    absent = state_of(looked(source(slot_active=False)))
    assert not health_of(absent, 2_000).ready
    paused = state_of(replace(looked(source(), sink(records_behind=0)), paused_copies=("public.t",)))
    assert [problem.state for problem in paused.problems] == ["paused"]
    assert health_of(paused, 2_000).ready, "somebody has wanted it so"


def test_a_job_that_has_stopped_is_a_problem_with_its_reason() -> None:
    job = JobStatus(JobState.STOPPED, 1_234, "the disk is full", "make room")
    (problem,) = state_of(looked(source(), sink(job=job))).problems
    assert (problem.where, problem.state, problem.since_ms) == ("search", "stopped", 1_234)
    assert (problem.reason, (problem.next_step or "").partition(";")[0]) == ("the disk is full", "make room")


def test_a_table_that_a_sink_cannot_take_is_a_problem_and_the_pipeline_isnt_ready() -> None:
    held_tables = {TableName("public", "t"): HeldTable(HeldState.FAILED, 1_234, reason="no room", hint="make some")}
    state = state_of(looked(source(), sink(job=JobStatus(JobState.RUNNING, held_tables=held_tables))))
    (problem,) = state.problems
    assert (problem.where, problem.state, problem.since_ms) == ("public.t in search", "failed", 1_234)
    assert problem.reason.endswith("it can't be applied: no room")
    assert problem.next_step == "make some; if the reason ends without that, `lockstep resume search public.t`"
    assert not health_of(state, 2_000).ready
    failed = held_tables[TableName("public", "t")]
    by_itself = {TableName("public", "t"): replace(failed, tries=2, retry_at_ms=0)}
    (problem,) = state_of(looked(source(), sink(job=JobStatus(JobState.RUNNING, held_tables=by_itself)))).problems
    assert (problem.next_step or "").endswith(
        "it is tried again by itself at 1970-01-01 00:00:00 UTC, after 2 tries in vain"
    )
    trial = {TableName("public", "t"): replace(failed, state=HeldState.RETRYING)}
    tried = state_of(looked(source(), sink(job=JobStatus(JobState.RUNNING, held_tables=trial))))
    assert [problem.state for problem in tried.problems] == ["retrying"]
    assert not health_of(tried, 2_000).ready, "nothing of it was applied since"
    paused = {TableName("public", "t"): HeldTable(HeldState.PAUSED, 1_234)}
    wanted = state_of(looked(source(), sink(job=JobStatus(JobState.RUNNING, held_tables=paused))))
    assert [(problem.where, problem.state) for problem in wanted.problems] == [("search", "paused")]
    assert health_of(wanted, 2_000).ready, "somebody has wanted it so"


def test_another_generation_without_a_job_is_none() -> None:
    old = sink(generation=2, is_live=False, job=JobStatus(JobState.ABSENT))
    assert state_of(looked(source(), sink(), old)).problems == ()


def test_the_slots_figures_are_not_those_of_before_a_server_was_silent() -> None:
    lag = looked(source(safe_wal_bytes=7), sink())
    silent = replace(
        lag,
        stages=unreachable(lag, ["search"], "it hangs", now_ms=3_000),
        silent_servers={"source": LockstepError("it hangs")},
    )
    state = state_of(silent)
    assert state.source.retained_bytes is state.source.safe_wal_bytes is state.source.wal_status is None
    assert [(problem.where, problem.state, problem.reason) for problem in state.problems] == [
        ("source", "unanswered", "it hangs")
    ]
    assert (state.capture.state, state.sinks[0].state) == ("unknown", "unknown")
    assert not health_of(state, 2_000).ready


def test_the_slots_figures_are_there_while_kafka_is_silent() -> None:
    lag = replace(looked(source(safe_wal_bytes=7), sink()), silent_servers={"kafka": LockstepError("it hangs")})
    assert state_of(lag).source.safe_wal_bytes == 7


def test_a_sink_shows_its_generations_newest_first() -> None:
    state = state_of(looked(source(), sink(), sink(generation=2, is_live=False), sink("cache")))
    detail = sink_detail("search", state, [(1, 0.5)])
    assert [(one.generation, one.live) for one in detail.generations] == [(2, False), (1, True)]
    assert detail.lag == ((1, 0.5),)


def test_only_sql_is_offered_to_be_copied() -> None:
    found = findings(
        [
            {"severity": "error", "subject": "slot", "what": "it is gone", "why": "", "fix": "alter system set a = 1;"},
            {"severity": "warning", "subject": "", "what": "it is slow", "why": "disks", "fix": "Buy another; or two."},
        ],
        checked_ms=5,
    ).findings
    assert [(one.sql, one.message) for one in found] == [
        ("alter system set a = 1;", "it is gone"),
        (None, "it is slow. disks. Buy another; or two"),
    ]


def test_the_last_comparison_of_each_sink_is_shown_whoever_made_it() -> None:
    verification = Verification(1_000, 2_000, VerifyOutcome.EQUAL, through_lsn=0x80, through_ms=1_000)
    lag = replace(looked(source(), sink()), verified={"search": verification})
    (kept,) = verified(lag.to_json()).sinks
    assert (kept.sink, kept.state, kept.ended_ms, kept.verified_through) == ("search", "equal", 2_000, "0/80")


def told_view(building: Building | None = None) -> ReportedView:
    return ReportedView(500, ViewFigures(8, 4_120, 1 << 20, Counters(10, 40, 100, 300, 20, 800), building, 600))


def test_a_view_shows_what_it_holds_and_what_a_change_costs() -> None:
    (shown,) = state_of(looked(source(), sink(is_view=True, view=told_view()))).sinks
    assert shown.view is not None
    assert (shown.view.rows, shown.view.state_bytes, shown.view.amplification) == (800, 1 << 20, 2.5)
    assert (shown.view.transactions_per_step, shown.view.rows_per_step, shown.view.building) == (2.0, 4.0, None)


def test_a_view_that_is_being_built_is_no_problem_and_the_pipeline_is_ready() -> None:
    building = Building(500, Doing.COMPUTING, 25, 100, 5.0)
    state = state_of(looked(source(), sink(is_view=True, view=told_view(building), watermark_lsn=0)))
    (shown,) = state.sinks
    assert (shown.state, shown.since_ms, state.problems) == ("building", 500, ())
    assert shown.view is not None
    assert shown.view.building is not None
    assert (shown.view.building.doing, shown.view.building.seconds_left) == ("computing", 15.0)
    health = health_of(state, 2_000)
    assert health.ready
    assert health.message.endswith("goes on. Views that are being built: 1.")
