"""jobs.query.batch_ranges"""

from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest

from cdc.model.errors import PositionMismatch, Unavailable
from cdc.protocol.control_records import TopicIdentity
from jobs.offsets import Offsets
from jobs.query.batch_ranges import BatchPlan
from jobs.query.progress import ProgressKeeper
from jobs.query.sink_plan import SinkPlan
from jobs.query.topic_watch import TopicWatch
from jobs.settings import SparkSettings
from sinks.contract import Progress, TopicPartition
from sinks.memory import open_memory
from sinks.redis.settings import RedisSettings
from tests.generations import prepared_store
from tests.keepers import keeper_of, log_of

A, B, C = ("t", 0), ("t", 1), ("t", 2)


class Brokers:
    """What they say of a topic with two partitions."""

    def __init__(self, ends: Offsets, begins: Offsets | None = None) -> None:
        self.ends = ends
        self.begins = begins or {}
        self.topic_id = "id"

    def committed_ends(self, _: Sequence[TopicPartition]) -> Offsets:
        return dict(self.ends)

    def begin_offsets(self, partitions: Sequence[TopicPartition]) -> Offsets:
        return {at: self.begins.get(at, 0) for at in partitions}

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity]:
        return {topic: TopicIdentity(self.topic_id, 1) for topic in topics}


def planning(
    brokers: Brokers, stored: Progress | None = None, *, once: bool = False, trimmed: bool = False
) -> tuple[BatchPlan, ProgressKeeper]:
    opened, log = open_memory(prepared_store(1)), log_of("t")
    opened.sink.claim()
    keeper = keeper_of(opened.generations, log, stored)
    nothing = cast("Any", None)
    plan = SinkPlan("cache", RedisSettings(), 1, "p", nothing, (), SparkSettings(), once=once, trimmed=trimmed)
    cluster = cast("Any", brokers)
    return BatchPlan(plan, [A, B], keeper, TopicWatch("cache", log.topics), cluster), keeper


def test_a_batch_begins_where_the_sinks_progress_is_also_where_that_is_read_again_or_behind_a_gap() -> None:
    stored = Progress({A: 5, B: 3}, 100, 0, 0, {}, reads_again={A: 1}, skipped={B: 7})
    plan, keeper = planning(Brokers({A: 9, B: 9}), stored)
    assert plan.next() == ({A: 1, B: 7}, {A: 9, B: 9})
    keeper.batch_applied({A: 9, B: 9}, rejected=0)
    assert plan.next()[0] == {A: 9, B: 9}
    assert not plan.has_more()


def test_once_ends_where_the_log_ended_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.batch_limits.RECORDS_MAX", 100)
    brokers = Brokers({A: 150, B: 50})
    plan, keeper = planning(brokers, once=True)
    assert plan.next() == ({A: 0, B: 0}, {A: 75, B: 25})
    brokers.ends = {A: 1000, B: 1000}
    keeper.batch_applied({A: 75, B: 25}, rejected=0)
    ends = plan.next()[1]
    assert ends == {A: 150, B: 50}
    keeper.batch_applied(ends, rejected=0)
    assert plan.next() == (ends, ends)


def test_a_log_that_ends_before_what_was_read_is_asked_about_again_and_then_refused() -> None:
    """Brokers that have changed places need a moment. Nothing would be read any more, and nobody would be told."""
    brokers = Brokers({A: 5, B: 2})
    plan, _ = planning(brokers, Progress({A: 5, B: 3}, 100, 0, 0, {}))
    assert plan.has_more()
    with pytest.raises(Unavailable):
        plan.next()
    brokers.ends = {A: 5, B: 3}
    assert plan.next() == ({A: 5, B: 3}, brokers.ends)
    brokers.ends = {A: 5, B: 2}
    for _ in range(2):
        with pytest.raises(Unavailable):
            plan.next()
    with pytest.raises(PositionMismatch, match="partition 1, up to 3, but the end was 2: Kafka was put back"):
        plan.next()


def test_a_recreated_topic_that_is_shorter_is_told_as_that() -> None:
    brokers = Brokers({A: 1, B: 0})
    brokers.topic_id = "another"
    plan, _ = planning(brokers, Progress({A: 5, B: 3}, 100, 0, 0, {}))
    with pytest.raises(PositionMismatch, match="was recreated"):
        plan.next()


def test_what_a_trimmed_log_has_lost_before_anything_was_read_is_passed_over() -> None:
    plan, keeper = planning(Brokers({A: 9, B: 4}, begins={A: 7, B: 4}), trimmed=True)
    assert plan.next() == ({A: 7, B: 4}, {A: 9, B: 4})
    assert keeper.positions == {A: 7, B: 4}


def test_what_is_stored_of_a_trimmed_log_names_the_partitions_that_have_lost_nothing_too() -> None:
    """The next query, as after a kill before the first batch, would else find a topic with another number of them."""
    plan, keeper = planning(Brokers({A: 9, B: 4}, begins={A: 7}), trimmed=True)
    assert plan.next()[0] == {A: 7, B: 0}
    assert keeper.positions == {A: 7, B: 0}


def test_what_a_trimmed_log_loses_later_is_not() -> None:
    """Its task finds that it isn't there."""
    plan, _ = planning(Brokers({A: 9, B: 4}, begins={A: 7, B: 4}), Progress({A: 5, B: 4}, 0, 0, 0, {}), trimmed=True)
    assert plan.next()[0] == {A: 5, B: 4}
