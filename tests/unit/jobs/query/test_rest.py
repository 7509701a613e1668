"""When a query that has applied everything looks again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from cdc.model.errors import Unavailable
from jobs.query.rest import Rest, look_every_s


@dataclass
class _Moments:
    """A log in which something happens with time. A bell that rings at some of these seconds, or fails."""

    rings_at: Sequence[float] = ()
    fails_at: Sequence[float] = ()
    behind_from: float = 1e9
    more_from: float = 1e9
    over_from: float = 1e9
    unanswered: int = 0
    now: float = 0.0
    learned: float = 0.0
    asked_at: list[float] = field(default_factory=list)
    listening: int = 0

    def listen(self) -> None:
        self.listening += 1

    def rings(self, timeout_s: float) -> bool:
        began, self.now = self.now, round(self.now + timeout_s, 3)
        if any(began <= at < self.now for at in self.fails_at):
            raise Unavailable("no broker answers")
        return any(began <= at < self.now for at in self.rings_at)

    def ignore(self) -> None:
        self.listening = 0

    def learn(self) -> None:
        self.learned = self.now

    def has_more(self) -> bool:
        self.asked_at.append(self.now)
        if len(self.asked_at) <= self.unanswered:
            raise Unavailable("no broker answers")
        return self.now >= self.more_from

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)

    def rest(self, *, look_s: float = 10.0, look_now: bool = False) -> float:
        """Returns when the rest ended."""
        Rest(
            bell=self,
            learn=self.learn,
            is_behind=lambda: self.learned >= self.behind_from,
            has_more=self.has_more,
            look_s=look_s,
            is_over=lambda: self.now >= self.over_from,
            monotonic_s=lambda: self.now,
            sleep=self.sleep,
        ).until_news(look_now=look_now)
        assert self.listening == 0
        return self.now


def test_a_rest_ends_when_the_bell_rings_for_something_that_is_not_applied() -> None:
    moments = _Moments(rings_at=[3.05, 7.05], behind_from=7.0)
    assert moments.rest() == 7.1
    assert moments.asked_at == []


def test_what_is_known_already_is_not_waited_for() -> None:
    assert _Moments(behind_from=0).rest() == 0


def test_a_bell_that_stays_silent_keeps_nothing_from_being_read() -> None:
    moments = _Moments(more_from=15)
    assert moments.rest() == pytest.approx(20, abs=0.2)
    assert len(moments.asked_at) == 2


def test_a_rest_that_begins_with_the_query_looks_at_once() -> None:
    assert _Moments(more_from=0).rest(look_now=True) == 0


def test_a_rest_ends_soon_after_it_is_to_end() -> None:
    assert _Moments(over_from=3.0).rest() == pytest.approx(3.0, abs=0.1)


def test_brokers_that_do_not_answer_are_asked_again() -> None:
    moments = _Moments(fails_at=[0.5, 1.7], rings_at=[5.0], behind_from=5.0)
    assert moments.rest() == pytest.approx(5.1, abs=0.2)


def test_topics_that_cannot_be_asked_about_are_asked_about_again() -> None:
    moments = _Moments(unanswered=1, more_from=0, over_from=8.0)
    assert moments.rest(look_s=1.0) < 8.0
    assert len(moments.asked_at) == 2


@pytest.mark.parametrize(("partitions", "seconds"), [(0, 1), (40, 1), (2_000, 10), (24_000, 30)])
def test_the_more_partitions_there_are_the_less_often_all_are_asked_about(partitions: int, seconds: float) -> None:
    assert look_every_s(partitions) == seconds
