"""What the lag report says of single sinks on a terminal."""

import io
from dataclasses import replace

from rich.console import Console

from cdc.model.errors import LockstepError
from cdc.protocol.control_records import Gap
from jobs.generations.status import JobState, JobStatus
from monitor.lag import LagReport, SinkFacts, Stage, StageState
from monitor.lag_table import lag_table
from tests.lag import applied_stage


def _lag(*stages: Stage, **changes: object) -> LagReport:
    return LagReport(stages, True, 0, **{"rejected": {}, **changes})  # type: ignore[arg-type]


def _shown(lag: LagReport) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as capture:
        console.print(lag_table(lag))
    return capture.get()


def test_open_rejections_are_beside_all_there_ever_were() -> None:
    lag = _lag(rejected={"cache": 7, "search": 2, "house": 0}, open_rejections={"cache": 3, "search": 0, "house": 0})
    assert "cache: 3 rejections open, 7 ever" in _shown(lag)
    assert "search: no rejection open, 2 ever" in _shown(lag)
    assert "house" not in _shown(lag)
    assert lag.to_json()["open_rejections"] == {"cache": 3, "search": 0, "house": 0}


def test_rejections_that_cannot_be_read_are_not_taken_for_none() -> None:
    lag = _lag(open_rejections={"cache": 0}, unreadable_dead_letters=2)
    assert "2 records of the dead-letter topic can't be read" in _shown(lag)
    assert lag.to_json()["unreadable_dead_letters"] == 2


def test_a_sink_that_was_built_with_other_settings_says_which() -> None:
    lag = _lag(rebuild_needed={"search": ("fields", "tables"), "cache g2": ("mask",)})
    assert "search: rebuild needed, it was built with other fields, tables: `lockstep rebuild search`" in _shown(lag)
    assert "cache g2: rebuild needed, it was built with other mask: `lockstep rebuild cache`" in _shown(lag)
    assert lag.to_json()["rebuild_needed"] == {"search": ["fields", "tables"], "cache g2": ["mask"]}


def test_a_sink_that_is_behind_for_a_reason_says_so() -> None:
    stage = replace(applied_stage("cache", 5), state=StageState.BEHIND, reason="it waits for a lock")
    assert "applied: cache: it waits for a lock" in _shown(_lag(stage))


def test_a_sink_that_cannot_be_asked_says_why_and_what_to_do() -> None:
    lag = _lag(unanswered={"cache": LockstepError("redis refuses the login", hint="check user and password")})
    assert "cache can't be asked: redis refuses the login\ncheck user and password" in _shown(lag)
    assert lag.to_json()["unanswered"] == {"cache": "redis refuses the login"}


def test_how_often_capture_commits_is_said_where_it_is_known() -> None:
    assert "capture commits every 12 ms" in _shown(_lag(commit_interval_ms=12))
    assert "capture commits" not in _shown(_lag())


def test_a_slot_that_will_be_lost_is_announced() -> None:
    assert "lost after 2.0 KiB more of WAL" in _shown(_lag(wal_status="unreserved", safe_wal_bytes=2048))
    assert "more of WAL" not in _shown(_lag(wal_status="reserved", safe_wal_bytes=2048))
    assert "the slot is gone: `lockstep doctor`" in _shown(_lag(broken=("the slot is gone",)))


def test_a_slot_that_is_lost_soon_says_when() -> None:
    assert "the slot is lost after 1.0 MiB more of WAL, which takes 12 minutes" in _shown(
        _lag(wal_status="reserved", safe_wal_bytes=1024 * 1024, minutes_until_full=12.3)
    )
    assert "the slot is lost" not in _shown(
        _lag(wal_status="reserved", safe_wal_bytes=1024 * 1024, minutes_until_full=1200.0)
    )


def test_a_gap_is_told_until_capture_goes_on_behind_it() -> None:
    gap = Gap(0x320, 0, 1_700_000_000_000, "slot s is gone")
    assert "gap: nothing that was committed after 0/320 was read: slot s is gone (2023-11-14 22:13:20 UTC)" in _shown(
        _lag(gap=gap)
    ).replace("\n", " ")
    assert "gap" not in _shown(_lag(gap=gap._replace(to_lsn=0x400)))


def test_a_paused_copy_is_told_with_what_lets_it_go_on() -> None:
    lag = _lag(paused_copies=("public.orders",))
    assert "the copy of public.orders is paused" in _shown(lag)
    assert "`lockstep snapshot resume public.orders`" in _shown(lag)
    assert lag.to_json()["paused_copies"] == ["public.orders"]
    assert "paused" not in _shown(_lag())


def _idle(job: JobStatus, *, is_live: bool = True) -> LagReport:
    return _lag(Stage("applied", 5, 0, 0.0, 0, SinkFacts("cache", 2, is_live, 5, 0, 0, 0, job)))


def test_a_sink_that_has_stopped_says_since_when_and_why() -> None:
    lag = _idle(JobStatus(JobState.STOPPED, 60_000, "a column was renamed", "mend rename"))
    assert "cache stopped at 1970-01-01 00:01:00 UTC: a column was renamed\n    mend rename" in _shown(lag)
    assert lag.to_json()["stages"][0]["job"] == {
        "state": "stopped",
        "since_ms": 60_000,
        "reason": "a column was renamed",
        "hint": "mend rename",
        "tables": {},
    }


def test_of_a_generation_that_readers_do_not_see_only_an_error_is_told() -> None:
    assert "cache g2 stopped" in _shown(_idle(JobStatus(JobState.STOPPED, 0, "reason"), is_live=False))
    assert "cache" not in _shown(_idle(JobStatus(JobState.ABSENT), is_live=False))
    assert "no job has begun to apply to it" in _shown(_idle(JobStatus(JobState.ABSENT)))
    assert "cache" not in _shown(_idle(JobStatus(JobState.RUNNING)))


def test_a_capture_that_ended_without_a_word_says_why() -> None:
    stage = Stage("received", 5, 0, 0.0, None, state=StageState.SILENT, reason="it hung", hint="start it")
    assert "received: silent: it hung\n    start it" in _shown(_lag(stage))
