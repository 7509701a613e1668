"""What is kept of comparisons, and what becomes an alert."""

from typing import Any

import pytest

from monitor.condition_settings import ConditionSettings
from monitor.conditions import Facts, find_conditions
from monitor.lag import LagReport
from monitor.verification import (
    Verification,
    VerifyOutcome,
    VerifySettings,
    load_verification,
    save_verification,
)
from sinks.memory import MemoryRecords, MemoryStore
from tests.lag import applied_stage

_HOUR_MS = 3_600_000


def test_up_to_where_it_was_equal_stays_known_through_worse_times() -> None:
    records = MemoryRecords(MemoryStore())
    assert load_verification(records, 2) is None
    save_verification(records, 2, Verification(1, 2, VerifyOutcome.EQUAL, through_lsn=10, through_ms=1))
    save_verification(records, 2, Verification(3, 4, VerifyOutcome.DIFFERENT, 7))
    save_verification(records, 2, Verification(5, 6, VerifyOutcome.FAILED, error="no route"))
    kept = load_verification(records, 2)
    assert kept == Verification(5, 6, VerifyOutcome.FAILED, error="no route", through_lsn=10, through_ms=1)
    assert kept.to_json()["verified_through"] == "0/A"
    assert "no route" in kept.sentence("cache", sink="cache")
    assert "verified through 0/A" in kept.sentence("cache", sink="cache")
    assert load_verification(records, 1) is None, "another generation's"
    save_verification(records, 2, Verification(7, 8, VerifyOutcome.EQUAL, through_lsn=11, through_ms=7))
    assert load_verification(records, 2) == Verification(7, 8, VerifyOutcome.EQUAL, through_lsn=11, through_ms=7)


def test_a_recovery_clears_up_to_where_it_was_equal() -> None:
    """The LSN is one of another line of WAL: it may be greater than any of the new one."""
    equal = Verification(
        1, 2, VerifyOutcome.EQUAL, through_lsn=10, through_ms=1, through_epoch=3, but_for=("tables (1)",)
    )
    records = MemoryRecords(MemoryStore())
    save_verification(records, 1, equal)
    assert load_verification(records, 1) == equal
    assert equal.in_epoch(3) is equal
    assert equal.in_epoch(None).through_lsn == 0
    after = equal.in_epoch(4)
    assert (after.through_lsn, after.to_json()["verified_through"], after.outcome) == (0, None, VerifyOutcome.EQUAL)
    assert "verified through" not in after.sentence("cache", sink="cache")
    save_verification(records, 1, Verification(3, 4, VerifyOutcome.FAILED, error="no route"))
    failed = load_verification(records, 1)
    assert failed is not None
    assert (failed.in_epoch(3).through_lsn, failed.in_epoch(4).through_lsn) == (10, 0)
    assert "verified through 0/A of 1970-01-01 00:00:00 UTC but for tables (1)" in failed.sentence(
        "cache", sink="cache"
    )


def _found(verified: dict[str, Verification], *, now_h: float = 0, **verify: Any) -> set[tuple[str, str]]:
    report = LagReport((applied_stage("cache"),), True, 0, {}, wal_status="reserved", verified=verified)
    findings = find_conditions(
        report,
        Facts(since_ms=0),
        ConditionSettings(),
        now_ms=int(now_h * _HOUR_MS),
        verify=VerifySettings(**verify),
    )
    return {condition.key for condition in findings.open}


def test_what_a_comparison_found_is_an_alert() -> None:
    assert _found({"cache": Verification(0, 1, VerifyOutcome.EQUAL)}) == set()
    assert _found({"cache": Verification(0, 1, VerifyOutcome.INCOMPLETE)}) == set()
    assert _found({"cache": Verification(0, 1, VerifyOutcome.DIFFERENT, 3)}) == {("verify-differs", "cache")}
    assert _found({"cache": Verification(0, 1, VerifyOutcome.FAILED)}) == {("verify-failed", "cache")}


def test_a_comparison_is_overdue_after_twice_its_time() -> None:
    last = {"cache": Verification(int(5 * _HOUR_MS), 1, VerifyOutcome.EQUAL)}
    overdue = {("verify-overdue", "cache")}
    assert _found({}, now_h=11.9, every="6h") == set()
    assert _found({}, now_h=12.1, every="6h") == overdue
    assert _found(last, now_h=16.9, every="6h") == set()
    assert _found(last, now_h=17.1, every="6h") == overdue
    assert _found({}, now_h=100) == set()


def test_time_outside_of_the_window_makes_none_overdue() -> None:
    """The docs' own example: what began at 4 is due at 10, and may begin at 22."""
    at_four = {"cache": Verification(4 * _HOUR_MS, 1, VerifyOutcome.EQUAL)}
    nightly: dict[str, Any] = {"every": "6h", "between": "22:00-06:00"}
    overdue = {("verify-overdue", "cache")}
    assert [hour for hour in range(4, 32) if _found(at_four, now_h=hour, **nightly)] == [29, 30, 31]
    # What is due half an hour before the end of the window has that half hour, and the next night.
    late = {"cache": Verification(int(23.5 * _HOUR_MS), 1, VerifyOutcome.EQUAL)}
    assert _found(late, now_h=24 + 27.4, **nightly) == set()
    assert _found(late, now_h=24 + 27.6, **nightly) == overdue
    # A window that is shorter than `every` has passed once without one.
    hourly: dict[str, Any] = {"every": "1d", "between": "03:00-04:00"}
    assert _found({"cache": Verification(3 * _HOUR_MS, 1, VerifyOutcome.EQUAL)}, now_h=50.9, **hourly) == set()
    assert _found({"cache": Verification(3 * _HOUR_MS, 1, VerifyOutcome.EQUAL)}, now_h=51.1, **hourly) == overdue
    short: dict[str, Any] = {"every": "10m", "between": "03:00-04:00"}
    assert _found({"cache": Verification(3 * _HOUR_MS, 1, VerifyOutcome.EQUAL)}, now_h=3.4, **short) == overdue


@pytest.mark.parametrize(
    ("between", "inside", "outside"),
    [("22:00-06:00", ("22:00", "00:00", "05:59"), ("06:00", "21:59")), ("09:30-10:00", ("09:30",), ("10:00", "09:29"))],
)
def test_a_window_may_go_over_midnight(between: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    settings = VerifySettings(between=between)

    def at(text: str) -> int:
        hours, minutes = text.split(":")
        return int(hours) * _HOUR_MS + int(minutes) * 60_000

    assert all(settings.may_begin(at(text)) for text in inside)
    assert not any(settings.may_begin(at(text)) for text in outside)


@pytest.mark.parametrize("wrong", [{"every": "0h"}, {"every": "6"}, {"between": "24:00-01:00"}, {"between": "night"}])
def test_times_that_mean_nothing_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"every|between"):
        VerifySettings(**wrong)


def test_the_command_that_it_names_is_of_the_generation_that_was_compared() -> None:
    found = Verification(1, 2, VerifyOutcome.INCOMPLETE)
    assert "`lockstep verify books` says why" in found.sentence("books", sink="books")
    assert "`lockstep verify books --generation 1` says why" in found.sentence("it", sink="books", generation=1)
