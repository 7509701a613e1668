"""Readers are switched to a generation that lacks nothing, with a destination in memory."""

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.timeouts import PAUSE_MAX_S
from jobs.consistency import Consistency, save_consistency
from jobs.generations.batch_gate import BatchGate
from jobs.generations.columns import Columns, save_columns
from jobs.generations.status import save_stop
from jobs.generations.switch import PREVIOUS, missing_records, switch
from sinks.contract import Progress
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.generations import ORDERS, Time, lease_of, prepared_store

AT = ("shop.public.orders", 0)


def _at(store: MemoryStore, generation: int, offset: int) -> None:
    opened = open_memory(store, generation)
    opened.sink.claim()
    opened.generations.save_progress(Progress({AT: offset}, offset, 0, 0, {AT[0]: "id"}))


def test_the_first_generation_is_switched_to_at_once() -> None:
    store = MemoryStore()
    MemorySink(store, 1).prepare([ORDERS], go_live=False)
    assert switch(lambda number: open_memory(store, number), 1, log_ends=dict, clock=Time().clock()) is None
    assert store.live == 1


def test_a_switch_waits_until_the_new_generation_has_all_that_the_old_one_shows() -> None:
    store, now, gate = prepared_store(1, 2), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    lease.heartbeat()
    _at(store, 1, 10)
    _at(store, 2, 7)
    steps = iter(range(8, 100))

    def every() -> None:
        lease.heartbeat()
        if store.records.get("g1.pause_request") and now.now > 102:
            _at(store, 2, min(10, next(steps)))
        assert store.live == 1 or store.generations[2].progress.next_offsets[AT] == 10  # type: ignore[union-attr]

    now.every = every
    ends = iter([{AT: 7}, {AT: 10}])  # some are written between the approach and the pause
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: next(ends), clock=now.clock()) == 1
    assert store.live == 2
    assert store.records[PREVIOUS] == "1"
    assert "g1.pause_request" not in store.records
    assert store.generations[2].progress.next_offsets == {AT: 10}  # type: ignore[union-attr]


def test_a_generation_that_is_far_behind_catches_up_before_the_old_one_pauses() -> None:
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 0)
    steps = iter(range(1, 100))

    def every() -> None:
        assert "g1.pause_request" not in store.records
        if now.now % 30 < 1:  # a batch takes long
            _at(store, 2, min(10, next(steps)))

    now.every = every
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock()) == 1


def test_a_generation_that_does_not_catch_up_is_not_switched_to() -> None:
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 7)
    with pytest.raises(LockstepError, match="lacks 3 events"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock())
    assert store.live == 1
    assert "g1.pause_request" not in store.records


def test_a_generation_whose_rows_still_lack_a_new_column_is_not_switched_to() -> None:
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 10)
    save_columns(MemorySink(store), 2, Columns(lacking={ORDERS.name: {"note": "x"}}, is_filled=False))
    with pytest.raises(LockstepError, match="lacks a new column's default in some rows"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock())
    assert store.live == 1
    # What the destination has refused stays as it is.
    save_columns(MemorySink(store), 2, Columns(lacking={ORDERS.name: {"note": "x"}}))
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock()) == 1


def test_of_two_switches_at_once_the_first_gives_up_and_leaves_the_others_request() -> None:
    store, now = prepared_store(1, 2), Time()
    lease = lease_of(store, BatchGate(), now)
    lease.heartbeat()
    now.every = lease.heartbeat
    _at(store, 1, 10)
    _at(store, 2, 10)
    looks = []

    def ends() -> dict[tuple[str, int], int]:
        looks.append(now.now)
        if len(looks) == 2:  # the first has its pause by now
            store.records["g1.pause_request"] = "of the second"
        return {AT: 10}

    with pytest.raises(Unavailable, match="another switch"):
        switch(lambda number: open_memory(store, number), 2, log_ends=ends, clock=now.clock())
    assert (store.live, store.records["g1.pause_request"]) == (1, "of the second")


def test_a_switch_that_hung_for_longer_than_a_job_pauses_is_not_carried_out() -> None:
    """The job may have gone on, and shown newer rows, before it could remove the request."""
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 10)

    def ends() -> dict[tuple[str, int], int]:
        if "g1.pause_request" in store.records:
            now.now += PAUSE_MAX_S
        return {AT: 10}

    with pytest.raises(Unavailable, match="this one took too long"):
        switch(lambda number: open_memory(store, number), 2, log_ends=ends, clock=now.clock())
    assert (store.live, store.records.get("g1.pause_request")) == (1, None)


def test_a_switch_that_ended_while_this_one_waited_ends_this_one() -> None:
    """Readers have another generation by now, whose job didn't pause: they would see rows go back."""
    store, now = prepared_store(1, 2, 3), Time()
    for number in (1, 2, 3):
        _at(store, number, 10)
    asked = []

    def ends() -> dict[tuple[str, int], int]:
        asked.append(1)
        if len(asked) == 2:  # the one before, which had its pause of the same generation behind it
            store.live = 2
        return {AT: 10}

    with pytest.raises(Unavailable, match="another switch"):
        switch(lambda number: open_memory(store, number), 3, log_ends=ends, clock=now.clock())
    assert store.live == 2


def test_the_new_generation_needs_all_that_the_log_has_whatever_the_old_one_says_of_itself() -> None:
    """A batch that was interrupted is in the rows and not in the progress."""
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 10)
    with pytest.raises(LockstepError, match="lacks 2 events"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 12}, clock=now.clock())
    _at(store, 2, 12)
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 12}, clock=now.clock()) == 1


def test_topics_that_the_new_generation_does_not_read_are_not_waited_for() -> None:
    assert missing_records(Progress({AT: 3}, 0, 0, 0, {AT[0]: "id"}), {AT: 5, ("shop.public.other", 0): 9}) == 2
    assert missing_records(None, {AT: 5}) == 5


def test_a_table_that_readers_have_and_that_the_new_generation_has_not_taken_up_is_waited_for() -> None:
    """It has joined while the new one was built."""
    store, now = prepared_store(1, 2), Time()
    late = ("shop.public.late", 0)
    _at(store, 2, 10)
    opened = open_memory(store, 1)
    opened.sink.claim()
    opened.generations.save_progress(Progress({AT: 10, late: 3}, 0, 0, 0, {AT[0]: "id", late[0]: "id"}))
    with pytest.raises(LockstepError, match="lacks 3 events"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10, late: 3}, clock=now.clock())
    assert store.live == 1


def test_a_switch_says_what_it_waits_for_and_that_no_job_applies_to_it() -> None:
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 7)
    said: list[str] = []

    def every() -> None:
        if len(said) == 2:
            _at(store, 2, 10)

    now.every = every

    switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock(), say=said.append)
    assert said[0].startswith("waiting for generation 2: 3 events are missing\ngeneration 2: no job has begun to apply")
    assert said[-1] == "generation 1 is asked to pause"


def test_a_switch_to_a_generation_whose_job_has_stopped_fails_at_once_with_the_reason() -> None:
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 7)
    save_stop(MemorySink(store), 2, LockstepError("column a has the name b now"), now_ms=0)
    began = now.now
    with pytest.raises(LockstepError, match=r"lacks 3 events(.|\n)*column a has the name b now"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock())
    assert now.now == began
    assert store.live == 1


def test_readers_are_not_switched_to_parts_of_transactions() -> None:
    store, now = prepared_store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 10)
    save_consistency(MemorySink(store), 2, Consistency())
    with pytest.raises(LockstepError, match="isn't consistent yet"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock())
    assert store.live == 1
    save_consistency(MemorySink(store), 2, Consistency(1, 16, 5, 16))
    lease = lease_of(store, BatchGate(), now)
    lease.heartbeat()
    now.every = lease.heartbeat
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock()) == 1


LEFT = ("shop.public.left", 0)


def _with_left(store: MemoryStore, generation: int, of_left: int) -> None:
    opened = open_memory(store, generation)
    opened.sink.claim()
    opened.generations.save_progress(Progress({AT: 10, LEFT: of_left}, 0, 0, 0, {AT[0]: "id", LEFT[0]: "id"}))


def test_readers_are_not_switched_to_older_rows_of_a_table_that_left_capture() -> None:
    """Its topic isn't in the log's ends, since no job reads it any more: waiting can't help."""
    store, now = prepared_store(1, 2), Time()
    _with_left(store, 1, 5)
    _with_left(store, 2, 3)
    began = now.now
    with pytest.raises(LockstepError, match=r"older rows. They are of topic shop\.public\.left \(2\)") as refused:
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock())
    assert "lockstep rebuild" in (refused.value.hint or "")
    assert (store.live, now.now, "g1.pause_request" in store.records) == (1, began, False)
    _with_left(store, 2, 5)
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock()) == 1


def test_a_table_that_leaves_capture_while_the_new_generation_comes_close_is_not_overlooked() -> None:
    store, now = prepared_store(1, 2), Time()
    lease = lease_of(store, BatchGate(), now)
    lease.heartbeat()
    now.every = lease.heartbeat
    _with_left(store, 1, 5)
    _with_left(store, 2, 5)

    def ends() -> dict[tuple[str, int], int]:
        if "g1.pause_request" not in store.records:
            return {AT: 10, LEFT: 5}
        _with_left(store, 1, 6)  # the old one's last batch with it
        return {AT: 10}

    with pytest.raises(LockstepError, match=r"topic shop\.public\.left \(1\)"):
        switch(lambda number: open_memory(store, number), 2, log_ends=ends, clock=now.clock())
    assert (store.live, store.records.get("g1.pause_request")) == (1, None)
