"""jobs.generations.first_read"""

import pytest

from cdc.model.errors import PositionMismatch
from jobs.generations.first_read import dump_first_read, first_read, first_read_name, load_first_read
from jobs.query.resume_check import TopicFacts, check_resume
from jobs.query.view_shards import ViewShards
from sinks.memory import open_memory
from tests.generations import prepared_store
from tests.keepers import keeper_of, log_of

_HOUR_MS = 3_600_000


def test_what_a_first_batch_may_have_written_is_known_though_nothing_was_applied() -> None:
    """A job is killed in it, and nobody begins another one for longer than the topics keep tombstones."""
    opened = open_memory(prepared_store(1))
    assert load_first_read(opened.records, 1) is None
    partitions = [("t", 0), ("t", 1)]
    opened.records.save(first_read_name(1), dump_first_read(first_read(None, partitions, {"t": "id"}, now_ms=5)))
    begun = load_first_read(opened.records, 1)
    assert begun is not None
    assert (begun.next_offsets, begun.topic_ids, begun.updated_at_ms) == (dict.fromkeys(partitions, 0), {"t": "id"}, 5)
    assert opened.generations.load_progress() is None

    def resume(*, topic_id: str = "id", hours: int = 1, end: int = 7) -> None:
        check_resume(
            "s",
            begun,
            topics={"t": TopicFacts(topic_id, 2, 24 * _HOUR_MS)},
            begins={},
            ends={("t", 0): end, ("t", 1): 0},
            now_ms=5 + hours * _HOUR_MS,
        )

    resume(hours=24)
    resume(hours=25, end=0)
    with pytest.raises(PositionMismatch, match="deletes may be missing"):
        resume(hours=25)
    with pytest.raises(PositionMismatch, match="was recreated"):
        resume(topic_id="another")


def test_a_view_of_which_only_some_shards_have_told_how_far_they_are_was_away_as_long() -> None:
    """Their states go on from there. The others' are built from the log's beginning."""
    opened = open_memory(prepared_store(1))
    partitions = [("t", 0), ("t", 1)]
    begun = first_read(None, partitions, {"t": "id"}, now_ms=5)
    keeper = keeper_of(opened.generations, log_of("t"), begun)
    shards = ViewShards.of_progress(keeper.shards, count=2, reached={})
    shards.reach(1, {("t", 0): 7, ("t", 1): 4})
    shards.store(lambda least, reached: keeper.batch_applied(least, rejected=0, shards=reached))
    stored = opened.generations.load_progress()
    assert stored is not None
    assert (stored.next_offsets, stored.shards) == (dict.fromkeys(partitions, 0), ({}, {("t", 0): 7, ("t", 1): 4}))
    facts = {"t": TopicFacts("id", 2, 24 * _HOUR_MS)}
    check_resume("s", stored, topics=facts, begins={}, ends=dict.fromkeys(partitions, 9), now_ms=5 + 24 * _HOUR_MS)
    with pytest.raises(PositionMismatch, match="deletes may be missing"):
        check_resume("s", stored, topics=facts, begins={}, ends=dict.fromkeys(partitions, 9), now_ms=5 + 25 * _HOUR_MS)


def test_the_first_time_counts_and_so_does_the_first_topic() -> None:
    opened = open_memory(prepared_store(1))
    opened.records.save(first_read_name(1), dump_first_read(first_read(None, [("t", 0)], {"t": "id"}, now_ms=5)))
    before = load_first_read(opened.records, 1)
    read = first_read(before, [("t", 0), ("more", 0)], {"t": "another", "more": "theirs"}, now_ms=9)
    opened.records.save(first_read_name(1), dump_first_read(read))
    begun = load_first_read(opened.records, 1)
    assert begun is not None
    assert begun.next_offsets == {("t", 0): 0, ("more", 0): 0}
    assert (begun.topic_ids, begun.updated_at_ms) == ({"t": "id", "more": "theirs"}, 5)
