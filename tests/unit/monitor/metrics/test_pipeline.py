"""The lag report as gauges."""

from dataclasses import replace

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.status import JobState, JobStatus
from monitor.lag import LagReport, SinkFacts, Stage, StageState
from monitor.metrics.pipeline import gauges_of

_SINK = SinkFacts("cache", 1, True, 10, 0, 0, 0)


def _samples(lag: LagReport) -> list[tuple[str, str, float]]:
    return [
        (sample.name.removeprefix("lockstep_"), sample.labels.get("state", ""), sample.value)
        for metric in gauges_of(lag, now_s=1.0)
        for sample in metric.samples
    ]


def test_a_stage_of_which_nobody_knows_isn_t_said_not_to_be_stalled() -> None:
    stage = Stage("applied: cache", None, None, None, None, _SINK, StageState.UNKNOWN)
    lag = LagReport((stage,), True, 0, {}, unanswered={"cache": Unavailable("no answer")})
    shown = _samples(lag)
    assert [(state, value) for name, state, value in shown if name == "stage_state"] == [("unknown", 1.0)]
    assert ("sink_answers", "", 0.0) in shown
    assert "rebuild_needed" not in {name for name, *_ in shown}, "it couldn't be asked what it was built with"


def test_tables_that_a_sink_cannot_take_are_counted() -> None:
    held_tables = {
        TableName("public", "a"): HeldTable(HeldState.FAILED, 5, reason="no room"),
        TableName("public", "b"): HeldTable(HeldState.PAUSED, 5),
    }
    job = JobStatus(JobState.RUNNING, held_tables=held_tables)
    for known, failed in ((job, 1.0), (JobStatus(JobState.RUNNING), 0.0)):
        stage = Stage("applied: cache", 10, 0, 0.0, 0, replace(_SINK, job=known), StageState.CURRENT)
        assert ("failed_tables", "", failed) in _samples(LagReport((stage,), True, 0, {}))
    unasked = Stage("applied: cache", 10, 0, 0.0, 0, _SINK, StageState.CURRENT)
    assert "failed_tables" not in {name for name, *_ in _samples(LagReport((unasked,), True, 0, {}))}


def test_what_an_extension_writes_to_and_has_refused_nothing_has_a_series_too() -> None:
    lag = LagReport((), True, 0, {}, refused_rows={"recent": 3, "taps": 0})

    def told(lag: LagReport) -> dict[str, float]:
        gauges = gauges_of(lag, now_s=1.0)
        name = "lockstep_open_rejections"
        return {s.labels["sink"]: s.value for metric in gauges for s in metric.samples if s.name == name}

    assert told(lag) == {"recent": 3.0, "taps": 0.0}
    assert told(replace(lag, silent_servers={"kafka": Unavailable("no answer")})) == {}


def test_of_what_a_silent_server_would_tell_nothing_is_said() -> None:
    stage = Stage("applied: cache", 10, 0, 0.0, 0, _SINK, StageState.CURRENT)
    whole = LagReport((stage,), True, 0, {}, open_rejections={"cache": 0}, paused_copies=("public.t",), broken=("no",))
    told = {"sink_answers", "rebuild_needed", "open_rejections", "paused_copies", "broken", "slot_active"}
    assert told <= {name for name, *_ in _samples(whole)}
    silent = {name for name, *_ in _samples(replace(whole, silent_servers={"source": Unavailable("no answer")}))}
    assert not told & silent
    without_kafka = replace(whole, open_rejections={}, silent_servers={"kafka": Unavailable("no answer")})
    assert told & {name for name, *_ in _samples(without_kafka)} == {"sink_answers", "rebuild_needed", "slot_active"}
    assert "look_timestamp_seconds" in silent


def test_the_state_of_a_sink_without_a_job_is_told_once_and_one_that_hangs_at_reading_by_that_stage() -> None:
    applied = Stage("applied: cache", 10, 0, 0.0, 0, _SINK, StageState.STOPPED)
    read = Stage("read: cache", 10, 0, 0.0, 0, state=StageState.STOPPED, of_sink=_SINK)

    def states(*stages: Stage) -> set[tuple[str, str]]:
        return {
            (sample.labels["stage"], sample.labels["state"])
            for metric in gauges_of(LagReport(stages, True, 0, {}), now_s=1.0)
            for sample in metric.samples
            if sample.name == "lockstep_stage_state" and sample.value
        }

    assert states(read, applied) == {("applied", "stopped")}
    hangs, moves = replace(read, state=StageState.STALLED), replace(applied, state=StageState.CURRENT)
    assert states(hangs, moves) == {("read", "stalled"), ("applied", "current")}
