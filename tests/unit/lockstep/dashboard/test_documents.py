"""lockstep.dashboard.documents"""

from typing import Any

import pytest

from cdc.model.lsn import Lsn
from jobs.generations.status import JobState, JobStatus
from lockstep.dashboard.documents import Rates, Subject, findings, pipeline_state, sink_detail, verify_run
from lockstep.dashboard.model import PipelineState
from monitor.lag import LagReport, SinkFacts, SourceFacts, report

SUBJECT = Subject("shop", "1", "db:5432", "shop", "lockstep_shop", 3, {"search": "opensearch", "cache": "redis"})


def source(**changes: Any) -> SourceFacts:
    facts: dict[str, Any] = {
        "wal_end": Lsn(0x200),
        "received_lsn": Lsn(0x180),
        "published_lsn": Lsn(0x100),
        "published_commit_time_ms": 1_000,
        "slot_active": True,
        "retained_bytes": 512,
    }
    return SourceFacts(**facts | changes)


def sink(name: str = "search", generation: int = 1, **changes: Any) -> SinkFacts:
    facts: dict[str, Any] = {
        "is_live": True,
        "watermark_lsn": 0x80,
        "commit_time_ms": 500,
        "records_behind": 7,
        "rejected": 0,
        "job": JobStatus(JobState.RUNNING),
    }
    return SinkFacts(name, generation, **facts | changes)


def state_of(lag: LagReport, **options: Any) -> PipelineState:
    return pipeline_state(SUBJECT, lag.to_json(), Rates(), sampled_ms=2_000, **options)


def test_the_figures_are_those_of_the_lag_report() -> None:
    lag = report(source(), [sink()], now_ms=2_000)
    state, shown = state_of(lag), lag.to_json()
    in_kafka, applied = shown["stages"][2:]
    for document, stage in ((state.capture, in_kafka), (state.sinks[0], applied)):
        assert document.lsn == stage["lsn"]
        assert document.seconds_behind == stage["seconds_behind"]
        assert document.bytes_behind == stage["bytes_behind"]
    assert state.sinks[0].events_behind == 7
    assert state.source.retained_bytes == 512
    assert state.problems == ()


@pytest.mark.parametrize(
    ("facts", "where", "kind", "step"),
    [
        (source(slot_active=False), "capture", "absent", "`lockstep run`"),
        (source(wal_status=None), "capture", "stopped", "`lockstep doctor`"),
        (source(wal_status="lost"), "capture", "stopped", "`lockstep doctor`"),
    ],
)
def test_a_capture_that_does_not_run_is_a_problem(facts: SourceFacts, where: str, kind: str, step: str) -> None:
    (problem,) = state_of(report(facts, [], now_ms=2_000)).problems
    assert (problem.where, problem.state) == (where, kind)
    assert problem.next_step is not None
    assert problem.next_step.startswith(step)


def test_a_job_that_has_stopped_is_a_problem_with_its_reason() -> None:
    job = JobStatus(JobState.STOPPED, 1_234, "the disk is full", "make room")
    (problem,) = state_of(report(source(), [sink(job=job)], now_ms=2_000)).problems
    assert (problem.where, problem.state, problem.since_ms) == ("search", "stopped", 1_234)
    assert (problem.reason, problem.next_step) == ("the disk is full", "make room")


def test_another_generation_without_a_job_is_none() -> None:
    old = sink(generation=2, is_live=False, job=JobStatus(JobState.ABSENT))
    assert state_of(report(source(), [sink(), old], now_ms=2_000)).problems == ()


def test_what_nobody_knows_is_null() -> None:
    state = pipeline_state(SUBJECT, {}, Rates(), sampled_ms=1, trouble="Kafka doesn't answer")
    assert state.capture.state == "unknown"
    assert state.capture.lsn is state.source.wal_end is state.topics.events_per_s is None
    assert [problem.reason for problem in state.problems] == ["Kafka doesn't answer"]


def test_a_sink_shows_its_generations_newest_first() -> None:
    state = state_of(report(source(), [sink(), sink(generation=2, is_live=False), sink("cache")], now_ms=2_000))
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


@pytest.mark.parametrize("output", [b"", b"no json", b"[]", b"{}", b'{"tables": null}'])
def test_a_comparison_that_broke_off_has_failed(output: bytes) -> None:
    assert verify_run("search", output, finished_ms=1, seconds=2.0).state == "failed"


def test_a_comparison_counts_every_difference() -> None:
    table = b'{"rows": {"expected": 4, "sink": 3}, "missing": 1, "extra": 0, "different": 2}'
    run = verify_run(
        "search", b'{"equal": false, "lsn": "0/1", "tables": [%b]}' % table, finished_ms=1, seconds=2.0
    )  # fmt: skip
    assert (run.state, run.rows, run.differing, run.verified_through) == ("differs", 3, 3, None)
