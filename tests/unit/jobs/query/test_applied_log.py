"""What is applied, and as of when, with and without a part that was left out."""

from cdc.protocol.control_records import ProgressRecord
from jobs.query.applied_log import AppliedLog
from jobs.query.watermark import Watermark
from sinks.contract import Progress, TopicPartition

AT: TopicPartition = ("t", 0)


def applied(*, skipped: int = 0) -> AppliedLog:
    begins_with = Progress({AT: 5}, 100, 0, 1_000, {}, skipped={AT: skipped} if skipped else {})
    return AppliedLog(begins_with, Watermark(["t"], lsn=100), ["t"])


def record(end: int) -> ProgressRecord:
    return ProgressRecord(end * 100, 0, {"t": (end,)})


def test_what_is_behind_keeps_the_time_at_which_it_was_learned_of() -> None:
    log = applied()
    assert not log.has_caught_up, "nobody has looked"
    log.learn([record(9)], now_ms=2_000)
    assert (log.complete_at_ms, log.is_behind, log.has_all) == (1_000, True, False), "it came while the sink was away"
    log.learn([record(12)], now_ms=3_000)
    log.apply({AT: 9})
    assert (log.complete_at_ms, log.is_behind, log.watermark.lsn) == (3_000, True, 900)
    log.apply({AT: 12})
    assert (log.complete_at_ms, log.has_caught_up, log.has_all) == (3_000, True, True), "nobody has looked since"
    log.learn([], now_ms=4_000)
    assert log.complete_at_ms == 4_000


def test_behind_a_gap_what_is_read_is_complete_and_the_log_is_not() -> None:
    log = applied(skipped=8)
    assert (log.unapplied({AT: 8}), log.unapplied({AT: 9})) == (set(), {"t"})
    log.learn([record(9)], now_ms=2_000)
    log.apply({AT: 9})
    log.learn([], now_ms=3_000)
    assert (log.offsets, log.skipped, log.watermark.lsn) == ({AT: 5}, {AT: 9}, 100)
    assert (log.complete_at_ms, log.read_at_ms) == (1_000, 3_000)
    assert (log.has_caught_up, log.has_all, log.advanced) == (True, False, {"t"})
