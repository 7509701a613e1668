"""jobs.executor.follow: the loop, over a log in memory."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from jobs.executor.applier import Applier
from jobs.executor.driver_line import Until
from jobs.executor.follow import FETCH_WAIT_MS, QUIET_FETCH_WAIT_MS, follow, is_quiet
from jobs.executor.log_reader import Polled, Range

P0, P1 = ("t", 0), ("t", 1)
RANGES = [Range(*P0, 3, 5), Range(*P1, None, 0)]


class Clients:
    """Read nothing but where partitions end, and then nothing at all."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, list[Range]]] = []
        self.forgotten: list[int] = []

    @contextmanager
    def reader_for(self, _: object, followed: Sequence[Range], *, fetch_wait_ms: int) -> Iterator["Clients"]:
        self.opened.append((fetch_wait_ms, list(followed)))
        yield self

    def follow(self, followed: Sequence[Range]) -> Generator[Polled]:
        yield Polled([], {part.at: max(part.end, 7) for part in followed})
        while True:
            yield Polled([], {})

    def forget(self, _: object, *, fetch_wait_ms: int) -> None:
        self.forgotten.append(fetch_wait_ms)


class Applying(Applier):
    """Notes what is asked of an applier."""

    def __init__(self, *, ranges: Sequence[Range] = RANGES, needs_driver_at: int = 0, may_end_at: int = 1) -> None:
        self._ranges, self._needs_driver_at, self._may_end_at = ranges, needs_driver_at, may_end_at
        self.taken = list[Polled]()
        self.reported, self.has_ended = 0, False

    def begin(self) -> Sequence[Range]:
        return self._ranges

    def take(self, polled: Polled) -> None:
        self.taken.append(polled)

    def needs_driver(self) -> bool:
        return len(self.taken) == self._needs_driver_at

    def report(self, now_s: float) -> None:
        self.reported += 1

    @property
    def may_end(self) -> bool:
        return len(self.taken) >= self._may_end_at

    def is_at_end(self, now_s: float) -> bool:
        return len(self.taken) == 3

    def end(self) -> None:
        self.has_ended = True


class Line:
    """A driver that ends the batch after so many polls, or is found to be gone after a later one."""

    def __init__(self, polls: int, *, gone_after: int = 0) -> None:
        self._left = polls
        self._gone_after = gone_after
        self._asked = 0

    def is_over(self) -> bool:
        self._asked += 1
        return self._asked == self._gone_after

    def is_over_within(self, _: float) -> bool:
        self._left -= 1
        return self._left <= 0


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    clients = Clients()
    monkeypatch.setattr("jobs.executor.follow.reader_for", clients.reader_for)
    monkeypatch.setattr("jobs.executor.follow.forget_reader", clients.forget)
    monkeypatch.setattr("jobs.executor.follow.QUIET_S", 0.0)
    return clients


def run(applier: Applying, *, polls: int | None = None) -> None:
    """With ``polls`` a batch that goes on until its driver ends it after so many."""
    line: Any = None if polls is None else Line(polls)
    follow({}, Until(goes_on=polls is not None), line, applier)
    assert applier.has_ended


@pytest.mark.parametrize("polls", [1, 9], ids=["soon", "after a silence"])
def test_another_client_goes_on_after_a_silence_and_is_not_kept_at_the_end(clients: Clients, polls: int) -> None:
    """It may be over because that one gets nothing any more."""
    applier = Applying()
    run(applier, polls=polls)
    quiet = QUIET_FETCH_WAIT_MS, [Range(*P0, 7, 7), Range(*P1, 7, 7)]
    assert clients.opened == ([(FETCH_WAIT_MS, RANGES)] if polls == 1 else [(FETCH_WAIT_MS, RANGES), quiet])
    assert clients.forgotten == ([] if polls == 1 else [QUIET_FETCH_WAIT_MS])
    assert (len(applier.taken), applier.reported) == (polls, polls)


def test_the_word_of_the_driver_counts_once_what_it_has_planned_is_applied(clients: Clients) -> None:
    applier = Applying(may_end_at=5)
    run(applier, polls=1)
    assert len(applier.taken) == 5


def test_a_task_that_was_frozen_while_it_waited_applies_nothing_of_what_has_come(clients: Clients) -> None:
    """Another job may have gone on in its place, and its store may have forgotten what that one has deleted."""
    applier = Applying()
    line: Any = Line(9, gone_after=2)
    follow({}, Until(goes_on=True), line, applier)
    assert (len(applier.taken), applier.has_ended) == (2, True)


def test_what_needs_the_driver_ends_the_batch_before_anything_is_reported(clients: Clients) -> None:
    applier = Applying(needs_driver_at=2)
    run(applier, polls=9)
    assert (len(applier.taken), applier.reported) == (2, 1)


def test_a_batch_that_ends_with_the_log_asks_nobody_and_stays_with_one_client(clients: Clients) -> None:
    applier = Applying()
    run(applier)
    assert clients.opened == [(applier.ending_fetch_wait_ms, RANGES)]
    assert len(applier.taken) == 3


def test_nothing_is_read_where_the_batch_is_over_before(clients: Clients) -> None:
    applier = Applying(ranges=())
    run(applier, polls=9)
    assert clients.opened == applier.taken == []


def test_a_quiet_log_is_asked_less_often_once_its_ends_are_known() -> None:
    parts = [Range(*P0, 3, 3), Range(*P1, None, 0)]
    assert not is_quiet(4.0, parts, {P0: 3, P1: 0}, fetch_wait_ms=FETCH_WAIT_MS)
    assert is_quiet(5.0, parts, {P0: 3, P1: 0}, fetch_wait_ms=FETCH_WAIT_MS)
    assert not is_quiet(5.0, parts, {P0: 3}, fetch_wait_ms=FETCH_WAIT_MS), "where does the other one go on?"
    assert not is_quiet(5.0, parts, {P0: 3, P1: 0}, fetch_wait_ms=QUIET_FETCH_WAIT_MS), "it is"
    assert not is_quiet(5.0, parts, {P0: 3, P1: 0}, fetch_wait_ms=1)
