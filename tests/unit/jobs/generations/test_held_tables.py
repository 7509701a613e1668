"""Which tables a job reads, by what was asked and what has failed."""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError, NeedsRebuild, PositionMismatch
from cdc.model.table import TableName
from jobs.generations.held_tables import (
    HeldState,
    HeldTable,
    Order,
    Orders,
    Wish,
    begun,
    failed,
    give_again,
    give_order,
    is_done,
    load_orders,
    next_held_tables,
    orders_name,
    read_tables,
    taken_again,
)
from sinks.columns.shape import unprepared
from sinks.memory import MemorySink, MemoryStore

A, B = TableName("public", "a"), TableName('Odd "schema"', "b")


def _after(orders: Orders, before: HeldTable | None = None) -> HeldTable | None:
    return next_held_tables([A, B], orders, {} if before is None else {A: before}, now_ms=9).get(A)


def test_a_paused_table_is_not_read_until_it_is_resumed() -> None:
    paused = _after({A: Order(Wish.PAUSE, 1, 5)})
    assert paused == HeldTable(HeldState.PAUSED, 9, 1)
    assert read_tables([A, B], {A: paused}) == [B]
    resumed = _after({A: Order(Wish.APPLY, 2, 6)}, paused)
    assert resumed is not None
    assert (resumed.state, resumed.order, resumed.holds_watermark) == (HeldState.RESUMING, 2, False)
    assert read_tables([A, B], {A: resumed}) == [A, B]


def test_a_newer_order_has_a_table_that_has_failed_tried_again_at_once() -> None:
    failures = failed({}, {A: LockstepError("no room", hint="make some")}, {A: Order(Wish.APPLY, 3)}, now_ms=9)
    assert failures == {A: HeldTable(HeldState.FAILED, 9, 3, "no room", "make some", retry_at_ms=60_009)}
    assert _after({A: Order(Wish.APPLY, 3)}, failures[A]) == failures[A]
    assert _after({}, failures[A]) == failures[A]
    again = _after({A: Order(Wish.APPLY, 4)}, failures[A])
    assert again is not None
    assert (again.state, again.reason) == (HeldState.RESUMING, None)


_REFUSED = LockstepError("no room", hint="make some")


def _failing(held: HeldTable | None, *, now_ms: int, error: LockstepError = _REFUSED) -> HeldTable:
    return failed({} if held is None else {A: held}, {A: error}, {}, now_ms=now_ms)[A]


def test_a_table_that_has_failed_is_tried_again_by_itself_after_pauses_that_grow_up_to_half_an_hour() -> None:
    now_ms, pauses = 1_000_000, list[int]()
    held = _failing(None, now_ms=now_ms)
    for tries in range(8):
        assert held.retry_at_ms is not None
        assert next_held_tables([A], {}, {A: held}, now_ms=held.retry_at_ms - 1) == {A: held}
        pauses.append((held.retry_at_ms - now_ms) // 60_000)
        now_ms = held.retry_at_ms
        trial = next_held_tables([A], {}, {A: held}, now_ms=now_ms)[A]
        assert (trial.state, trial.reason, trial.tries) == (HeldState.RETRYING, "no room", tries)
        assert (trial.is_read, trial.has_failed, trial.holds_watermark) == (True, True, False)
        assert next_held_tables([A], {}, {A: trial}, now_ms=now_ms + 1) == {A: trial}, "also after a kill"
        held = _failing(trial, now_ms=now_ms)
        assert (held.state, held.since_ms, held.holds_watermark) == (HeldState.FAILED, 1_000_000, True)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_clock_that_was_put_back_does_not_make_a_table_wait_for_longer() -> None:
    held = _failing(None, now_ms=10**12)
    assert not held.is_due(10**12)
    assert held.is_due(10**12 - 1)
    assert held.is_due(10**12 + 10**9)


@pytest.mark.parametrize(
    "error",
    [PositionMismatch("deletes may be missing"), NeedsRebuild("it no longer fits"), unprepared("public.orders")],
)
def test_what_does_not_end_by_itself_is_tried_again_by_an_order_alone(error: LockstepError) -> None:
    trial = replace(_failing(None, now_ms=9), state=HeldState.RETRYING, tries=3)
    for before in (None, trial):
        held = _failing(before, now_ms=9, error=error)
        assert held.retry_at_ms is None
        assert next_held_tables([A], {}, {A: held}, now_ms=10**15) == {A: held}
        assert "by itself" not in held.sentence("search", "public.a")
        assert "then `lockstep resume" not in held.sentence("search", "public.a")
        assert next_held_tables([A], {A: Order(Wish.APPLY, 1)}, {A: held}, now_ms=9)[A].state is HeldState.RESUMING


def test_a_table_that_must_be_rebuilt_names_the_whole_command() -> None:
    """After the rebuild nothing of it is held, so that there is nothing to resume."""
    held = _failing(None, now_ms=9, error=unprepared("public.a"))
    assert held.next_step("search", "public.a") == (
        "rebuild it from the log: `lockstep rebuild search --switch`;"
        " if the reason ends without that, `lockstep resume search public.a`"
    )


def test_an_order_counts_more_than_the_next_try() -> None:
    held = _failing(None, now_ms=9)
    due_ms = held.retry_at_ms or 0
    for wish, state in ((Wish.PAUSE, HeldState.PAUSED), (Wish.OUT, HeldState.OUT), (Wish.APPLY, HeldState.RESUMING)):
        decided = next_held_tables([A], {A: Order(wish, 1)}, {A: held}, now_ms=due_ms)[A]
        assert (decided.state, decided.tries, decided.retry_at_ms) == (state, 0, None)


def test_a_table_that_was_tried_again_counts_as_failed_until_some_of_it_is_applied() -> None:
    trial = replace(_failing(None, now_ms=9), state=HeldState.RETRYING, tries=3, begun=True)
    held_tables = {A: trial, B: HeldTable(HeldState.PAUSED, 5, 1)}
    assert taken_again(held_tables, []) == held_tables
    resumed = taken_again(held_tables, [A, B])
    assert resumed == {A: HeldTable(HeldState.RESUMING, 9, begun=True), B: held_tables[B]}
    assert _failing(resumed[A], now_ms=99).retry_at_ms == 60_099, "it had got on"


def test_what_is_told_of_a_table_that_is_tried_again() -> None:
    first = _failing(None, now_ms=0)
    assert first.sentence("search", "public.a") == (
        "public.a is held, since it can't be applied: no room; make some; then `lockstep resume search public.a`,"
        " or wait: it is tried again by itself at 1970-01-01 00:01:00 UTC"
    )
    trial = next_held_tables([A], {}, {A: first}, now_ms=60_000)[A]
    assert trial.sentence("search", "public.a") == (
        "public.a is tried again, since it couldn't be applied: no room; make some"
    )
    again = _failing(trial, now_ms=60_000)
    assert again.next_step("search", "public.a") == (
        "make some; then `lockstep resume search public.a`, or wait: it is tried again by itself at"
        " 1970-01-01 00:03:00 UTC, after 1 try in vain"
    )
    assert HeldTable.from_json(again.to_json()) == again


def test_the_watermark_never_counts_a_table_that_was_out_until_it_has_caught_up() -> None:
    """It has moved on meanwhile. So a pause doesn't make a table of it that the watermark has waited for."""
    out = _after({A: Order(Wish.OUT, 1)}, HeldTable(HeldState.PAUSED, 5, 0))
    assert out == HeldTable(HeldState.OUT, 9, 1, awaited=False)
    assert not out.holds_watermark
    assert _after({A: Order(Wish.PAUSE, 2)}, out) == replace(out, order=2)
    resumed = _after({A: Order(Wish.APPLY, 3)}, out)
    assert resumed == HeldTable(HeldState.RESUMING, 9, 3, awaited=False)
    assert read_tables([A, B], {A: resumed}) == [A, B]
    assert _after({A: Order(Wish.PAUSE, 4)}, resumed) == HeldTable(HeldState.OUT, 9, 4, awaited=False)
    refused = failed({A: resumed}, {A: LockstepError("no room")}, {A: Order(Wish.APPLY, 3)}, now_ms=9)[A]
    assert (refused.state, refused.awaited) == (HeldState.FAILED, False)
    assert refused.holds_watermark, "nobody has taken it out any more: the sink is said to have it"
    assert _after({A: Order(Wish.APPLY, 4)}, refused) == replace(resumed, order=4)
    out_again = _after({A: Order(Wish.OUT, 4)}, refused)
    assert out_again is not None
    assert not out_again.holds_watermark


def test_a_table_that_is_named_and_not_captured_holds_nothing_up_and_is_new_once_it_joins() -> None:
    held_tables = next_held_tables([A], {}, {}, uncaptured=[B], now_ms=9)
    assert held_tables == {B: HeldTable(HeldState.UNCAPTURED, 9, awaited=False)}
    assert read_tables([A, B], held_tables) == [A]
    assert next_held_tables([A], {}, held_tables, uncaptured=[B], now_ms=10) == held_tables
    assert next_held_tables([A, B], {}, held_tables, now_ms=10) == {}
    assert next_held_tables([A, B], {}, held_tables, left=[B], now_ms=10) == {
        B: HeldTable(HeldState.RESUMING, 10, awaited=False)
    }
    paused = {B: HeldTable(HeldState.PAUSED, 5, 1)}
    orders = {B: Order(Wish.PAUSE, 1)}
    assert next_held_tables([A], orders, paused, uncaptured=[B], now_ms=9)[B].state is HeldState.UNCAPTURED


def test_a_resumed_table_is_being_read_once_it_was_checked_for_the_newest_order() -> None:
    resumed = _after({A: Order(Wish.APPLY, 2)}, HeldTable(HeldState.PAUSED, 5, 1))
    assert resumed is not None
    assert not is_done(Order(Wish.APPLY, 2), resumed)
    checked = begun({A: resumed, B: HeldTable(HeldState.PAUSED, 5, 1)})
    assert checked == {A: replace(resumed, begun=True), B: HeldTable(HeldState.PAUSED, 5, 1)}
    assert is_done(Order(Wish.APPLY, 2), checked[A])
    assert not is_done(Order(Wish.APPLY, 3), checked[A])
    assert _after({A: Order(Wish.APPLY, 2)}, checked[A]) == checked[A]
    assert _after({A: Order(Wish.APPLY, 3)}, checked[A]) == replace(resumed, order=3)


def test_an_order_is_done_when_the_job_has_obeyed_or_refused_it() -> None:
    assert is_done(Order(Wish.APPLY, 2), None)
    assert not is_done(Order(Wish.PAUSE, 2), None)
    assert is_done(Order(Wish.PAUSE, 2), HeldTable(HeldState.PAUSED, 5, 2))
    assert not is_done(Order(Wish.OUT, 3), HeldTable(HeldState.PAUSED, 5, 2))
    assert is_done(Order(Wish.APPLY, 3), HeldTable(HeldState.FAILED, 5, 3))


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
    for state in set(HeldState) - {HeldState.UNCAPTURED}:  # which no order has made
        held = HeldTable(state, 5, 3)
        assert _after({}, held) == _after({A: Order(Wish.APPLY, 2)}, held) == held


@pytest.mark.parametrize("state", list(HeldState))
def test_each_state_says_which_command_ends_it(state: HeldState) -> None:
    text = HeldTable(state, 5, reason="no room", hint="make some").sentence("search", "public.a")
    assert text.startswith("public.a ")
    by_itself = (HeldState.RESUMING, HeldState.RETRYING, HeldState.UNCAPTURED)
    assert ("lockstep resume search public.a" in text) == (state not in by_itself)
