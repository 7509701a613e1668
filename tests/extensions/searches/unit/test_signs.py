"""extensions.searches.signs: who tells is told apart from who only begins, again and again."""

import pytest

from cdc.model.errors import Fenced
from cdc.model.timeouts import SEARCHES_SILENT_S
from extensions.searches.signs import Signs, Silence
from extensions.searches.stored import Claim, SearchStatus

OWN, NEWER = Claim(1, "aa"), Claim(2, "bb")


class Store:
    """A sink's bookkeeping in memory."""

    def __init__(self) -> None:
        self.status = SearchStatus(7, {"bern": 2})
        self.newest = OWN

    def newest_claim(self) -> Claim | None:
        return self.newest

    def load_status(self) -> SearchStatus:
        return self.status

    def save_status(self, status: SearchStatus, claim: Claim) -> None:
        assert claim == OWN
        self.status = status


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def signs(store: Store, clock: Clock) -> Signs:
    return Signs(store, OWN, sink="search", monotonic=clock)


def test_who_begins_again_and_again_gives_no_sign_that_anybody_is_told() -> None:
    store, clock = Store(), Clock()
    for _ in range(5):
        again = signs(store, clock)
        again.going_on()
        again.waiting("no broker answers")
        clock.now += 30
    assert store.status == SearchStatus(7, {"bern": 2}, waiting="no broker answers")


def test_what_is_in_the_way_stays_until_a_step_is_done() -> None:
    store, clock = Store(), Clock()
    signs(store, clock).waiting("no broker answers")
    again = signs(store, clock)
    clock.now += 11
    again.going_on()  # a long step
    assert store.status.at_ms > 7
    assert store.status.waiting == "no broker answers"
    again.done({"bern": 3}, {})
    assert (store.status.waiting, store.status.matching) == ("", {"bern": 3})


def test_signs_are_saved_with_the_first_step_and_where_something_is_new_and_each_ten_seconds() -> None:
    store, clock = Store(), Clock()
    own = signs(store, clock)
    own.done({"bern": 2}, {})
    assert store.status.at_ms > 7
    for seconds, is_saved in ((9, False), (1, True)):
        store.status = SearchStatus(7, {"bern": 2})
        clock.now += seconds
        own.done({"bern": 2}, {})
        assert (store.status.at_ms > 7) == is_saved
    own.done({"bern": 2}, {"red": "no such field"})
    assert store.status.refused == {"red": "no such field"}


def test_who_waits_takes_the_place_of_one_who_gives_no_sign_and_of_no_other() -> None:
    clock = Clock()
    silence = Silence(monotonic=clock)
    silence.begin()
    for at_ms in range(100, 110):  # by a clock of its own, which may be any
        assert not silence.is_long(SearchStatus(at_ms))
        clock.now += 10
    clock.now += SEARCHES_SILENT_S - 11
    assert not silence.is_long(SearchStatus(109))
    clock.now += 1
    assert silence.is_long(SearchStatus(109))


def test_of_two_who_wait_for_each_other_one_gets_the_time_to_begin() -> None:
    clock = Clock()
    silence = Silence(monotonic=clock)
    waited = []
    for _ in range(4):
        silence.begin()
        begun = clock.now
        while not silence.is_long(SearchStatus(7)):
            clock.now += 1
        waited.append(clock.now - begun)
        silence.lengthen()
    assert waited == [60, 120, 240, 480]
    silence.end()
    silence.begin()
    assert not silence.is_long(SearchStatus(7))
    clock.now += SEARCHES_SILENT_S
    assert silence.is_long(SearchStatus(7))


def test_whose_place_was_taken_finds_out_and_says_nothing() -> None:
    store, clock = Store(), Clock()
    own = signs(store, clock)
    store.newest, clock.now = NEWER, 111.0
    for say in (own.going_on, lambda: own.done({}, {}), lambda: own.waiting("no broker answers")):
        with pytest.raises(Fenced, match="another process has taken over"):
            say()
    assert store.status == SearchStatus(7, {"bern": 2})
