"""Which tables a job reads, by what was asked and what has failed."""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.generations.asides import (
    Aside,
    AsideState,
    Order,
    Orders,
    Wish,
    asides_name,
    begun,
    dump_asides,
    failed,
    give_again,
    give_order,
    is_done,
    load_asides,
    load_orders,
    next_asides,
    orders_name,
    read_tables,
)
from sinks.memory import MemoryRecords, MemoryStore

A, B = TableName("public", "a"), TableName('Odd "schema"', "b")


def _after(orders: Orders, before: Aside | None = None) -> Aside | None:
    return next_asides([A, B], orders, {} if before is None else {A: before}, now_ms=9).get(A)


def test_without_orders_everything_is_read() -> None:
    assert next_asides([A, B], {}, {}, now_ms=9) == {}
    assert read_tables([A, B], {}) == [A, B]


def test_a_paused_table_is_not_read_until_it_is_resumed() -> None:
    paused = _after({A: Order(Wish.PAUSE, 1, 5)})
    assert paused == Aside(AsideState.PAUSED, 9, 1)
    assert read_tables([A, B], {A: paused}) == [B]
    resumed = _after({A: Order(Wish.APPLY, 2, 6)}, paused)
    assert resumed is not None
    assert (resumed.state, resumed.order, resumed.holds_watermark) == (AsideState.RESUMING, 2, False)
    assert read_tables([A, B], {A: resumed}) == [A, B]


def test_a_table_that_has_failed_is_tried_again_by_a_newer_order_alone() -> None:
    set_aside = failed({}, {A: LockstepError("no room", hint="make some")}, {A: Order(Wish.APPLY, 3)}, now_ms=9)
    assert set_aside == {A: Aside(AsideState.FAILED, 9, 3, "no room", "make some")}
    assert _after({A: Order(Wish.APPLY, 3)}, set_aside[A]) == set_aside[A]
    assert _after({}, set_aside[A]) == set_aside[A]
    again = _after({A: Order(Wish.APPLY, 4)}, set_aside[A])
    assert again is not None
    assert (again.state, again.reason) == (AsideState.RESUMING, None)


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


def test_a_table_that_left_the_sink_is_forgotten_and_is_not_awaited_when_it_comes_back() -> None:
    asides = {B: Aside(AsideState.FAILED, 5, 1, "no room")}
    assert next_asides([A], {}, asides, now_ms=9) == {}
    orders = {A: Order(Wish.PAUSE, 1)}
    assert next_asides([A], orders, {}, left=[A], now_ms=9) == {A: Aside(AsideState.OUT, 9, 1, awaited=False)}
    resumed = Aside(AsideState.RESUMING, 9, awaited=False)
    assert next_asides([A], {}, {}, left=[A], now_ms=9) == {A: resumed}, "where it is too late, it alone is set aside"


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


def test_orders_and_what_became_of_them_are_stored() -> None:
    records = MemoryRecords(MemoryStore())
    assert load_orders(records, 1) == {}
    give_order(records, 1, [A], Wish.PAUSE, now_ms=5)
    give_order(records, 1, [B], Wish.OUT, now_ms=6)
    assert load_orders(records, 1) == {A: Order(Wish.PAUSE, 1, 5), B: Order(Wish.OUT, 2, 6)}
    asides = {
        A: Aside(AsideState.FAILED, 9, 3, "no room", None),
        B: Aside(AsideState.RESUMING, 4, awaited=False, begun=True),
    }
    records.save(asides_name(1), dump_asides(asides))
    assert (load_asides(records, 1), load_asides(records, 2)) == (asides, {})
    records.save(asides_name(1), dump_asides({}))
    assert load_asides(records, 1) == {}


def test_an_order_that_another_command_has_overwritten_is_given_again() -> None:
    """Both have read the record before either wrote it."""
    records = MemoryRecords(MemoryStore())
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
    by_itself = (AsideState.RESUMING, AsideState.UNCAPTURED)
    assert ("lockstep resume search public.a" in text) == (state not in by_itself)
