"""Which topics are asked about when."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from cdc.model.errors import PositionMismatch, Unavailable
from jobs.query.resume_check import TopicFacts
from jobs.query.topic_watch import QUIET_S, TOPICS_AT_ONCE, Looks, TopicWatch

TOPICS = [f"t{number:04}" for number in range(2 * TOPICS_AT_ONCE + 1)]


class _Brokers:
    """Know every topic by the id ``a``, but for those that are in ``recreated``."""

    def __init__(self) -> None:
        self.recreated: set[str] = set()
        self.asked: list[list[str]] = []
        self.answers = True

    def identities(self, topics: Sequence[str]) -> dict[str, tuple[str, int]]:
        self.asked.append(sorted(topics))
        if not self.answers:
            raise Unavailable("no broker answers")
        return {topic: ("b" if topic in self.recreated else "a", 1) for topic in topics}


@pytest.fixture
def brokers() -> Any:
    return _Brokers()


def watch(count: int = len(TOPICS)) -> TopicWatch:
    return TopicWatch("s", {topic: TopicFacts("a", 1, 0) for topic in TOPICS[:count]})


def test_many_topics_are_asked_about_in_turn(brokers: Any) -> None:
    many = watch()
    for _ in range(4):
        many.look(brokers)
    assert [len(topics) for topics in brokers.asked] == [TOPICS_AT_ONCE, TOPICS_AT_ONCE, 1, TOPICS_AT_ONCE]
    assert {topic for topics in brokers.asked[:3] for topic in topics} == set(TOPICS)


def test_a_look_without_an_answer_forgets_nothing(brokers: Any) -> None:
    many = watch()
    many.heard_of([TOPICS[-1]])
    brokers.answers = False
    with pytest.raises(Unavailable):
        many.look(brokers)
    brokers.answers = True
    many.look(brokers)
    assert brokers.asked[0] == brokers.asked[1]


def test_what_a_batch_reads_is_asked_about_and_nothing_else(brokers: Any) -> None:
    many = watch()
    brokers.recreated = {TOPICS[7]}
    many.check(cast("Any", brokers), {TOPICS[3]})
    many.check(cast("Any", brokers), set())
    assert brokers.asked == [[TOPICS[3]]]
    with pytest.raises(PositionMismatch, match="was recreated"):
        many.check(cast("Any", brokers), {TOPICS[7]})


def test_all_topics_have_their_turn_after_something_was_published_and_then_looks_are_rare() -> None:
    looks = Looks(len(TOPICS))
    for _ in range(3):
        assert looks.is_due(1.0, has_news=False)
        looks.has_looked(1.0)
    assert not looks.is_due(2.0, has_news=False)
    assert not looks.is_due(1.0 + QUIET_S - 0.1, has_news=False)
    assert looks.is_due(1.0 + QUIET_S, has_news=False)
    looks.has_looked(1.0 + QUIET_S)
    assert not looks.is_due(2.0 + QUIET_S, has_news=False)
    for _ in range(3):
        assert looks.is_due(2.0 + QUIET_S, has_news=True)
        looks.has_looked(2.0 + QUIET_S)


def test_a_topic_of_which_something_was_read_is_heard_of_until_the_next_look(brokers: Any) -> None:
    few = watch(3)
    assert not few.has_heard
    few.heard_of({TOPICS[1]})
    assert few.has_heard
    few.look(brokers)
    assert not few.has_heard
