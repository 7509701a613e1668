"""Which tables a job reads, by what was asked and what has failed."""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError, NeedsRebuild, PositionMismatch
from cdc.model.table import TableName
from jobs.generations.set_aside import (
    Aside,
    AsideState,
    Order,
    Orders,
    Wish,
    begun,
    failed,
    give_again,
    give_order,
    is_done,
    load_orders,
    next_asides,
    orders_name,
    read_tables,
    taken_again,
)
from sinks.columns.shape import unprepared
from sinks.memory import MemorySink, MemoryStore

A, B = TableName("public", "a"), TableName('Odd "schema"', "b")


def _after(orders: Orders, before: Aside | None = None) -> Aside | None:
    return next_asides([A, B], orders, {} if before is None else {A: before}, now_ms=9).get(A)


def test_a_paused_table_is_not_read_until_it_is_resumed() -> None:
    paused = _after({A: Order(Wish.PAUSE, 1, 5)})
    assert paused == Aside(AsideState.PAUSED, 9, 1)
    assert read_tables([A, B], {A: paused}) == [B]
    resumed = _after({A: Order(Wish.APPLY, 2, 6)}, paused)
    assert resumed is not None
    assert (resumed.state, resumed.order, resumed.holds_watermark) == (AsideState.RESUMING, 2, False)
    assert read_tables([A, B], {A: resumed}) == [A, B]


def test_a_newer_order_has_a_table_that_has_failed_tried_again_at_once() -> None:
    set_aside = failed({}, {A: LockstepError("no room", hint="make some")}, {A: Order(Wish.APPLY, 3)}, now_ms=9)
    assert set_aside == {A: Aside(AsideState.FAILED, 9, 3, "no room", "make some", retry_at_ms=60_009)}
    assert _after({A: Order(Wish.APPLY, 3)}, set_aside[A]) == set_aside[A]
    assert _after({}, set_aside[A]) == set_aside[A]
    again = _after({A: Order(Wish.APPLY, 4)}, set_aside[A])
    assert again is not None
    assert (again.state, again.reason) == (AsideState.RESUMING, None)


_REFUSED = LockstepError("no room", hint="make some")


def _failing(aside: Aside | None, *, now_ms: int, error: LockstepError = _REFUSED) -> Aside:
    return failed({} if aside is None else {A: aside}, {A: error}, {}, now_ms=now_ms)[A]


def test_a_table_that_has_failed_is_tried_again_by_itself_after_pauses_that_grow_up_to_half_an_hour() -> None:
    now_ms, pauses = 1_000_000, list[int]()
    aside = _failing(None, now_ms=now_ms)
    for tries in range(8):
        assert aside.retry_at_ms is not None
        assert next_asides([A], {}, {A: aside}, now_ms=aside.retry_at_ms - 1) == {A: aside}
        pauses.append((aside.retry_at_ms - now_ms) // 60_000)
        now_ms = aside.retry_at_ms
        trial = next_asides([A], {}, {A: aside}, now_ms=now_ms)[A]
        assert (trial.state, trial.reason, trial.tries) == (AsideState.RETRYING, "no room", tries)
        assert (trial.is_read, trial.has_failed, trial.holds_watermark) == (True, True, False)
        assert next_asides([A], {}, {A: trial}, now_ms=now_ms + 1) == {A: trial}, "also after a kill"
        aside = _failing(trial, now_ms=now_ms)
        assert (aside.state, aside.since_ms, aside.holds_watermark) == (AsideState.FAILED, 1_000_000, True)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_clock_that_was_put_back_does_not_make_a_table_wait_for_longer() -> None:
    aside = _failing(None, now_ms=10**12)
    assert not aside.is_due(10**12)
    assert aside.is_due(10**12 - 1)
    assert aside.is_due(10**12 + 10**9)


@pytest.mark.parametrize(
    "error",
    [PositionMismatch("deletes may be missing"), NeedsRebuild("it no longer fits"), unprepared("public.orders")],
)
def test_what_does_not_end_by_itself_is_tried_again_by_an_order_alone(error: LockstepError) -> None:
    trial = replace(_failing(None, now_ms=9), state=AsideState.RETRYING, tries=3)
    for before in (None, trial):
        aside = _failing(before, now_ms=9, error=error)
        assert aside.retry_at_ms is None
        assert next_asides([A], {}, {A: aside}, now_ms=10**15) == {A: aside}
        assert "by itself" not in aside.sentence("search", "public.a")
        assert next_asides([A], {A: Order(Wish.APPLY, 1)}, {A: aside}, now_ms=9)[A].state is AsideState.RESUMING


def test_an_order_counts_more_than_the_next_try() -> None:
    aside = _failing(None, now_ms=9)
    due_ms = aside.retry_at_ms or 0
    for wish, state in ((Wish.PAUSE, AsideState.PAUSED), (Wish.OUT, AsideState.OUT), (Wish.APPLY, AsideState.RESUMING)):
        decided = next_asides([A], {A: Order(wish, 1)}, {A: aside}, now_ms=due_ms)[A]
        assert (decided.state, decided.tries, decided.retry_at_ms) == (state, 0, None)


def test_a_table_that_was_tried_again_counts_as_failed_until_some_of_it_is_applied() -> None:
    trial = replace(_failing(None, now_ms=9), state=AsideState.RETRYING, tries=3, begun=True)
    asides = {A: trial, B: Aside(AsideState.PAUSED, 5, 1)}
    assert taken_again(asides, []) == asides
    resumed = taken_again(asides, [A, B])
    assert resumed == {A: Aside(AsideState.RESUMING, 9, begun=True), B: asides[B]}
    assert _failing(resumed[A], now_ms=99).retry_at_ms == 60_099, "it had got on"


def test_what_is_told_of_a_table_that_is_tried_again() -> None:
    first = _failing(None, now_ms=0)
    assert first.sentence("search", "public.a") == (
        "public.a is set aside, since it can't be applied: no room; make some; then `lockstep resume search public.a`,"
        " or wait: it is tried again by itself at 1970-01-01 00:01:00 UTC"
    )
    trial = next_asides([A], {}, {A: first}, now_ms=60_000)[A]
    assert trial.sentence("search", "public.a") == (
        "public.a is tried again, since it couldn't be applied: no room; make some"
    )
    again = _failing(trial, now_ms=60_000)
    assert again.next_step("search", "public.a") == (
        "make some; then `lockstep resume search public.a`, or wait: it is tried again by itself at"
        " 1970-01-01 00:03:00 UTC, after 1 try in vain"
    )
    assert Aside.from_json(again.to_json()) == again


def test_the_watermark_never_counts_a_table_that_was_out_until_it_has_caught_up() -> None:
    """It has moved on meanwhile. So a pause doesn't make a table of it that the watermark has waited for."""
    out = _after({A: Order(Wish.OUT, 1)}, Aside(AsideState.PAUSED, 5, 0))
    assert out == Aside(AsideState.OUT, 9, 1, awaited=False)
    assert not out.holds_watermark
    assert _after({A: Order(Wish.PAUSE, 2)}, out) == replace(out, order=2)
    resumed = _after({A: Order(Wish.APPLY, 3)}, out)
    assert resumed == Aside(AsideState.RESUMING, 9, 3, awaited=False)
    assert read_tables([A, B], {A: resumed}) == [A, B]
    assert _after({A: Order(Wish.PAUSE, 4)}, resumed) == Aside(AsideState.OUT, 9, 4, awaited=False)
    refused = failed({A: resumed}, {A: LockstepError("no room")}, {A: Order(Wish.APPLY, 3)}, now_ms=9)[A]
    assert (refused.state, refused.awaited) == (AsideState.FAILED, False)
    assert refused.holds_watermark, "nobody has taken it out any more: the sink is said to have it"
    assert _after({A: Order(Wish.APPLY, 4)}, refused) == replace(resumed, order=4)
    out_again = _after({A: Order(Wish.OUT, 4)}, refused)
    assert out_again is not None
    assert not out_again.holds_watermark


def test_a_table_that_is_named_and_not_captured_holds_nothing_up_and_is_new_once_it_joins() -> None:
    asides = next_asides([A], {}, {}, uncaptured=[B], now_ms=9)
    assert asides == {B: Aside(AsideState.UNCAPTURED, 9, awaited=False)}
    assert read_tables([A, B], asides) == [A]
    assert next_asides([A], {}, asides, uncaptured=[B], now_ms=10) == asides
    assert next_asides([A, B], {}, asides, now_ms=10) == {}
    assert next_asides([A, B], {}, asides, left=[B], now_ms=10) == {B: Aside(AsideState.RESUMING, 10, awaited=False)}
    paused = {B: Aside(AsideState.PAUSED, 5, 1)}
    orders = {B: Order(Wish.PAUSE, 1)}
    assert next_asides([A], orders, paused, uncaptured=[B], now_ms=9)[B].state is AsideState.UNCAPTURED


def test_a_resumed_table_is_being_read_once_it_was_checked_for_the_newest_order() -> None:
    resumed = _after({A: Order(Wish.APPLY, 2)}, Aside(AsideState.PAUSED, 5, 1))
    assert resumed is not None
    assert not is_done(Order(Wish.APPLY, 2), resumed)
    checked = begun({A: resumed, B: Aside(AsideState.PAUSED, 5, 1)})
    assert checked == {A: replace(resumed, begun=True), B: Aside(AsideState.PAUSED, 5, 1)}
    assert is_done(Order(Wish.APPLY, 2), checked[A])
    assert not is_done(Order(Wish.APPLY, 3), checked[A])
    assert _after({A: Order(Wish.APPLY, 2)}, checked[A]) == checked[A]
    assert _after({A: Order(Wish.APPLY, 3)}, checked[A]) == replace(resumed, order=3)


def test_an_order_is_done_when_the_job_has_obeyed_or_refused_it() -> None:
    assert is_done(Order(Wish.APPLY, 2), None)
    assert not is_done(Order(Wish.PAUSE, 2), None)
    assert is_done(Order(Wish.PAUSE, 2), Aside(AsideState.PAUSED, 5, 2))
    assert not is_done(Order(Wish.OUT, 3), Aside(AsideState.PAUSED, 5, 2))
    assert is_done(Order(Wish.APPLY, 3), Aside(AsideState.FAILED, 5, 3))


def test_an_order_that_another_command_has_overwritten_is_given_again() -> None:
    """Both have read the record before either wrote it."""
    records = MemorySink(MemoryStore())
    mine = give_order(records, 1, [A], Wish.PAUSE, now_ms=5)
    records.save(orders_name(1), None)
    theirs = give_order(records, 1, [B], Wish.OUT, now_ms=5)
    again = give_again(records, 1, mine, [A])
    assert load_orders(records, 1) == again == {**theirs, A: Order(Wish.PAUSE, 2, 5)}
    assert give_again(records, 1, again, [A]) == again
    newer = give_order(records, 1, [A], Wish.APPLY, now_ms=6)
    assert give_again(records, 1, again, [A]) == newer, "somebody wants something else by now"


def test_a_table_stays_as_it_is_when_the_order_that_the_job_has_obeyed_is_lost() -> None:
    for state in set(AsideState) - {AsideState.UNCAPTURED}:  # which no order has made
        aside = Aside(state, 5, 3)
        assert _after({}, aside) == _after({A: Order(Wish.APPLY, 2)}, aside) == aside


@pytest.mark.parametrize("state", list(AsideState))
def test_each_state_says_which_command_ends_it(state: AsideState) -> None:
    text = Aside(state, 5, reason="no room", hint="make some").sentence("search", "public.a")
    assert text.startswith("public.a ")
    by_itself = (AsideState.RESUMING, AsideState.RETRYING, AsideState.UNCAPTURED)
    assert ("lockstep resume search public.a" in text) == (state not in by_itself)
