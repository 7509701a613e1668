"""How jobs and commands agree about generations, with a destination in memory."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError, Unavailable
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import HEARTBEAT_S, PAUSE_MAX_S, Clock, GenerationLease, is_running, wait_for_pause
from jobs.generations.record import (
    Phase,
    Record,
    begin_generation,
    begin_unless_begun,
    check_owner,
    list_generations,
    require_in_use,
    save_record,
)
from jobs.generations.switch import PREVIOUS, missing_records, switch
from sinks.contract import Progress
from sinks.memory import MemoryRecords, MemorySink, MemoryStore, open_memory
from tests.builders import column, table

ORDERS = table(column("id", "int8"), column("note"))
AT = ("shop.public.orders", 0)


class Time:
    """A clock that moves when somebody sleeps; ``every`` is called each time."""

    def __init__(self, every: Callable[[], None] = lambda: None) -> None:
        self.now = 100.0
        self.every = every

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.every()


def _store(*generations: int) -> MemoryStore:
    store = MemoryStore()
    for number in generations:
        MemorySink(store, number).prepare([ORDERS])
    return store


def _at(store: MemoryStore, generation: int, offset: int) -> None:
    opened = open_memory(store, generation)
    opened.sink.claim()
    opened.generations.save_progress(Progress({AT: offset}, offset, 0, 0, {AT[0]: "id"}))


def test_a_record_comes_back_as_it_was() -> None:
    store = _store(1, 2)
    record = Record("shop", {"exclude": ["public.orders.note"]}, Phase.BUILDING, loaded=False, created_at_ms=5)
    save_record(MemoryRecords(store), 2, record)
    first, second = list_generations(open_memory(store, 1))
    assert (first.number, first.is_live, first.record, first.phase) == (1, True, None, Phase.READY)
    assert (second.number, second.is_live, second.record, second.phase) == (2, False, record, Phase.BUILDING)


def _numbers(store: MemoryStore) -> list[int]:
    return [generation.number for generation in list_generations(open_memory(store, 1))]


def _drop(store: MemoryStore, number: int) -> None:
    opened = open_memory(store, number)
    save_record(opened.records, number, Record("shop", {}, Phase.RETIRED))
    opened.generations.drop()


def test_a_number_is_given_once_also_when_its_generation_is_gone() -> None:
    store = _store(1)
    assert begin_generation(open_memory(store, 1), Record("shop", {})) == 2
    MemorySink(store, 2).prepare([ORDERS])
    _drop(store, 2)
    assert _numbers(store) == [1]
    assert begin_generation(open_memory(store, 1), Record("shop", {})) == 3


def test_a_generation_that_is_only_planned_is_among_them() -> None:
    store = _store(1)
    begin_generation(open_memory(store, 1), Record("shop", {}, Phase.BUILDING))
    begin_generation(open_memory(store, 1), Record("shop", {}))
    assert _numbers(store) == [1, 2, 3]
    _drop(store, 2)
    assert _numbers(store) == [1, 3]


class _Interrupted(MemoryRecords):
    """Dies after so many records have been written."""

    def __init__(self, store: MemoryStore, writes: int) -> None:
        super().__init__(store)
        self._writes = writes

    def save(self, name: str, text: str | None) -> None:
        self._step()
        super().save(name, text)

    def create(self, name: str, text: str) -> bool:
        self._step()
        return super().create(name, text)

    def _step(self) -> None:
        if not self._writes:
            raise InterruptedError
        self._writes -= 1


@pytest.mark.parametrize("writes", range(3))
def test_a_process_that_dies_while_it_takes_a_number_has_it_or_not(writes: int) -> None:
    store = MemoryStore()
    with suppress(InterruptedError):
        begin_generation(replace(open_memory(store), records=_Interrupted(store, writes)), Record("shop", {}))
    assert _numbers(store) == ([1] if writes else [])
    begin_generation(open_memory(store, 1), Record("shop", {}))
    assert _numbers(store) == ([1, 2] if writes else [1])


class _Late(MemoryRecords):
    """Lets another process act at the last moment before it creates a record, once."""

    def __init__(self, store: MemoryStore, act: Callable[[], object]) -> None:
        super().__init__(store)
        self._act = act

    def create(self, name: str, text: str) -> bool:
        act, self._act = self._act, lambda: None
        act()
        return super().create(name, text)


def test_of_two_that_begin_at_once_one_has_the_number_and_the_other_sees_its_record() -> None:
    store = MemoryStore()
    theirs = Record("shop", {}, Phase.BUILDING)
    late = replace(open_memory(store), records=_Late(store, lambda: begin_generation(open_memory(store), theirs)))
    assert begin_unless_begun(late, Record("shop", {})) is None
    assert [(one.number, one.record) for one in list_generations(late)] == [(1, theirs)]
    late = replace(open_memory(store), records=_Late(store, lambda: begin_generation(open_memory(store), theirs)))
    assert begin_generation(late, Record("shop", {})) == 3


def test_who_is_late_does_not_get_a_number_whose_generation_is_gone_by_now() -> None:
    store = MemoryStore()

    def come_and_go() -> None:
        assert begin_generation(open_memory(store, 1), Record("shop", {})) == 1
        _drop(store, 1)

    late = replace(open_memory(store), records=_Late(store, come_and_go))
    assert begin_unless_begun(late, Record("shop", {})) is None
    assert _numbers(store) == []


def test_another_pipelines_generation_is_refused() -> None:
    with pytest.raises(LockstepError, match="written by pipeline 'other'"):
        check_owner("search", 1, Record("other", {}), "shop")
    check_owner("search", 1, Record("shop", {}), "shop")


def _runner(store: MemoryStore, gate: BatchGate, now: Time) -> GenerationLease:
    return GenerationLease(MemoryRecords(store), 1, gate, monotonic=lambda: now.now)


def test_a_job_that_runs_is_seen_and_one_that_ended_is_not() -> None:
    store, now = _store(1), Time()
    runner = _runner(store, BatchGate(), now)
    assert not is_running(MemoryRecords(store), 1, now.clock())
    runner.heartbeat()
    now.every = runner.heartbeat
    assert is_running(MemoryRecords(store), 1, now.clock())
    now.every = lambda: None
    assert not is_running(MemoryRecords(store), 1, now.clock())  # killed: its note is there and doesn't move
    runner.end()
    began = now.now
    assert not is_running(MemoryRecords(store), 1, now.clock())
    assert now.now == began
    # A job that was fenced ends after its successor has begun, and must not make that one look dead.
    successor = _runner(store, BatchGate(), now)
    successor.heartbeat()
    runner.end()
    now.every = successor.heartbeat
    assert is_running(MemoryRecords(store), 1, now.clock())


def test_a_hold_that_nobody_takes_back_is_removed_by_the_job() -> None:
    store, now, gate = _store(1), Time(), BatchGate()
    runner = _runner(store, gate, now)
    MemoryRecords(store).save("g1.pause_request", "of a switch that was killed")
    runner.heartbeat()
    now.now += PAUSE_MAX_S + 1
    runner.heartbeat()
    assert "g1.pause_request" not in store.records


def test_a_dropped_generation_is_not_made_anew() -> None:
    store = _store(1)
    opened = open_memory(store, 1)
    with pytest.raises(LockstepError, match="was dropped"):
        require_in_use(opened.records, "search", 1)
    save_record(opened.records, 1, Record("shop", {}, Phase.RETIRED))
    with pytest.raises(LockstepError, match="was dropped"):
        require_in_use(opened.records, "search", 1)
    save_record(opened.records, 1, Record("shop", {}))
    require_in_use(opened.records, "search", 1)


def test_a_job_stands_still_while_it_is_asked_to_and_not_for_ever() -> None:
    store, now, gate = _store(1), Time(), BatchGate()
    runner = _runner(store, gate, now)
    runner.heartbeat()
    MemoryRecords(store).save("g1.pause_request", "mine")
    now.every = runner.heartbeat
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    assert not _may_enter(gate)
    now.now += PAUSE_MAX_S + 1
    runner.heartbeat()
    assert _may_enter(gate)
    now.now += HEARTBEAT_S
    runner.heartbeat()  # the same wish is not fulfilled twice
    assert _may_enter(gate)
    MemoryRecords(store).save("g1.pause_request", "another")
    runner.heartbeat()
    assert not _may_enter(gate)
    MemoryRecords(store).save("g1.pause_request", None)
    runner.heartbeat()
    assert _may_enter(gate)


def _may_enter(gate: BatchGate) -> bool:
    entered: list[bool] = []
    batch = threading.Thread(target=lambda: entered.append(gate.enter()), daemon=True)
    batch.start()
    batch.join(0.1)
    if entered:
        gate.leave()
        return True
    # Let it through, so that no thread is left behind that would take the next turn.
    gate.release()
    batch.join(5)
    gate.leave()
    gate.hold(0)
    return False


def test_a_job_stands_still_only_when_its_batch_is_over() -> None:
    store, now, gate = _store(1), Time(), BatchGate()
    runner = _runner(store, gate, now)
    assert gate.enter()
    MemoryRecords(store).save("g1.pause_request", "mine")
    now.every = runner.heartbeat
    runner.heartbeat()
    with pytest.raises(Unavailable, match="long batch"):
        wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    gate.leave()
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())


def test_a_job_whose_destination_does_not_answer_goes_on_after_its_time() -> None:
    store, now, gate = _store(1), Time(), BatchGate()
    opened = open_memory(store, 1)
    runner = GenerationLease(opened.records, 1, gate, monotonic=lambda: now.now)
    opened.records.save("g1.pause_request", "mine")
    runner.heartbeat()

    def fails(_: str) -> str | None:
        raise Unavailable("away")

    opened.records.load = fails  # type: ignore[method-assign]
    now.now += PAUSE_MAX_S + 1
    with suppress(Unavailable):
        runner.heartbeat()
    assert _may_enter(gate)


def test_the_first_generation_is_switched_to_at_once() -> None:
    store = MemoryStore()
    MemorySink(store, 1).prepare([ORDERS], go_live=False)
    assert switch(lambda number: open_memory(store, number), 1, log_ends=dict, clock=Time().clock()) is None
    assert store.live == 1


def test_a_switch_waits_until_the_new_generation_has_all_that_the_old_one_shows() -> None:
    store, now, gate = _store(1, 2), Time(), BatchGate()
    runner = _runner(store, gate, now)
    runner.heartbeat()
    _at(store, 1, 10)
    _at(store, 2, 7)
    steps = iter(range(8, 100))

    def every() -> None:
        runner.heartbeat()
        if store.records.get("g1.pause_request") and now.now > 102:
            _at(store, 2, min(10, next(steps)))
        assert store.live == 1 or store.generations[2].progress.next_offsets[AT] == 10  # type: ignore[union-attr]

    now.every = every
    ends = iter([{AT: 7}, {AT: 10}])  # some are written between the approach and the hold
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: next(ends), clock=now.clock()) == 1
    assert store.live == 2
    assert store.records[PREVIOUS] == "1"
    assert "g1.pause_request" not in store.records
    assert store.generations[2].progress.next_offsets == {AT: 10}  # type: ignore[union-attr]


def test_a_generation_that_is_far_behind_catches_up_before_the_old_one_is_held() -> None:
    store, now = _store(1, 2), Time()
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
    store, now = _store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 7)
    with pytest.raises(LockstepError, match="lacks 3 events"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 10}, clock=now.clock())
    assert store.live == 1
    assert "g1.pause_request" not in store.records


def test_the_new_generation_needs_all_that_the_log_has_whatever_the_old_one_says_of_itself() -> None:
    """A batch that was interrupted is in the rows and not in the progress."""
    store, now = _store(1, 2), Time()
    _at(store, 1, 10)
    _at(store, 2, 10)
    with pytest.raises(LockstepError, match="lacks 2 events"):
        switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 12}, clock=now.clock())
    _at(store, 2, 12)
    assert switch(lambda number: open_memory(store, number), 2, log_ends=lambda: {AT: 12}, clock=now.clock()) == 1


def test_topics_that_the_new_generation_does_not_read_are_not_waited_for() -> None:
    assert missing_records(Progress({AT: 3}, 0, 0, 0, {AT[0]: "id"}), {AT: 5, ("shop.public.other", 0): 9}) == 2
    assert missing_records(None, {AT: 5}) == 5
