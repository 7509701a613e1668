"""What is kept of comparisons, and what becomes an alert."""

from monitor.condition_settings import ConditionSettings
from monitor.conditions import Facts, find_conditions
from monitor.lag import LagReport
from monitor.verification import (
    Verification,
    VerifyOutcome,
    load_verification,
    save_verification,
)
from sinks.memory import MemorySink, MemoryStore
from tests.lag import applied_stage


def test_up_to_where_it_was_equal_stays_known_through_worse_times() -> None:
    records = MemorySink(MemoryStore())
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
    records = MemorySink(MemoryStore())
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


def _found(verified: dict[str, Verification]) -> set[tuple[str, str]]:
    report = LagReport((applied_stage("cache"),), True, 0, {}, wal_status="reserved", verified=verified)
    findings = find_conditions(report, Facts(), ConditionSettings(), now_ms=0)
    return {condition.key for condition in findings.open}


def test_what_a_comparison_found_is_an_alert() -> None:
    assert _found({"cache": Verification(0, 1, VerifyOutcome.EQUAL)}) == set()
    assert _found({"cache": Verification(0, 1, VerifyOutcome.INCOMPLETE)}) == set()
    assert _found({"cache": Verification(0, 1, VerifyOutcome.DIFFERENT, 3)}) == {("verify-differs", "cache")}
    assert _found({"cache": Verification(0, 1, VerifyOutcome.FAILED)}) == {("verify-failed", "cache")}


def test_the_command_that_it_names_is_of_the_generation_that_was_compared() -> None:
    found = Verification(1, 2, VerifyOutcome.INCOMPLETE)
    assert "`lockstep verify books` says why" in found.sentence("books", sink="books")
    assert "`lockstep verify books --generation 1` says why" in found.sentence("it", sink="books", generation=1)
