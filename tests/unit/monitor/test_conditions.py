"""Which conditions a report opens, and which of them are unknown."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import Gap
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.status import JobState, JobStatus
from jobs.generations.view_state import ReportedView
from monitor.certificates import Validity
from monitor.condition_settings import ConditionSettings
from monitor.conditions import NAMES, Condition, Facts, Findings, Severity, find_conditions
from monitor.lag import RECEIVED, LagReport, SinkFacts, Stage, StageState
from monitor.verification import Verification, VerifyOutcome
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures

_DAY_MS = 24 * 3600 * 1000
_NOW_MS = 1_800_000_000_000


def _sink(name: str = "cache", *, is_live: bool = True, job: JobStatus | None = None) -> SinkFacts:
    return SinkFacts(name, 1, is_live, 10, 0, 0, 0, job)


def _applied(sink: SinkFacts, *, behind_s: float | None = 0.0) -> Stage:
    return Stage(f"applied: {sink.label}", 10, 0, behind_s, 0, sink)


def _report(*stages: Stage, **changes: Any) -> LagReport:
    return LagReport(
        **{
            "stages": stages,
            "slot_active": True,
            "retained_bytes": 0,
            "rejected": {},
            "wal_status": "reserved",
            **changes,
        }
    )


_NO_FACTS = Facts()


def _found(report: LagReport | LockstepError, facts: Facts = _NO_FACTS, **settings: Any) -> dict[str, Severity]:
    findings = find_conditions(report, facts, ConditionSettings(**settings), now_ms=_NOW_MS)
    assert {condition.name for condition in findings.open} <= set(NAMES)
    return {"/".join(condition.key): condition.severity for condition in findings.open}


_OPEN_GAP = Gap(1, 0, 2, "why")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"safe_wal_bytes": 10, "minutes_until_full": 59.0}, ("slot-filling/capture", Severity.WARNING)),
        ({"safe_wal_bytes": 10, "minutes_until_full": 14.0}, ("slot-filling/capture", Severity.CRITICAL)),
        ({"safe_wal_bytes": 10, "wal_status": "unreserved"}, ("slot-filling/capture", Severity.CRITICAL)),
        ({"safe_wal_bytes": 10, "minutes_until_full": 61.0}, None),
        ({"retained_bytes": 10 * 1024**3 + 1}, ("slot-growing/capture", Severity.WARNING)),
        ({"wal_status": "lost", "broken": ("lost",)}, ("slot-lost/capture", Severity.CRITICAL)),
        ({"wal_status": None}, None),
        ({"broken": ("another server", "more")}, ("capture-broken/capture", Severity.CRITICAL)),
        ({"slot_active": False}, ("capture-stopped/capture", Severity.CRITICAL)),
        ({"slot_active": False, "first_copy_paused": True}, None),
        ({"slot_active": False, "paused_copies": ("public.t",)}, ("capture-stopped/capture", Severity.CRITICAL)),
        ({"open_rejections": {"cache": 3, "search": 0}}, ("rejections-open/cache", Severity.WARNING)),
        ({"rebuild_needed": {"cache": ("mask",)}}, ("rebuild-needed/cache", Severity.WARNING)),
        ({"unanswered": {"cache": Unavailable("down")}}, ("sink-unreachable/cache", Severity.CRITICAL)),
        ({"unreadable_dead_letters": 1}, ("dead-letters-unreadable/capture", Severity.WARNING)),
    ],
)
def test_what_a_report_opens(changes: dict[str, Any], expected: tuple[str, Severity] | None) -> None:
    published = Stage("in Kafka", 10, 0, 0.0, None)
    assert _found(_report(published, _applied(_sink()), **changes)) == dict([expected] if expected else [])


_ADDED = Condition("extra", "search", Severity.WARNING, "it is wrong", "mend it")


@pytest.mark.parametrize(
    "report", [Unavailable("PostgreSQL is gone"), LagReport((), True, 0, {})], ids=["silent", "well"]
)
def test_conditions_of_extensions_count_while_servers_are_silent_too(report: LagReport | Unavailable) -> None:
    def findings(facts: Facts) -> Findings:
        return find_conditions(report, facts, ConditionSettings(), now_ms=_NOW_MS)

    names = frozenset({"extra"})
    found = findings(replace(_NO_FACTS, added=(_ADDED,), added_names=names))
    assert (_ADDED in found.open, found.is_unknown("extra", "search")) == (True, False)
    nothing = findings(replace(_NO_FACTS, added_names=names, added_unknown=frozenset({("extra", "search")})))
    assert (nothing.is_unknown("extra", "search"), nothing.is_unknown("extra", "cache")) == (True, False)


def test_an_open_gap_is_a_condition_and_a_closed_one_is_not() -> None:
    assert "gap/capture" in _found(_report(gap=_OPEN_GAP))
    assert _found(_report(gap=Gap(1, 5, 2, "why"))) == {}


def test_only_the_live_generation_can_lag() -> None:
    assert _found(_report(_applied(_sink(), behind_s=301))) == {"lag/cache": Severity.WARNING}
    assert _found(_report(_applied(_sink(), behind_s=299))) == {}
    assert _found(_report(_applied(_sink(is_live=False), behind_s=301))) == {}
    assert _found(_report(_applied(_sink(), behind_s=11)), lag_s=10) == {"lag/cache": Severity.WARNING}


def test_lag_counts_what_searches_find_and_not_what_the_job_has_read() -> None:
    sink = _sink()
    applied = _applied(sink, behind_s=1.0)
    late = replace(applied, sink=None, of_sink=sink, seconds_behind=400.0)
    assert _found(_report(applied, replace(late, name="visible: cache"))) == {"lag/cache": Severity.WARNING}
    assert _found(_report(replace(late, name="read: cache"), applied)) == {}


@pytest.mark.parametrize("state", list(HeldState))
def test_a_failed_table_is_a_condition_and_a_paused_one_is_not(state: HeldState) -> None:
    held_tables = {TableName("public", "t"): HeldTable(state, 7, reason="a column has another type")}
    found = _found(_report(_applied(_sink(job=JobStatus(JobState.RUNNING, held_tables=held_tables)))))
    has_failed = state in (HeldState.FAILED, HeldState.RETRYING)  # so it doesn't end and open again with each try
    assert found == ({"table-failed/cache": Severity.CRITICAL} if has_failed else {})


def _view(*, began_s_ago: float | None) -> ReportedView:
    building = None
    if began_s_ago is not None:
        building = Building(_NOW_MS - int(began_s_ago * 1000), Doing.READING, 100, 400, 50.0)
    return ReportedView(0, ViewFigures(0, 10, 4096, Counters(), building))


@pytest.mark.parametrize(
    ("view", "state", "opens"),
    [
        (_view(began_s_ago=3601), JobState.RUNNING, True),
        (_view(began_s_ago=3599), JobState.RUNNING, False),
        (_view(began_s_ago=None), JobState.RUNNING, False),
        (_view(began_s_ago=3601), JobState.ABSENT, False),  # nobody builds it any more
    ],
)
def test_a_view_that_builds_for_long_is_a_condition(view: ReportedView, state: JobState, opens: bool) -> None:
    sink = replace(_sink("totals", job=JobStatus(state)), is_view=True, view=view)
    assert _found(_report(_applied(sink))) == ({"view-building/totals": Severity.WARNING} if opens else {})


def test_a_stalled_stage_is_a_condition_with_its_reason() -> None:
    stage = Stage(
        "in Kafka", 1, 5, 3.0, None, state=StageState.STALLED, since_ms=5, reason="the store hangs", hint="look at it"
    )
    (condition,) = find_conditions(_report(stage), Facts(), ConditionSettings(), now_ms=_NOW_MS).open
    assert (condition.key, condition.since_ms, condition.step) == (("stalled", "in Kafka"), 5, "look at it")
    assert condition.sentence == "in Kafka is stalled: the store hangs"


@pytest.mark.parametrize(
    ("days", "life_days", "severity"),
    [
        (22, 365, None),
        (20, 365, Severity.WARNING),
        (2, 365, Severity.CRITICAL),
        (-1, 365, Severity.CRITICAL),
        (0.3, 1, None),
        (0.1, 1, Severity.WARNING),
        (0.01, 1, Severity.CRITICAL),
    ],
)
def test_certificates_warn_three_weeks_ahead_and_short_ones_by_their_life(
    days: float, life_days: float, severity: Severity | None
) -> None:
    until_ms = int(_NOW_MS + days * _DAY_MS)
    facts = Facts(certificates={"kafka k:9093": Validity(until_ms, int(until_ms - life_days * _DAY_MS))})
    assert _found(_report(), facts).get("certificate-expires/kafka k:9093") == severity


@pytest.mark.parametrize(("free", "severity"), [(6, None), (4, Severity.WARNING), (1, Severity.CRITICAL)])
def test_disks_warn_before_they_are_full(free: int, severity: Severity | None) -> None:
    assert _found(_report(), Facts(disks={"/d": (free, 100)})).get("disk-filling//d") == severity


def test_a_missing_standby_counts_only_with_the_setting() -> None:
    assert _found(_report(), Facts(has_standby=False)) == {}
    assert _found(_report(), Facts(has_standby=None), standby=True) == {}
    assert _found(_report(), Facts(has_standby=False), standby=True) == {"no-standby/capture": Severity.WARNING}


def test_conditions_stay_unknown_while_servers_are_silent() -> None:
    blind = find_conditions(Unavailable("no source"), Facts(), ConditionSettings(), now_ms=_NOW_MS)
    assert [condition.key for condition in blind.open] == [("unreachable", "source-or-kafka")]
    assert blind.is_unknown("lag", "cache")
    assert not blind.is_unknown("disk-filling", "/d")
    silent = find_conditions(
        _report(_applied(_sink()), _applied(_sink("search")), unanswered={"cache": Unavailable("down")}),
        Facts(),
        ConditionSettings(),
        now_ms=_NOW_MS,
    )
    assert silent.is_unknown("lag", "cache")
    assert not silent.is_unknown("lag", "search")


def test_conditions_without_a_fact_are_unknown() -> None:
    """As after a restart, before anybody has asked."""
    for report in (_report(), Unavailable("no source")):
        unasked = find_conditions(report, Facts(None, None), ConditionSettings(standby=True), now_ms=_NOW_MS)
        for key in (("certificate-expires", "kafka k:9093"), ("disk-filling", "/d"), ("no-standby", "capture")):
            assert unasked.is_unknown(*key)
        facts = Facts({"kafka k:9093": None, "gone.pem": Validity(_NOW_MS * 2, 0)}, {"/d": None, "/e": (9, 10)}, True)
        unread = find_conditions(report, facts, ConditionSettings(standby=True), now_ms=_NOW_MS)
        assert unread.is_unknown("certificate-expires", "kafka k:9093")
        assert unread.is_unknown("disk-filling", "/d")
        assert not unread.is_unknown("certificate-expires", "gone.pem")
        assert not unread.is_unknown("certificate-expires", "of a sink that isn't there any more")
        assert not unread.is_unknown("disk-filling", "/e")
    assert not find_conditions(_report(), Facts(), ConditionSettings(), now_ms=_NOW_MS).is_unknown(
        "no-standby", "capture"
    )


def test_a_live_sink_with_an_unknown_lag_counts_as_behind_after_a_while() -> None:
    """As after `recover`, until its first watermark of the new epoch."""
    findings = find_conditions(_report(_applied(_sink(), behind_s=None)), Facts(), ConditionSettings(), now_ms=_NOW_MS)
    assert findings.is_unknown("lag", "cache")
    (lag,) = findings.open
    assert (lag.key, lag.hold_s) == (("lag", "cache"), 300.0)
    assert "how far readers of cache are behind isn't known" in lag.sentence
    assert _found(_report(_applied(_sink(is_live=False), behind_s=None))) == {}
    for lsn, state in ((None, StageState.ABSENT), (None, StageState.BUILDING), (10, StageState.PAUSED)):
        received = Stage(RECEIVED, lsn, None, None, None, state=state)
        report = _report(received, _applied(_sink(), behind_s=None))
        first = find_conditions(report, Facts(), ConditionSettings(), now_ms=_NOW_MS)
        assert first.open == (), "nobody has rows of the stream before the first copy is done"
        assert first.is_unknown("lag", "cache")


def test_an_old_report_counts_only_for_its_silent_server() -> None:
    """The rest of it is as old as the last whole one, or was never known at all."""
    never = LagReport((), None, None, {}, silent_servers={"source": Unavailable("the source hasn't answered")})
    old = _report(_applied(_sink(), behind_s=900.0), silent_servers=never.silent_servers)
    for report in (never, old):
        findings = find_conditions(report, Facts(disks={"/d": (1, 100)}), ConditionSettings(), now_ms=_NOW_MS)
        assert [condition.name for condition in findings.open] == ["unreachable", "disk-filling"]
        assert "the source hasn't answered" in findings.open[0].sentence
        for key in (("gap", "capture"), ("rejections-open", "cache"), ("stalled", "received"), ("lag", "cache")):
            assert findings.is_unknown(*key), "what was open stays open while nobody can look"
        assert not findings.is_unknown("unreachable", "source-or-kafka")


def test_the_slot_and_the_sinks_are_judged_while_kafka_is_silent() -> None:
    job = JobStatus(JobState.STOPPED, since_ms=5, reason="it refuses")
    report = _report(
        _applied(_sink(job=job), behind_s=900.0),
        _applied(_sink("search")),
        unanswered={"search": Unavailable("down")},
        wal_status="unreserved",
        safe_wal_bytes=5,
        silent_servers={"kafka": Unavailable("Kafka at k:9092 hasn't answered")},
    )
    findings = find_conditions(report, Facts(), ConditionSettings(), now_ms=_NOW_MS)
    found = {condition.name for condition in findings.open}
    assert found == {"unreachable", "slot-filling", "job-stopped", "sink-unreachable"}
    for key in (("gap", "capture"), ("rejections-open", "cache"), ("lag", "cache"), ("job-stopped", "search")):
        assert findings.is_unknown(*key)
    assert not findings.is_unknown("slot-growing", "capture")


def test_a_stage_that_does_not_answer_is_unknown() -> None:
    stage = Stage("applied: cache", None, None, None, None, _sink(), StageState.UNKNOWN, reason="no answer")
    findings = find_conditions(_report(stage), Facts(), ConditionSettings(), now_ms=_NOW_MS)
    assert findings.is_unknown("stalled", "applied: cache")


def test_an_unread_slot_is_no_condition_before_the_first_copy_is_done() -> None:
    received = Stage(RECEIVED, None, None, None, None, state=StageState.BUILDING)
    assert _found(_report(received, slot_active=False)) == {}
    absent = Stage(RECEIVED, None, None, None, None, state=StageState.ABSENT)
    assert _found(_report(absent, slot_active=False, wal_status=None)) == {}, "nor before there is a slot"
    assert _found(_report(absent, slot_active=False)) == {"capture-stopped/capture": Severity.CRITICAL}


def test_a_capture_that_starts_leaves_capture_stopped_as_it_was() -> None:
    starting = Stage(RECEIVED, None, None, None, None, state=StageState.STARTING)
    findings = find_conditions(_report(starting, slot_active=False), _NO_FACTS, ConditionSettings(), now_ms=_NOW_MS)
    assert findings.open == ()
    assert findings.is_unknown("capture-stopped", "capture")


@pytest.mark.parametrize(
    ("is_view", "step"),
    [
        (False, "`lockstep verify cache --repair` mends them"),
        (True, "`lockstep rebuild cache --switch` builds it again"),
    ],
)
def test_a_difference_names_the_command_that_mends_it(*, is_view: bool, step: str) -> None:
    """Single rows of a view can't be repaired."""
    different = Verification(1, 2, VerifyOutcome.DIFFERENT, differing=3)
    report = _report(_applied(replace(_sink(), is_view=is_view)), verified={"cache": different})
    [condition] = find_conditions(report, _NO_FACTS, ConditionSettings(), now_ms=_NOW_MS).open
    assert condition.name == "verify-differs"
    assert condition.step == f"`lockstep verify cache` shows them, and {step}"
