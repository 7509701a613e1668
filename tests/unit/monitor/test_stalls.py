"""Which stage is said to hang: looks in, states out."""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.table import TableName
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.status import JobState, JobStatus
from jobs.generations.view_state import ReportedView
from monitor.lag import LagReport, SinkFacts, SourceFacts, Stage, StageState, report
from monitor.stalls import CAPTURE_PREPARES_S, CAPTURE_SILENT_S, LONG_SILENT_S, STALLED_S, Look, Stalls, unreachable
from monitor.visible import Visible
from tests.lag import NOW_MS, sink_facts, source_facts
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures

_SLOT = "lockstep_shop"
_LONG_S = 2 * STALLED_S

_source = partial(source_facts, walsender="WalSenderMain")
_sink = partial(sink_facts, job=JobStatus(JobState.RUNNING))


class Watching:
    """Looks at a pipeline once a second."""

    def __init__(self) -> None:
        self._stalls = Stalls()
        self._at_s = 0

    def look(self, source: SourceFacts, *sinks: SinkFacts, seconds: float = 1.0, **known: object) -> LagReport:
        self._at_s += round(seconds)
        now_ms = NOW_MS + 1000 * self._at_s
        lag = report(source, sinks, now_ms=now_ms)
        signs: dict[str, Hashable] = {}
        look = Look(self._at_s, now_ms, source, signs, _SLOT)
        return self._stalls.judge(lag, replace(look, **known))  # type: ignore[arg-type]

    def watch(self, source: SourceFacts, *sinks: SinkFacts, seconds: float = _LONG_S, **known: object) -> LagReport:
        """The same facts again and again."""
        *_, last = (self.look(source, *sinks, **known) for _ in range(round(seconds)))
        return last


def _states(lag: LagReport) -> list[StageState]:
    return [stage.state for stage in lag.stages]


def _worst(lag: LagReport) -> Stage:
    assert lag.worst is not None
    return lag.worst


def test_a_sink_that_does_not_have_all_of_a_table_that_joined_is_being_built_and_names_it() -> None:
    """Also where it has read all that Kafka has: the copy may not have begun."""
    joining = _sink(joining=("shop.public.late",))
    lag = Watching().watch(_source(complete_lsn=1000, complete_ms=NOW_MS), joining, seconds=100)
    (*_, stage) = lag.stages
    assert (stage.state, stage.reason) == (StageState.BUILDING, "it hasn't read all of shop.public.late yet")
    assert stage.lsn == joining.watermark_lsn
    assert not lag.needs_somebody


def test_of_a_capture_that_hangs_capture_is_named_and_no_sink() -> None:
    watching = Watching()
    watching.look(_source(), _sink())
    early = _worst(watching.watch(_source(wal_end=2000), _sink()))
    assert "end its process" not in (early.hint or ""), "it may be waiting for a processor"
    lag = watching.watch(_source(wal_end=2000), _sink(), seconds=LONG_SILENT_S)
    worst = _worst(lag)
    assert (worst.name, worst.state, worst.since_ms) == ("received", StageState.STALLED, NOW_MS + 1000)
    assert "its process hangs" in (worst.reason or "")
    assert "lockstep run" in (worst.hint or "")
    assert [stage.name for stage in lag.stages if stage.state is StageState.STALLED] == ["received"]


def test_a_capture_that_hung_and_lost_its_connection_needs_somebody_until_one_reads_again() -> None:
    watching = Watching()
    watching.look(_source(), _sink())
    watching.watch(_source(wal_end=2000), _sink())
    for wal_end in (2000, 3000):
        worst = _worst(watching.watch(_source(wal_end=wal_end, slot_active=False, walsender=None), _sink()))
        assert (worst.name, worst.state, worst.since_ms) == ("received", StageState.SILENT, NOW_MS + 1000)
        assert worst.state.needs_somebody
        assert f"capture hung, and no process reads slot {_SLOT} since" in (worst.reason or "")
    again = watching.look(_source(wal_end=3000), _sink())
    assert again.stages[1].state is StageState.BEHIND
    stopped = _worst(watching.look(_source(wal_end=3000, slot_active=False, walsender=None), _sink()))
    assert stopped.state is StageState.ABSENT, "it has moved since, and may have been told to stop"


def test_a_capture_that_hung_and_lost_its_reader_is_named_by_the_first_look() -> None:
    source = _source(wal_end=2000, slot_active=False, walsender=None, is_captured=True)
    starting = StageState.STARTING
    for silent_s, state in ((0.0, starting), (None, starting), (CAPTURE_SILENT_S, StageState.SILENT)):
        lag = Watching().look(replace(source, captured_silent_s=silent_s), _sink())
        assert lag.stages[1].state is state
        assert lag.needs_somebody is (state is StageState.SILENT)
    gone = Watching().look(replace(source, is_captured=False), _sink())
    assert _worst(gone).state is StageState.ABSENT
    assert not gone.needs_somebody
    copying = Watching().look(replace(source, copied_from_lsn=500, published_lsn=None, captured_silent_s=60.0))
    assert _worst(copying).state is StageState.SILENT


def test_a_capture_that_never_comes_to_read_its_slot_needs_somebody_and_one_that_gets_on_does_not() -> None:
    source = _source(wal_end=2000, slot_active=False, walsender=None, is_captured=True, captured_silent_s=0.0)
    watching = Watching()
    for waits in ("pid 7 (psql)", None):
        lag = watching.watch(replace(source, slot_waits_for=waits), _sink(), seconds=CAPTURE_PREPARES_S - 2)
        assert lag.stages[1].state is StageState.STARTING
    for _ in range(2):
        worst = _worst(watching.watch(source, _sink(), seconds=CAPTURE_PREPARES_S))
        assert (worst.name, worst.state) == ("received", StageState.ABSENT)
        assert f"hasn't come to read slot {_SLOT}" in (worst.reason or "")
    reads = watching.look(_source(wal_end=2000), _sink())
    assert reads.stages[1].state is StageState.BEHIND
    again = watching.look(source, _sink())
    assert again.stages[1].state is StageState.STARTING


def test_a_capture_that_ends_while_it_waits_for_a_lock_may_have_been_told_to() -> None:
    watching = Watching()
    assert _worst(watching.watch(_source(wal_end=2000, blocked_by="pid 7 (psql)"))).state is StageState.STALLED
    assert _worst(watching.watch(_source(wal_end=2000, slot_active=False))).state is StageState.ABSENT


def test_a_lock_that_capture_waits_for_is_named() -> None:
    lag = Watching().watch(_source(wal_end=2000, blocked_by="pid 7 (psql)"))
    assert "held by pid 7 (psql)" in (_worst(lag).reason or "")


def test_while_the_server_decodes_a_large_transaction_nobody_hangs() -> None:
    lag = Watching().watch(_source(wal_end=2000, walsender=""), _sink())
    assert lag.worst is None
    assert _states(lag)[1] is StageState.BEHIND


def test_a_capture_that_takes_nothing_and_lives_is_at_work_on_something_else() -> None:
    watching = Watching()
    watching.look(_source())
    for told in range(100):
        lag = watching.look(_source(wal_end=2000, reported_at=f"{told // 2}"))
        assert lag.worst is None
    assert lag.stages[1].state is StageState.BEHIND
    assert "reads a whole topic, or waits for a slot" in (lag.stages[1].reason or "")


def test_a_capture_whose_signs_of_life_end_hangs() -> None:
    watching = Watching()
    for told in range(20):
        watching.look(_source(wal_end=2000, reported_at=f"{told}"))
    worst = _worst(watching.watch(_source(wal_end=2000, reported_at="19")))
    assert (worst.name, worst.state) == ("received", StageState.STALLED)


def test_who_commits_nothing_of_what_is_received_hangs_before_kafka() -> None:
    watching = Watching()
    for received in range(2000, 2020):
        lag = watching.look(_source(wal_end=3000, received_lsn=received))
    assert _worst(lag).name == "in Kafka"


@pytest.mark.parametrize("paused", [False, True])
def test_a_first_copy_is_no_stall(paused: bool) -> None:
    source = _source(slot_active=False, received_lsn=None, published_lsn=None, copied_from_lsn=500)
    source = replace(source, wal_end=2000, is_captured=True)
    watching = Watching()
    for _ in range(20):
        lag = replace(report(source, [], now_ms=NOW_MS), first_copy_paused=paused)
        lag = watching._stalls.judge(lag, Look(watching._at_s, NOW_MS, source, {}, _SLOT))
        watching._at_s += 1
    expected = StageState.PAUSED if paused else StageState.BUILDING
    assert (lag.stages[1].state, lag.stages[2].state) == (expected, StageState.BUILDING if not paused else expected)


def test_a_first_copy_that_nobody_makes_any_more_is_absent() -> None:
    source = _source(slot_active=False, received_lsn=None, published_lsn=None, copied_from_lsn=500)
    lag = Stalls().judge(report(source, [], now_ms=NOW_MS), Look(0.0, NOW_MS, source, {}, _SLOT))
    assert lag.stages[1].state is StageState.ABSENT
    assert "no capture is at work on it" in (lag.stages[1].reason or "")
    assert lag.first_copy_left
    assert lag.needs_somebody
    assert "lockstep run" in (lag.stages[1].hint or "")


def test_a_capture_that_nobody_has_started_is_absent() -> None:
    worst = _worst(Watching().watch(_source(slot_active=False, wal_end=2000)))
    assert (worst.name, worst.state) == ("received", StageState.ABSENT)
    assert worst.reason == f"no capture reads slot {_SLOT}"


def test_what_can_never_go_on_has_stopped() -> None:
    worst = _worst(Watching().look(_source(wal_status=None)))
    assert (worst.name, worst.state) == ("received", StageState.STOPPED)
    assert "the slot is gone" in (worst.reason or "")


def _behind(**changes: object) -> SinkFacts:
    return _sink(**{"records_behind": 3, "watermark_lsn": 900, **changes})


def test_a_sink_that_applies_nothing_hangs_and_the_others_do_not() -> None:
    lag = Watching().watch(_source(), _behind(), _sink(name="search"))
    worst = _worst(lag)
    assert (worst.name, worst.state) == ("applied: cache", StageState.STALLED)
    assert "its job lives" in (worst.reason or "")
    assert _states(lag)[-1] is StageState.CURRENT


def test_first_rows_take_their_time_unless_the_job_is_silent_or_waits_for_a_lock() -> None:
    def first(second: int) -> SinkFacts:
        return _behind(has_begun=False, watermark_lsn=0, job=JobStatus(JobState.RUNNING, last_sign_ms=second))

    watching = Watching()
    for second in range(600):
        lag = watching.look(_source(), first(second))
        assert lag.worst is None
    assert (lag.stages[4].state, lag.stages[4].reason) == (StageState.BUILDING, "its first rows are being loaded")
    assert _worst(watching.look(_source(), first(600))).state is StageState.STALLED
    assert _worst(Watching().watch(_source(), first(1))).state is StageState.STALLED, "no sign of life"
    watching = Watching()
    for second in range(round(_LONG_S)):
        lag = watching.look(_source(), first(second), blocked={"cache": "pid 9 (dbt)"})
    assert "pid 9 (dbt)" in (_worst(lag).reason or "")


def test_a_job_that_was_started_again_has_longer_for_its_first_batch() -> None:
    watching = Watching()
    watching.look(_source(), _behind(job=JobStatus(JobState.ABSENT)))
    assert watching.watch(_source(), _behind(), seconds=30).worst is None
    assert _worst(watching.watch(_source(), _behind())).state is StageState.STALLED
    watching.look(_source(), _behind(watermark_lsn=950))
    assert _worst(watching.watch(_source(), _behind(watermark_lsn=950))).state is StageState.STALLED


def test_a_job_that_was_killed_has_it_too_once_the_next_one_gives_signs_of_life() -> None:
    """The next one begins before the one before counts as silent, so no look finds that none runs."""

    def facts(sign_ms: int, **changes: object) -> SinkFacts:
        return _behind(job=JobStatus(JobState.RUNNING, last_sign_ms=sign_ms), **changes)

    watching = Watching()
    for sign_ms in range(3):
        watching.look(_source(), facts(sign_ms, records_behind=0))
    killed = watching.watch(_source(), facts(2), seconds=round(STALLED_S) + 2)
    assert "no sign of life" in (_worst(killed).reason or "")
    for sign_ms in range(3, 28):
        assert watching.look(_source(), facts(sign_ms)).worst is None
    watching.look(_source(), facts(28, watermark_lsn=950))
    for sign_ms in range(29, 29 + round(_LONG_S)):
        lag = watching.look(_source(), facts(sign_ms, watermark_lsn=950))
    assert _worst(lag).state is StageState.STALLED, "it has moved, and hangs now"


def test_a_job_that_no_look_found_silent_does_not_pass_for_a_killed_one() -> None:
    """Looks may be rare, and there is none while the source or the store doesn't answer."""
    watching, gap_s = Watching(), 2 * STALLED_S

    def facts(sign_ms: int, **changes: object) -> SinkFacts:
        return _behind(job=JobStatus(JobState.RUNNING, last_sign_ms=sign_ms), **changes)

    for sign_ms in range(3):
        assert watching.look(_source(), facts(sign_ms, records_behind=0), seconds=gap_s).worst is None
    for sign_ms in range(3, 3 + round(_LONG_S)):
        lag = watching.look(_source(), facts(sign_ms))
    assert _worst(lag).state is StageState.STALLED


def test_a_job_without_a_sign_of_life_hangs_also_where_only_its_watermark_lags() -> None:
    def facts(sign_ms: int) -> SinkFacts:
        job = JobStatus(JobState.RUNNING, last_sign_ms=sign_ms)
        return _sink(watermark_lsn=900, job=job)

    worst = _worst(Watching().watch(_source(), facts(1), seconds=3 * STALLED_S))
    assert (worst.name, worst.state) == ("applied: cache", StageState.STALLED)
    assert "no sign of life" in (worst.reason or "")
    watching = Watching()
    for sign_ms in range(20):  # as while rows from before get a new column
        assert watching.look(_source(), facts(sign_ms)).worst is None


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (JobStatus(JobState.STOPPED, 5, "refused", "do this"), StageState.STOPPED),
        (JobStatus(JobState.SILENT, 5), StageState.SILENT),
        (JobStatus(JobState.ABSENT, 5), StageState.ABSENT),
    ],
)
def test_a_sink_without_a_job_is_in_the_state_of_its_job(job: JobStatus, state: StageState) -> None:
    worst = _worst(Watching().watch(_source(), _behind(job=job)))
    assert (worst.name, worst.state, worst.since_ms) == ("applied: cache", state, 5)
    assert "`lockstep apply` starts it" in (worst.hint or "")
    if state is not StageState.STOPPED:
        assert Watching().watch(_source(), _behind(job=job, is_live=False)).worst is None


def test_a_sink_that_moves_every_half_minute_gets_on() -> None:
    """Its batches take so long. One that then stops is noticed after twice the time."""
    watching, waits = Watching(), 30

    def move(lsn: int, seconds: int) -> set[StageState]:
        facts = _behind(watermark_lsn=lsn, job=JobStatus(JobState.RUNNING, last_sign_ms=None))
        looks = [watching.look(_source(), facts) for _ in range(seconds)]
        return {look.stages[-1].state for look in looks}

    for lsn in (100, 101):
        move(lsn, waits)
    assert StageState.STALLED not in move(102, waits) | move(103, waits)
    assert StageState.STALLED in move(104, 3 * waits)


def test_a_job_that_is_on_its_way_needs_nobody() -> None:
    lag = Watching().watch(_source(), _behind(job=JobStatus(JobState.STARTING, 5)), seconds=300)
    applied = lag.stages[-1]
    assert (applied.state, applied.since_ms, applied.hint) == (StageState.STARTING, 5, None)
    assert (lag.worst, lag.idle, lag.needs_somebody) == (None, {}, False)


def test_a_sink_that_waits_for_a_copy_or_leaves_out_a_part_is_no_stall() -> None:
    waiting = _sink(watermark_lsn=900)
    assert _states(Watching().watch(_source(), waiting, copying=True))[4] is StageState.BUILDING
    assert Watching().watch(_source(), _behind(), left_out={"cache"}).worst is None


def test_a_source_that_does_not_answer_is_to_blame_from_the_first_stage_on() -> None:
    last = Watching().look(_source(), _sink())
    lag = replace(last, stages=unreachable(last, [], "no answer", now_ms=NOW_MS))
    worst = _worst(lag)
    assert (worst.name, worst.state) == ("WAL end", StageState.UNKNOWN)
    assert (worst.reason, worst.since_ms) == ("no answer", NOW_MS)
    again = unreachable(lag, [], "no answer for 9 s", now_ms=NOW_MS + 9)
    assert again[0].since_ms == NOW_MS, "since the first time"
    never = LagReport(unreachable(None, ["cache"], "no answer", now_ms=NOW_MS), None, None, {})
    assert _worst(never).name == "WAL end"
    assert never.stages[4].name == "applied: cache", "no sink may pass for one that isn't there"


def test_while_kafka_is_silent_the_source_and_the_sinks_tell_what_they_know() -> None:
    watching = Watching()
    sinks = (_sink(watermark_lsn=900, records_behind=None), _sink("search", job=JobStatus(JobState.STOPPED)))
    lag = watching.watch(_source(wal_end=1200), *sinks, silent_kafka="no answer")
    end, received, in_kafka, _, cache, _, search = lag.stages
    assert [stage.lsn for stage in lag.stages] == [1200, 1000, 1000, 900, 900, 1000, 1000]
    assert [stage.bytes_behind for stage in lag.stages] == [0, 200, 200, 300, 300, 200, 200]
    assert end.state is StageState.CURRENT
    for stage in (in_kafka, cache):
        assert (stage.state, stage.reason, stage.events_behind) == (StageState.UNKNOWN, "no answer", None)
    assert search.state is StageState.STOPPED
    assert received.state is StageState.STALLED, "it gives no sign of life, and Kafka has nothing to do with that"
    assert lag.needs_somebody


def test_a_capture_that_waits_for_a_silent_kafka_does_not_hang() -> None:
    watching = Watching()
    for second in range(round(_LONG_S)):
        lag = watching.look(_source(wal_end=1200, reported_at=str(second)), _sink(), silent_kafka="no answer")
    assert lag.stages[1].state is StageState.BEHIND
    assert "it waits for Kafka" in (lag.stages[1].reason or "")
    assert _worst(lag).name == "in Kafka"


def test_nobody_says_that_capture_has_never_run_who_could_not_ask_kafka() -> None:
    away = _source(published_lsn=None, published_commit_time_ms=None, received_lsn=None, slot_active=False)
    received = Watching().look(away, silent_kafka="no answer").stages[1]
    assert (received.state, received.reason) == (StageState.ABSENT, f"no capture reads slot {_SLOT}")
    at_work = replace(away, is_captured=True, captured_silent_s=1.0)
    assert Watching().look(at_work, silent_kafka="no answer").stages[1].state is StageState.UNKNOWN


def _histories() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Steps of WAL that is written, and of what capture takes of it, each second."""
    return st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)


def _positions(steps: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    end = taken = 1
    for written, moves in steps:
        end += written
        taken = min(end, taken + moves)
        yield end, taken


@given(_histories())
def test_it_hangs_exactly_where_it_lacked_something_all_the_time_and_stood_still(steps: list[tuple[int, int]]) -> None:
    watching, still_s, before = Watching(), 0, None
    for end, taken in _positions(steps):
        source = _source(wal_end=end, received_lsn=taken, published_lsn=taken)
        lag = watching.look(source)
        still_s = 0 if before is None or taken in (end,) or taken != before else still_s + 1
        before = taken
        assert (lag.stages[1].state is StageState.STALLED) == (still_s >= STALLED_S)


@pytest.mark.parametrize("state", [HeldState.PAUSED, HeldState.FAILED, HeldState.RETRYING])
def test_a_sink_with_a_table_that_is_held_is_paused_however_much_comes(state: HeldState) -> None:
    """The rows that come are those of the table."""
    held_tables = {TableName("public", "t"): HeldTable(state, 60_000, reason="no room", hint="lockstep resume")}
    job = JobStatus(JobState.RUNNING, last_sign_ms=NOW_MS, held_tables=held_tables)
    watching = Watching()
    for rows in range(1, 20):
        job = replace(job, last_sign_ms=NOW_MS + rows)
        sink = _sink(records_behind=rows, records_held=rows, watermark_lsn=500, job=job)
        lag = watching.look(_source(), sink)
    stage = lag.stages[-1]
    assert (stage.state, stage.since_ms) == (StageState.PAUSED, 60_000)
    assert stage.reason is not None
    assert "public.t" in stage.reason
    assert "lockstep resume" in (stage.hint or "")


def test_a_paused_table_hides_no_hang_of_the_others() -> None:
    held_tables = {TableName("public", "t"): HeldTable(HeldState.PAUSED, 60_000)}
    watching, states = Watching(), []
    for second in range(60):
        job = JobStatus(JobState.RUNNING, last_sign_ms=NOW_MS + second, held_tables=held_tables)
        sink = _sink(records_behind=7 + second, records_held=second, watermark_lsn=500, job=job)
        states.append(watching.look(_source(), sink).stages[-1].state)
    assert states[-1] is StageState.STALLED
    assert set(states) == {StageState.PAUSED, StageState.STALLED}


# --- views ---


def _told(done: int, *, building: bool = True) -> ReportedView:
    progress = Building(5_000, Doing.READING, done, 500, 10.0) if building else None
    return ReportedView(5_000, ViewFigures(0 if building else 8, 10, 4096, Counters(rows=3), progress, done))


def test_a_view_that_is_being_built_is_building_and_never_stalled() -> None:
    watching = Watching()
    sink = _sink(is_view=True, watermark_lsn=0, commit_time_ms=0, records_behind=500, view=_told(100))
    for second in range(100):  # its job gives signs of life
        alive = replace(sink, job=JobStatus(JobState.RUNNING, last_sign_ms=second))
        lag = watching.look(_source(wal_end=2000, published_lsn=2000, received_lsn=2000), alive)
    stage = lag.stages[-1]
    assert (stage.state, stage.since_ms) == (StageState.BUILDING, 5_000)
    assert stage.reason == (
        "the view's state is being built: reading 100 of 500 events of the log, 10 a second, 40 s left"
    )
    assert lag.building_views == [f"{sink.label}: {stage.reason}"]
    assert not lag.needs_somebody


def test_a_view_of_which_nothing_is_there_yet_is_to_be_built() -> None:
    sink = _sink(is_view=True, watermark_lsn=0, commit_time_ms=0, records_behind=500)
    stage = Watching().watch(_source(), sink).stages[-1]
    assert (stage.state, stage.reason) == (StageState.BUILDING, "the view's state is to be built")


def test_a_view_that_is_built_hangs_as_any_sink_does() -> None:
    sink = _sink(is_view=True, records_behind=5, view=_told(1, building=False))
    assert Watching().watch(_source(), sink).stages[-1].state is StageState.STALLED


def test_a_job_with_nothing_in_hand_hangs_where_it_reads_and_has_applied_all() -> None:
    lag = Watching().watch(_source(), _behind(in_hand=0))
    worst = _worst(lag)
    assert (worst.name, worst.state) == ("read: cache", StageState.STALLED)
    assert "has read none of Kafka's records" in (worst.reason or "")
    assert worst.since_ms == NOW_MS + 1000
    assert _states(lag)[-1] is StageState.CURRENT, "it has all of the stage that hangs"


def test_a_job_whose_process_hangs_does_so_where_it_was() -> None:
    job = JobStatus(JobState.RUNNING, last_sign_ms=1)
    for in_hand, stage in ((0, "read: cache"), (3, "applied: cache"), (None, "applied: cache")):
        watching = Watching()
        worst = _worst(watching.watch(_source(), _behind(in_hand=in_hand, job=job)))
        assert (worst.name, worst.state) == (stage, StageState.STALLED)
        assert "end its process" not in (worst.hint or "")
        late = _worst(watching.watch(_source(), _behind(in_hand=in_hand, job=job), seconds=LONG_SILENT_S))
        assert "its process hangs" in (late.reason or "")


def test_of_a_sink_without_a_job_the_applied_stage_says_why_and_the_one_of_reading_is_so_too() -> None:
    lag = Watching().look(_source(), _behind(job=JobStatus(JobState.STOPPED, 5, "refused", "do this")))
    read, applied = lag.stages[3:]
    assert (read.state, read.reason) == (StageState.STOPPED, None)
    assert (applied.state, applied.reason) == (StageState.STOPPED, "refused")
    assert _worst(lag).name == "applied: cache"


def _unseen(lsn: int = 900) -> SinkFacts:
    return _sink(visible=Visible(False, lsn, NOW_MS, unseen=2))


def test_what_was_applied_and_is_shown_by_no_refresh_hangs_there() -> None:
    watching = Watching()
    lag = watching.watch(_source(), _unseen(), refresh_s={"cache": 0.2}, seconds=STALLED_S)
    assert lag.worst is None
    worst = _worst(watching.watch(_source(), _unseen(), refresh_s={"cache": 0.2}))
    assert (worst.name, worst.state) == ("visible: cache", StageState.STALLED)
    assert "refresh_interval" in (worst.hint or "")
    assert watching.look(_source(), _sink(visible=Visible(True, 1000, NOW_MS, 0))).worst is None


def test_a_store_has_as_long_for_a_refresh_as_its_settings_say() -> None:
    watching = Watching()
    assert watching.watch(_source(), _unseen(), refresh_s={"cache": 60.0}, seconds=60).worst is None
    assert _worst(watching.watch(_source(), _unseen(), refresh_s={"cache": 60.0})).name == "visible: cache"
