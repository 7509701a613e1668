"""cdc.stream.slot_watch: what is said about WAL that the slot makes the server keep, look by look."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.lsn import Lsn
from cdc.stream.slot_watch import SlotLook, SlotWatch, Warnings, minutes_until_full, wal_rate, wal_size

MB = 1024 * 1024


def look(retained_mb: int = 0, *, at_s: float = 0.0, wal_end_mb: int = 0, **facts: Any) -> SlotLook:
    values = {"wal_status": "reserved", "safe_wal_bytes": None, **facts}
    return SlotLook(at_s, Lsn(1000 * MB + wal_end_mb * MB), retained_mb * MB, **values)


def test_a_slot_that_postgresql_is_about_to_take_is_warned_of() -> None:
    said, _ = Warnings("s").decide(look(5, wal_status="unreserved", safe_wal_bytes=-1))
    assert said.startswith("warning: slot s makes the server keep 5.0 MB of WAL; PostgreSQL may take it away")


def test_a_slot_that_is_lost_within_the_hour_is_warned_of() -> None:
    warnings = Warnings("s")
    assert warnings.decide(look(100, safe_wal_bytes=50 * MB))[0] == ""
    said, held = warnings.decide(look(110, at_s=60, wal_end_mb=10, safe_wal_bytes=40 * MB))
    assert "which grows by 170.7 kB a second; the slot is lost in 4 minutes" in said
    assert held.minutes_until_full == 4
    assert warnings.decide(look(110, at_s=90, wal_end_mb=15, safe_wal_bytes=35 * MB))[0] == "", "once a minute"
    pause, _ = warnings.decide(look(110, at_s=120, wal_end_mb=15, safe_wal_bytes=35 * MB))
    assert "the slot is lost in 5 minutes" in pause
    quiet, _ = warnings.decide(look(110, at_s=1000, wal_end_mb=15, safe_wal_bytes=35 * MB))
    assert "no more than it should" in quiet


def test_without_a_limit_nothing_is_said() -> None:
    warnings = Warnings("s")
    assert [warnings.decide(look(10**6, at_s=at_s, wal_end_mb=at_s))[0] for at_s in range(0, 200, 50)] == [""] * 4


def test_a_slot_that_is_lost_while_nobody_reads_it_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_s = [100.0]
    monkeypatch.setattr("cdc.stream.slot_watch.time", SimpleNamespace(monotonic=lambda: at_s[0]))
    status = "reserved"

    def execute(statement: str, _: object) -> Any:  # PostgreSQL has no restart_lsn of a lost one any more
        row = None if "restart_lsn is not null" in statement else ("s", "pgoutput", "app", None, None, status)
        return SimpleNamespace(fetchone=lambda: row)

    said: list[str] = []
    watch = SlotWatch("s", said.append)
    watch.look_if_due(cast("Any", SimpleNamespace(execute=execute)))
    assert said == []
    status = "lost"
    for at_s[0] in (111.0, 122.0, 185.0):
        watch.look_if_due(cast("Any", SimpleNamespace(execute=execute)))
    (sentence,) = said
    assert "slot s is lost" in sentence
    assert "lockstep recover" in sentence


def test_the_time_until_a_slot_is_full_needs_a_limit_and_a_rate() -> None:
    rate = wal_rate(bytes_written=600, seconds=2)
    assert rate == 300
    assert minutes_until_full(18_000, rate) == 1
    assert minutes_until_full(-5, rate) == 0
    assert (minutes_until_full(None, rate), minutes_until_full(5, 0.0), minutes_until_full(5, None)) == (None,) * 3
    assert (wal_rate(bytes_written=5, seconds=0), wal_rate(bytes_written=-5, seconds=1)) == (None, None)


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 B"), (16 * MB, "16.0 MB"), (10240 * MB, "10.0 GB"), (1024 * 1024 * MB, "1.0 TB")]
)
def test_sizes_are_in_postgresqls_units(count: int, text: str) -> None:
    assert wal_size(count) == text
