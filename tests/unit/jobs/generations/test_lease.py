"""A job shows that it runs, and pauses when somebody asks for it, with a destination in memory."""

import threading
from contextlib import suppress

import pytest

from cdc.model.errors import Unavailable
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import HEARTBEAT_S, PAUSE_MAX_S, GenerationLease, is_running, wait_for_pause
from sinks.memory import MemoryRecords, open_memory
from tests.generations import Time, lease_of, prepared_store


def test_a_job_that_runs_is_seen_and_one_that_ended_is_not() -> None:
    store, now = prepared_store(1), Time()
    lease = lease_of(store, BatchGate(), now)
    assert not is_running(MemoryRecords(store), 1, now.clock())
    lease.heartbeat()
    now.every = lease.heartbeat
    assert is_running(MemoryRecords(store), 1, now.clock())
    now.every = lambda: None
    assert not is_running(MemoryRecords(store), 1, now.clock())  # killed: its heartbeat is there and doesn't move
    lease.end()
    began = now.now
    assert not is_running(MemoryRecords(store), 1, now.clock())
    assert now.now == began
    # A job that was fenced ends after its successor has begun, and must not make that one look dead.
    successor = lease_of(store, BatchGate(), now)
    successor.heartbeat()
    lease.end()
    now.every = successor.heartbeat
    assert is_running(MemoryRecords(store), 1, now.clock())


def test_a_pause_request_that_nobody_takes_back_is_removed_by_the_job() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    MemoryRecords(store).save("g1.pause_request", "of a switch that was killed")
    lease.heartbeat()
    now.now += PAUSE_MAX_S + 1
    lease.heartbeat()
    assert "g1.pause_request" not in store.records


def test_a_job_pauses_while_it_is_asked_to_and_not_for_ever() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    lease.heartbeat()
    MemoryRecords(store).save("g1.pause_request", "mine")
    now.every = lease.heartbeat
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    assert not _may_enter(gate)
    now.now += PAUSE_MAX_S + 1
    lease.heartbeat()
    assert _may_enter(gate)
    now.now += HEARTBEAT_S
    lease.heartbeat()  # the same request is not fulfilled twice
    assert _may_enter(gate)
    MemoryRecords(store).save("g1.pause_request", "another")
    lease.heartbeat()
    assert not _may_enter(gate)
    MemoryRecords(store).save("g1.pause_request", None)
    lease.heartbeat()
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


def test_a_job_pauses_only_when_its_batch_is_over() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    assert gate.enter()
    MemoryRecords(store).save("g1.pause_request", "mine")
    now.every = lease.heartbeat
    lease.heartbeat()
    with pytest.raises(Unavailable, match="long batch"):
        wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    gate.leave()
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())


def test_who_asks_for_a_pause_waits_for_every_job_of_the_generation() -> None:
    """Where a destination has no fence, two may apply to it for a while, and each may be in the middle of a batch."""
    store, now, busy = prepared_store(1), Time(), BatchGate()
    jobs = [lease_of(store, BatchGate(), now), lease_of(store, busy, now)]

    def beat() -> None:
        for job in jobs:
            job.heartbeat()

    beat()
    assert busy.enter()
    MemoryRecords(store).save("g1.pause_request", "mine")
    now.every = beat
    with pytest.raises(Unavailable, match="long batch"):
        wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    busy.leave()
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    jobs.pop().end()
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    assert is_running(MemoryRecords(store), 1, now.clock())


def test_a_job_that_was_killed_is_waited_for_no_longer_than_it_takes_to_see_that() -> None:
    store, now = prepared_store(1), Time()
    lease_of(store, BatchGate(), now).heartbeat()
    job = lease_of(store, BatchGate(), now)
    now.every = job.heartbeat
    job.heartbeat()
    MemoryRecords(store).save("g1.pause_request", "mine")
    began = now.now
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    assert now.now - began < 4 * HEARTBEAT_S
    now.sleep(HEARTBEAT_S)
    began = now.now
    assert wait_for_pause(MemoryRecords(store), 1, "mine", now.clock())
    assert now.now == began, "the job has taken its entry away"


def test_a_job_whose_destination_does_not_answer_goes_on_after_its_time() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    opened = open_memory(store, 1)
    lease = GenerationLease(opened.records, 1, gate, monotonic=lambda: now.now)
    opened.records.save("g1.pause_request", "mine")
    lease.heartbeat()

    def fails(_: str) -> str | None:
        raise Unavailable("away")

    opened.records.load = fails  # type: ignore[method-assign]
    now.now += PAUSE_MAX_S + 1
    with suppress(Unavailable):
        lease.heartbeat()
    assert _may_enter(gate)
