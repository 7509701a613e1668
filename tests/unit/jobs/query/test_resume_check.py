"""When a sink may go on, and when it must not."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cdc.model.errors import PositionMismatch
from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from jobs.query.resume_check import (
    FOR_EVER_MS,
    TopicFacts,
    check_epochs,
    check_resume,
    check_same_topics,
)
from sinks.contract import Progress

TOPIC = "shop.public.orders"
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
FACTS = TopicFacts(topic_id="first", partitions=2, delete_retention_ms=24 * HOUR_MS)
STORED: Offsets = {(TOPIC, 0): 10, (TOPIC, 1): 20}


def progress(
    next_offsets: Offsets | None = None, *, topic_id: str = "first", updated_at_ms: int = NOW_MS - HOUR_MS
) -> Progress:
    offsets = STORED if next_offsets is None else next_offsets
    return Progress(offsets, 100, 0, updated_at_ms, {TOPIC: topic_id})


def check(
    stored: Progress | None,
    *,
    topics: Mapping[str, TopicFacts] | None = None,
    ends: Offsets | None = None,
    begins: Offsets | None = None,
) -> None:
    check_resume(
        "search",
        stored,
        topics=topics or {TOPIC: FACTS},
        begins=begins or {(TOPIC, 0): 0, (TOPIC, 1): 0},
        ends=ends or {(TOPIC, 0): 50, (TOPIC, 1): 50},
        now_ms=NOW_MS,
    )


def test_a_topic_that_was_recreated_is_refused() -> None:
    with pytest.raises(PositionMismatch, match=r"orders was recreated .*") as caught:
        check(progress(topic_id="another"))
    assert "lockstep snapshot table TABLE" in str(caught.value)


def test_another_number_of_partitions_is_refused() -> None:
    with pytest.raises(PositionMismatch, match="has 3 partitions, sink 'search' has read 2"):
        check(progress(), topics={TOPIC: TopicFacts("first", 3, 24 * HOUR_MS)})


def test_a_sink_that_was_away_longer_than_tombstones_live_is_refused() -> None:
    with pytest.raises(PositionMismatch, match=r"was away for 25.0 hours; .* keeps tombstones for 24.0 hours"):
        check(progress(updated_at_ms=NOW_MS - 25 * HOUR_MS))


def test_a_clock_that_was_ahead_does_not_say_how_long_a_sink_was_away() -> None:
    ahead = progress(updated_at_ms=NOW_MS + HOUR_MS)
    with pytest.raises(PositionMismatch, match=r"1.0 hours ahead of this clock: .* deletes may be missing"):
        check(ahead)
    check(ahead, ends=STORED)
    check(progress(updated_at_ms=NOW_MS + 60_000))


def test_a_topic_that_was_not_read_for_a_while_was_away_though_the_sink_was_not() -> None:
    """Its table was taken out, and is back."""
    left = replace(progress(updated_at_ms=NOW_MS), left_at_ms={TOPIC: NOW_MS - 25 * HOUR_MS})
    with pytest.raises(PositionMismatch, match=r"was away for 25.0 hours"):
        check(left)
    check(replace(left, left_at_ms={TOPIC: NOW_MS - 23 * HOUR_MS}))


def test_what_was_left_out_on_purpose_keeps_no_sink_away_until_it_is_to_be_read() -> None:
    ends, behind = {(TOPIC, 0): 50, (TOPIC, 1): 50}, {(TOPIC, 0): 30, (TOPIC, 1): 30}
    old = progress(updated_at_ms=NOW_MS - 25 * HOUR_MS)
    check(replace(old, skipped=ends))  # it has read all that came behind
    check(replace(old, skipped=behind, read_at_ms=NOW_MS - HOUR_MS))
    closed = replace(old, read_at_ms=NOW_MS - HOUR_MS, reads_again={(TOPIC, 0): 0, (TOPIC, 1): 0})
    for known in (replace(old, skipped=behind), closed):
        with pytest.raises(PositionMismatch, match=r"was away for 25.0 hours"):
            check(known)


def test_a_sink_that_missed_nothing_may_be_away_for_ever() -> None:
    check(progress(updated_at_ms=NOW_MS - 25 * HOUR_MS), ends=STORED)


def test_a_log_is_read_again_without_a_break_that_outlives_its_deletes() -> None:
    again = progress(updated_at_ms=NOW_MS - 25 * HOUR_MS)
    check(again, ends=STORED)
    with pytest.raises(PositionMismatch, match=r"was away for 25.0 hours"):
        check(replace(again, reads_again={(TOPIC, 0): 5}), ends=STORED)
    check(replace(again, updated_at_ms=NOW_MS - HOUR_MS, reads_again={(TOPIC, 0): 5}), ends=STORED)


def test_a_log_that_has_lost_what_is_still_to_be_read_is_refused() -> None:
    begins = {(TOPIC, 0): 0, (TOPIC, 1): 15}
    with pytest.raises(PositionMismatch, match=r"partition 1, begins at 15: the records from 0 on") as caught:
        check(None, begins=begins)
    assert "lockstep snapshot table" in str(caught.value)
    with pytest.raises(PositionMismatch, match="from 5 on"):
        check(replace(progress(), reads_again={(TOPIC, 1): 5}), begins=begins)
    check(progress(), begins=begins)  # what was deleted has been read
    check(replace(progress({}), skipped={(TOPIC, 1): 15}), begins=begins)


@pytest.mark.parametrize("left_out", [True, False])
def test_a_log_that_ends_before_what_was_read_is_refused(left_out: bool) -> None:
    ends = {(TOPIC, 0): 10, (TOPIC, 1): 19}
    stored = replace(progress({}), skipped=STORED) if left_out else progress()
    with pytest.raises(PositionMismatch, match=r"partition 1, up to 20, but the end was 19: Kafka was put") as caught:
        check(stored, ends=ends)
    assert "lockstep rebuild search --switch" in str(caught.value)
    check(stored, ends=STORED)


def epoch_record(epoch: int, *ends: int) -> ProgressRecord:
    return ProgressRecord(100, 100, {TOPIC: ends}, epoch)


def test_a_log_that_had_less_when_an_epoch_began_is_refused_though_it_has_more_now() -> None:
    records = [epoch_record(0, 5, 10), epoch_record(1, 10, 19), epoch_record(1, 30, 40)]
    with pytest.raises(PositionMismatch, match="up to 20, but the end was 19 when capture was recovered"):
        check_epochs("search", progress(), records)


def test_a_sink_that_knows_the_epoch_or_had_read_no_more_goes_on() -> None:
    records = [epoch_record(1, 10, 19), epoch_record(1, 30, 40)]
    for known in (replace(progress(), log_epoch=1), replace(progress(), epoch=1)):
        check_epochs("search", known, records)
    check_epochs("search", progress(), [epoch_record(1, 10, 20), epoch_record(2, 11, 22)])
    check_epochs("search", progress(), [ProgressRecord(100, 100, {}, 1)])


def same(*, topic_id: str = "first", partitions: int = 2) -> None:
    check_same_topics("search", {TOPIC: FACTS}, {TOPIC: (topic_id, partitions), "another": ("its own", 7)})


def test_a_topic_that_is_recreated_under_a_running_job_is_refused() -> None:
    with pytest.raises(PositionMismatch, match="was recreated") as caught:
        same(topic_id="second")
    assert "lockstep rebuild search --switch" in str(caught.value)


def test_partitions_that_are_added_under_a_running_job_are_refused() -> None:
    with pytest.raises(PositionMismatch, match="has 3 partitions, sink 'search' has read 2"):
        same(partitions=3)


def test_a_topic_that_is_not_compacted_loses_no_delete_however_long_a_sink_is_away() -> None:
    facts = replace(FACTS, delete_retention_ms=FOR_EVER_MS)
    check(progress(updated_at_ms=1), topics={TOPIC: facts})
