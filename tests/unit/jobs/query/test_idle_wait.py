"""When a query that has applied everything looks again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from cdc.model.errors import Unavailable
from jobs.query.idle_wait import IdleWait, look_every_s


@dataclass
class _Moments:
    """A log in which something happens with time. Somebody wakes the rest at some of these seconds."""

    woken_at: Sequence[float] = ()
    behind_from: float = 1e9
    more_from: float = 1e9
    over_from: float = 1e9
    unanswered: int = 0
    now: float = 0.0
    asked_at: list[float] = field(default_factory=list)
    waits: int = 0

    def wait(self, timeout_s: float) -> None:
        self.waits += 1
        until = min([at for at in self.woken_at if at > self.now], default=1e9)
        self.now = round(min(self.now + timeout_s, until), 3)

    def has_more(self) -> bool:
        self.asked_at.append(self.now)
        if len(self.asked_at) <= self.unanswered:
            raise Unavailable("no broker answers")
        return self.now >= self.more_from

    def rest(self, *, look_s: float = 10.0, look_now: bool = False) -> float:
        """Returns when the rest ended."""
        IdleWait(
            wait=self.wait,
            is_behind=lambda: self.now >= self.behind_from,
            has_more=self.has_more,
            look_s=look_s,
            is_over=lambda: self.now >= self.over_from,
            monotonic_s=lambda: self.now,
        ).until_news(look_now=look_now)
        return self.now


def test_what_is_known_already_is_not_waited_for() -> None:
    moments = _Moments(behind_from=0)
    assert moments.rest() == 0
    assert moments.waits == 0


def test_nobody_who_wakes_it_keeps_nothing_from_being_read() -> None:
    moments = _Moments(more_from=15)
    assert moments.rest() == pytest.approx(20, abs=0.5)
    assert len(moments.asked_at) == 2


def test_a_rest_that_begins_with_the_query_looks_at_once() -> None:
    assert _Moments(more_from=0).rest(look_now=True) == 0


def test_a_rest_ends_soon_after_it_is_to_end() -> None:
    assert _Moments(over_from=3.0).rest() == pytest.approx(3.0, abs=0.2)


def test_topics_that_cannot_be_asked_about_are_asked_about_again_soon() -> None:
    moments = _Moments(unanswered=1, more_from=0)
    assert moments.rest(look_s=10.0) < 12.0
    assert len(moments.asked_at) == 2


@pytest.mark.parametrize(("partitions", "seconds"), [(0, 1), (40, 1), (2_000, 10), (24_000, 30)])
def test_the_more_partitions_there_are_the_less_often_all_are_asked_about(partitions: int, seconds: float) -> None:
    assert look_every_s(partitions) == seconds
