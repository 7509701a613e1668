"""Which tables a job reads, by what was asked and what has failed."""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.generations.asides import (
    Aside,
    AsideState,
    Order,
    Orders,
    Wish,
    failed,
    give_order,
    load_asides,
    load_orders,
    next_asides,
    read_tables,
    save_asides,
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


def test_the_watermark_never_counts_a_table_that_was_out() -> None:
    """It has moved on meanwhile. So a pause doesn't make a table of it that the watermark has waited for."""
    out = _after({A: Order(Wish.OUT, 1)}, Aside(AsideState.PAUSED, 5, 0))
    assert out is not None
    assert (out.state, out.holds_watermark) == (AsideState.OUT, False)
    still_out = _after({A: Order(Wish.PAUSE, 2)}, out)
    assert still_out is not None
    assert still_out.state is AsideState.OUT
    assert _after({A: Order(Wish.APPLY, 3)}, still_out) is None


def test_what_the_configuration_does_not_name_is_kept_as_it_is() -> None:
    asides = {B: Aside(AsideState.PAUSED, 5, 1)}
    assert next_asides([A], {B: Order(Wish.APPLY, 2)}, asides, now_ms=9) == asides


def test_orders_and_what_became_of_them_are_stored() -> None:
    records = MemoryRecords(MemoryStore())
    assert load_orders(records, 1) == {}
    give_order(records, 1, [A], Wish.PAUSE, now_ms=5)
    give_order(records, 1, [B], Wish.OUT, now_ms=6)
    assert load_orders(records, 1) == {A: Order(Wish.PAUSE, 1, 5), B: Order(Wish.OUT, 2, 6)}
    asides = {A: Aside(AsideState.FAILED, 9, 3, "no room", None, "id"), B: Aside(AsideState.OUT, 4)}
    save_asides(records, 1, asides)
    assert (load_asides(records, 1), load_asides(records, 2)) == (asides, {})
    save_asides(records, 1, {})
    assert load_asides(records, 1) == {}


@pytest.mark.parametrize("state", list(AsideState))
def test_each_state_says_which_command_ends_it(state: AsideState) -> None:
    text = Aside(state, 5, reason="no room", hint="make some").sentence("search", "public.a")
    assert text.startswith("public.a ")
    assert ("lockstep resume search public.a" in text) == (state is not AsideState.RESUMING)
