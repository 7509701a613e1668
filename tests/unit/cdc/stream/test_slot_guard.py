"""What is done about WAL that the slot makes the server keep, look by look."""

from typing import Any

import pytest

from cdc.model.lsn import Lsn
from cdc.postgres.settings import SlotGuardSettings
from cdc.stream.slot_guard import Ladder, SlotLook, Step, minutes_until_full, wal_rate, wal_size

MB = 1024 * 1024
ALL = SlotGuardSettings(warn="20MB", stop_copies="40MB", drop="60MB")  # type: ignore[arg-type]  # as in the file


def look(retained_mb: int = 0, *, at_s: float = 0.0, wal_end_mb: int = 0, **facts: Any) -> SlotLook:
    values = {"wal_status": "reserved", "safe_wal_bytes": None, **facts}
    return SlotLook(at_s, Lsn(1000 * MB + wal_end_mb * MB), Lsn(1), retained_mb * MB, **values)


def steps(settings: SlotGuardSettings, *retained_mb: int) -> list[Step]:
    ladder = Ladder("s", settings)
    return [ladder.decide(look(count)).step for count in retained_mb]


def test_each_step_is_taken_from_its_size_on() -> None:
    assert steps(ALL, 19, 20, 39, 40, 59, 60) == [
        Step.NOTHING,
        Step.WARN,
        Step.WARN,
        Step.STOP_COPIES,
        Step.STOP_COPIES,
        Step.DROP,
    ]


def test_nothing_is_done_that_was_not_asked_for() -> None:
    assert steps(SlotGuardSettings(), 10**6) == [Step.NOTHING]
    assert steps(SlotGuardSettings(stop_copies="16MB"), 10**6) == [Step.STOP_COPIES]  # type: ignore[arg-type]


def test_stopped_copies_begin_again_below_the_warning() -> None:
    assert steps(ALL, 40, 39, 20, 19, 39) == [
        Step.STOP_COPIES,
        Step.STOP_COPIES,
        Step.STOP_COPIES,
        Step.NOTHING,
        Step.WARN,
    ]


def test_without_a_warning_stopped_copies_begin_again_at_half() -> None:
    alone = SlotGuardSettings(stop_copies="40MB")  # type: ignore[arg-type]
    assert steps(alone, 40, 20, 19) == [Step.STOP_COPIES, Step.STOP_COPIES, Step.NOTHING]


def test_a_slot_that_postgresql_is_about_to_take_is_always_warned_of() -> None:
    decision = Ladder("s", SlotGuardSettings()).decide(look(5, wal_status="unreserved", safe_wal_bytes=-1))
    assert decision.step is Step.WARN
    assert "slot s makes the server keep 5.0 MB of WAL; PostgreSQL may take it away" in decision.say


def test_a_slot_that_is_lost_within_the_hour_is_warned_of() -> None:
    ladder = Ladder("s", SlotGuardSettings())
    assert ladder.decide(look(100, safe_wal_bytes=50 * MB)).say == ""
    decision = ladder.decide(look(110, at_s=60, wal_end_mb=10, safe_wal_bytes=40 * MB))
    assert decision.step is Step.WARN
    assert "which grows by 170.7 kB a second; the slot is lost in 4 minutes" in decision.say
    pause = ladder.decide(look(110, at_s=120, wal_end_mb=10, safe_wal_bytes=40 * MB))
    assert (pause.step, "the slot is lost in 8 minutes" in pause.say) == (Step.WARN, True)
    quiet = ladder.decide(look(110, at_s=1000, wal_end_mb=10, safe_wal_bytes=40 * MB))
    assert (quiet.step, "no more than it should" in quiet.say) == (Step.NOTHING, True)


def test_what_goes_on_is_said_once_a_minute_and_what_changes_at_once() -> None:
    ladder = Ladder("s", ALL)
    said = [ladder.decide(look(count, at_s=at_s)).say for count, at_s in [(20, 0), (21, 10), (22, 60), (40, 61)]]
    assert [bool(sentence) for sentence in said] == [True, False, True, True]
    assert "no table is copied in the stream meanwhile" in said[-1]


def test_the_time_until_a_slot_is_full_needs_a_limit_and_a_rate() -> None:
    rate = wal_rate(bytes_written=600, seconds=2)
    assert rate == 300
    assert minutes_until_full(18_000, rate) == 1
    assert minutes_until_full(-5, rate) == 0
    assert (minutes_until_full(None, rate), minutes_until_full(5, 0.0), minutes_until_full(5, None)) == (None,) * 3
    assert (wal_rate(bytes_written=5, seconds=0), wal_rate(bytes_written=-5, seconds=1)) == (None, None)


@pytest.mark.parametrize(
    ("size", "count"),
    [("16777216B", 16 * MB), ("16384kB", 16 * MB), ("64 MB", 64 * MB), ("10GB", 10240 * MB), ("1TB", 1024 * 1024 * MB)],
)
def test_sizes_are_postgresqls(size: str, count: int) -> None:
    assert SlotGuardSettings(drop=size).drop == count  # type: ignore[arg-type]
    assert wal_size(count) in (f"{size[:-2]}.0 {size[-2:]}", size.replace(" ", ".0 "), "16.0 MB")


@pytest.mark.parametrize("size", ["10", "10gb", "-1GB", "1.5GB", "", 10, True])
def test_another_size_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="PostgreSQL's units"):
        SlotGuardSettings(warn=size)


@pytest.mark.parametrize("size", ["0B", "0GB", "1kB", "15MB"])
def test_a_size_that_every_slot_has_is_refused(size: str) -> None:
    """The slot would be dropped at the first look, or no table ever be copied."""
    with pytest.raises(ValueError, match="every slot makes the server keep"):
        SlotGuardSettings(drop=size)  # type: ignore[arg-type]


def test_steps_that_do_not_grow_are_refused() -> None:
    with pytest.raises(ValueError, match="must grow"):
        SlotGuardSettings(warn="2GB", drop="1GB")  # type: ignore[arg-type]
