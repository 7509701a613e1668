"""A job shows that it runs, and pauses when somebody asks for it, with a destination in memory."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from cdc.model.errors import DataLost, Fenced, Unavailable
from cdc.model.timeouts import PAUSE_MAX_S
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import HEARTBEAT_S, Clock, GenerationLease, NewerJob, is_running, wait_for_pause
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.generations import Time, lease_of, prepared_store


def test_a_job_that_runs_is_seen_and_one_that_ended_is_not() -> None:
    store, now = prepared_store(1), Time()
    lease = lease_of(store, BatchGate(), now)
    assert not is_running(MemorySink(store), 1, now.clock())
    lease.heartbeat()
    now.every = lease.heartbeat
    assert is_running(MemorySink(store), 1, now.clock())
    now.every = lambda: None
    assert not is_running(MemorySink(store), 1, now.clock())  # killed: its heartbeat is there and doesn't move
    lease.end()
    began = now.now
    assert not is_running(MemorySink(store), 1, now.clock())
    assert now.now == began
    # A job that was fenced ends after its successor has begun, and must not make that one look dead.
    successor = lease_of(store, BatchGate(), now)
    successor.heartbeat()
    lease.end()
    now.every = successor.heartbeat
    assert is_running(MemorySink(store), 1, now.clock())


def test_an_older_job_does_not_write_over_what_the_newer_one_has_written() -> None:
    store, now = prepared_store(1), Time()
    older, newer = (lease_of(store, BatchGate(), now) for _ in range(2))
    older.claim(open_memory(store, 1).sink.claim)
    older.save_record("g1.held_tables", "the older one's")
    newer.claim(open_memory(store, 1).sink.claim)
    newer.save_record("g1.held_tables", "the newer one's")
    with pytest.raises(Fenced, match="another job has begun"):
        older.save_record("g1.held_tables", None)
    assert older.record("g1.held_tables") == "the newer one's"


class _HeldUp(MemorySink):
    """Records of which one is stored late: something else happens before it gets there."""

    meanwhile: Callable[[], object] | None = None

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        if name == "g1.stream_figures" and self.meanwhile is not None:
            self.meanwhile, meanwhile = None, self.meanwhile
            meanwhile()
        super().save(name, text, fence=fence)


def test_what_an_older_job_stores_late_does_not_replace_what_the_newer_one_has_stored() -> None:
    """It has looked, and a newer one has claimed and stored before its record gets to the destination."""
    store = prepared_store(1)
    records = _HeldUp(store)
    older = GenerationLease(replace(open_memory(store, 1), records=records), 1)
    newer = GenerationLease(open_memory(store, 1), 1)
    older.claim(open_memory(store, 1).sink.claim)
    older.save_claimed("g1.stream_figures", "the older one's")

    def meanwhile() -> None:
        newer.claim(open_memory(store, 1).sink.claim)
        newer.save_claimed("g1.stream_figures", "the newer one's")

    records.meanwhile = meanwhile
    with pytest.raises(Fenced):
        older.save_claimed("g1.stream_figures", "the older one's, late")
    assert store.records["g1.stream_figures"] == "the newer one's"


def test_a_pause_request_that_nobody_takes_back_is_removed_by_the_job() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    MemorySink(store).save("g1.pause_request", "of a switch that was killed")
    lease.heartbeat()
    now.now += PAUSE_MAX_S + 1
    lease.heartbeat()
    assert "g1.pause_request" not in store.records


def test_a_job_pauses_while_it_is_asked_to_and_not_for_ever() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    lease.heartbeat()
    MemorySink(store).save("g1.pause_request", "mine")
    now.every = lease.heartbeat
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    assert not _may_enter(gate)
    now.now += PAUSE_MAX_S + 1
    lease.heartbeat()
    assert _may_enter(gate)
    now.now += HEARTBEAT_S
    lease.heartbeat()  # the same request is not fulfilled twice
    assert _may_enter(gate)
    MemorySink(store).save("g1.pause_request", "another")
    lease.heartbeat()
    assert not _may_enter(gate)
    MemorySink(store).save("g1.pause_request", None)
    lease.heartbeat()
    assert _may_enter(gate)


def _may_enter(gate: BatchGate) -> bool:
    entered: list[bool] = []
    waits = threading.Event()
    gate.when_wanted(waits.set)
    batch = threading.Thread(target=lambda: entered.append(gate.enter()), daemon=True)
    batch.start()
    while batch.is_alive() and not waits.wait(0.01):
        pass
    if entered:
        gate.leave()
        return True
    # Let it through, so that no thread is left behind that would take the next turn.
    gate.release()
    batch.join(300)
    gate.leave()
    gate.hold(0)
    return False


def test_a_job_pauses_only_when_its_batch_is_over() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, gate, now)
    assert gate.enter()
    MemorySink(store).save("g1.pause_request", "mine")
    now.every = lease.heartbeat
    lease.heartbeat()
    with pytest.raises(Unavailable, match="long batch"):
        wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    gate.leave()
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())


def test_who_asks_for_a_pause_waits_for_every_job_of_the_generation() -> None:
    """Where a destination has no fence, two may apply to it for a while, and each may be in the middle of a batch."""
    store, now, busy = prepared_store(1), Time(), BatchGate()
    jobs = [lease_of(store, BatchGate(), now), lease_of(store, busy, now)]

    def beat() -> None:
        for job in jobs:
            job.heartbeat()

    beat()
    assert busy.enter()
    MemorySink(store).save("g1.pause_request", "mine")
    now.every = beat
    with pytest.raises(Unavailable, match="long batch"):
        wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    busy.leave()
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    jobs.pop().end()
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    assert is_running(MemorySink(store), 1, now.clock())


def test_a_job_that_was_killed_is_waited_for_no_longer_than_it_takes_to_see_that() -> None:
    store, now = prepared_store(1), Time()
    lease_of(store, BatchGate(), now).heartbeat()
    job = lease_of(store, BatchGate(), now)
    now.every = job.heartbeat
    job.heartbeat()
    MemorySink(store).save("g1.pause_request", "mine")
    began = now.now
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    assert now.now - began < 4 * HEARTBEAT_S
    now.sleep(HEARTBEAT_S)
    began = now.now
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())
    assert now.now == began, "the job has taken its entry away"


def test_a_job_whose_destination_does_not_answer_goes_on_after_its_time() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    opened = open_memory(store, 1)
    lease = GenerationLease(opened, 1, clock=now.clock())
    lease.guard(gate)
    opened.records.save("g1.pause_request", "mine")
    lease.heartbeat()

    def fails(_: str) -> str | None:
        raise Unavailable("away")

    opened.records.load = fails  # type: ignore[method-assign]
    now.now += PAUSE_MAX_S + 1
    with suppress(Unavailable):
        lease.heartbeat()
    assert _may_enter(gate)
    # Whoever asked would still rely on the pause.
    opened.records.load = store.records.get  # type: ignore[method-assign]
    lease.heartbeat()
    assert "g1.pause_request" not in store.records
    assert _may_enter(gate)


class _Job:
    """A job of a destination that can't fence, on a machine with clocks of its own. ``record`` is what it writes."""

    def __init__(self, store: MemoryStore, *, now_ms: int = 0, records: MemorySink | None = None) -> None:
        self.time = Time()
        opened = open_memory(store, 1)
        self.lease = GenerationLease(
            replace(opened, records=records or opened.records),
            1,
            clock=Clock(lambda: self.time.now, now_ms=lambda: now_ms),
        )
        self.lease.claim(lambda: 0)

    def beats(self) -> bool:
        """Whether it goes on at its next heartbeat."""
        self.time.now += HEARTBEAT_S
        return _passes(self.lease.heartbeat)


def _passes(call: Callable[[], None]) -> bool:
    try:
        call()
    except Fenced:
        return False
    return True


HOUR_MS = 3_600_000


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS, -HOUR_MS])
def test_the_older_of_two_jobs_ends_whatever_their_clocks_say(ahead_ms: int) -> None:
    store = prepared_store(1)
    older = _Job(store, now_ms=10 * HOUR_MS + ahead_ms)
    assert older.beats()
    newer = _Job(store, now_ms=10 * HOUR_MS)
    assert not older.beats()
    with pytest.raises(Fenced, match="another job has begun to apply to generation 1"):
        older.lease.check()
    assert newer.beats()
    older.lease.end()
    assert newer.beats()
    # The newer one leaves no way back to the older one when it ends.
    newer.lease.end()
    assert not older.beats()


def test_a_job_that_hung_looks_before_it_stores_progress() -> None:
    store = prepared_store(1)
    older = _Job(store)
    _Job(store)
    assert _passes(older.lease.check), "it looks at its next heartbeat"
    older.time.now += 60
    assert not _passes(older.lease.check)


def test_a_job_that_hangs_while_it_looks_has_not_looked() -> None:
    store = prepared_store(1)
    newer: list[_Job] = []

    class Hanging(MemorySink):
        def load(self, name: str) -> str | None:
            text = super().load(name)
            if older is not None and not newer and name == "g1.heartbeat":
                older.time.now += 60
                newer.append(_Job(store))
            return text

    older: _Job | None = None
    older = _Job(store, records=Hanging(store))
    assert older.beats()
    assert newer[0].beats()
    assert not _passes(older.lease.check)


@pytest.mark.parametrize("newer_ms", [5, 6])
def test_of_two_jobs_that_begin_at_once_one_is_left(newer_ms: int) -> None:
    store = prepared_store(1)

    class Late(MemorySink):
        """Another job claims between this one's look and its claim."""

        def load(self, name: str) -> str | None:
            text = super().load(name)
            if not jobs:
                jobs.append(_Job(store, now_ms=newer_ms))
            return text

    jobs: list[_Job] = []
    jobs.append(_Job(store, now_ms=5, records=Late(store)))
    assert [[job.beats() for job in jobs] for _ in range(3)][-1].count(True) == 1


def test_a_claim_that_a_job_which_hung_writes_over_comes_back() -> None:
    store = prepared_store(1)
    older = _Job(store)
    stale = store.records["g1.heartbeat"]
    newer = _Job(store)
    store.records["g1.heartbeat"] = stale
    assert older.beats(), "it can't know yet"
    assert newer.beats()
    assert not older.beats()
    assert newer.beats()


def test_a_job_that_begins_after_its_store_was_put_back_is_the_newest() -> None:
    store = prepared_store(1)
    first = _Job(store, now_ms=1_000)
    before = store.records["g1.heartbeat"]
    older = _Job(store, now_ms=2_000)
    store.records["g1.heartbeat"] = before
    newest = _Job(store, now_ms=3_000)
    assert not older.beats()
    assert not first.beats()
    assert newest.beats()


def test_a_job_that_is_killed_after_its_claim_keeps_no_later_one_out() -> None:
    store = prepared_store(1)
    older = _Job(store)
    _Job(store)
    assert not older.beats(), "it may not go on: nobody can tell that the other one is dead"
    later = _Job(store)
    assert later.beats()


def test_where_the_destination_fences_its_order_counts() -> None:
    store = prepared_store(1)
    now = Time()
    leases = [GenerationLease(open_memory(store, 1), 1, clock=now.clock()) for _ in range(2)]
    opened = [open_memory(store, 1) for _ in leases]
    leases[0].claim(opened[0].sink.claim)
    before = store.records["g1.heartbeat"]
    leases[1].claim(opened[1].sink.claim)
    # Whatever the record says: it may be from before or from after the store was put back.
    store.records["g1.heartbeat"] = before.replace('"number":1', '"number":9')
    now.now += HEARTBEAT_S
    assert _passes(leases[1].heartbeat)
    assert not _passes(leases[0].heartbeat)
    # A job that goes on with another query claims again, and stays the newest.
    assert leases[1].claim(opened[1].sink.claim) == 3
    now.now += HEARTBEAT_S
    assert _passes(leases[1].heartbeat)


def _passed(store: MemoryStore) -> tuple[GenerationLease, Callable[[], int], Time]:
    now, opened = Time(), open_memory(store, 1)
    lease = GenerationLease(opened, 1, clock=now.clock())
    lease.claim(opened.sink.claim)
    return lease, opened.sink.claim, now


def test_a_destination_that_was_put_back_is_no_other_job() -> None:
    store = prepared_store(1)
    lease, claim_sink, now = _passed(store)
    before = dict(store.records), store.generation(1).fence
    assert lease.claim(claim_sink) == 2
    store.records, store.generation(1).fence = before
    now.now += HEARTBEAT_S
    for call in (lease.heartbeat, lease.check, lease.check_fence):
        now.now += 60
        with pytest.raises(DataLost, match="put back: it knows nothing of this job"):
            call()
    lease.begin()
    assert lease.claim(claim_sink) == 2
    lease.heartbeat()


def test_who_was_put_back_with_the_destination_is_looked_for_before_it_is_claimed_again() -> None:
    store = prepared_store(1)
    for lives in (True, False):
        other, _, others = _passed(store)
        before = dict(store.records), store.generation(1).fence
        lease, claim_sink, now = _passed(store)
        store.records, store.generation(1).fence = before
        with pytest.raises(DataLost):
            lease.begin()
        now.now += 5
        if lives:
            others.now += HEARTBEAT_S
            other.heartbeat()
            with pytest.raises(Fenced):
                lease.begin()
            continue
        with pytest.raises(DataLost):
            lease.begin()
        now.now += 2
        lease.begin()
        lease.claim(claim_sink)


def test_an_older_job_claims_nothing_again() -> None:
    store = prepared_store(1)
    older = _Job(store)
    _Job(store)
    claimed: list[int] = []
    with pytest.raises(Fenced):
        older.lease.claim(lambda: claimed.append(1) or 1)  # type: ignore[func-returns-value]
    assert not claimed


@pytest.mark.parametrize(("once", "is_killed"), [(True, False), (True, True), (False, False), (False, True)])
def test_who_was_ended_by_a_newer_job_sees_that_one_end(once: bool, is_killed: bool) -> None:
    """A job that goes on may hang and come back. One that ends by itself ends no other for ever."""
    now, records = Time(), MemorySink(MemoryStore())
    opened = replace(open_memory(MemoryStore()), records=records)
    newer = GenerationLease(opened, 1, once=once, clock=Clock(lambda: now.now, now_ms=lambda: round(now.now * 1000)))
    newer.claim(lambda: 0)
    seen = NewerJob(lambda: now.now)
    assert seen.ends_by_itself is None
    for _ in range(10):
        now.sleep(HEARTBEAT_S)
        newer.heartbeat()
        seen.look(records, 1)
        assert (seen.ends_by_itself, seen.has_ended) == (once, False)
    if not is_killed:
        newer.end()
    seen.look(records, 1)
    assert not seen.has_ended  # a sign of life that was written over comes back
    now.sleep(4 * HEARTBEAT_S)
    seen.look(records, 1)
    assert seen.has_ended is (once or not is_killed)


def test_whether_the_newest_job_ends_by_itself_outlives_what_others_write() -> None:
    records = MemorySink(MemoryStore())
    opened = replace(open_memory(MemoryStore()), records=records)
    older, newest = GenerationLease(opened, 1), GenerationLease(opened, 1, once=True)
    older.claim(lambda: 0)
    newest.claim(lambda: 0)
    older.end()
    seen = NewerJob()
    seen.look(records, 1)
    assert seen.ends_by_itself
    GenerationLease(opened, 1).claim(lambda: 0)
    seen.look(records, 1)
    assert seen.ends_by_itself is False


def test_the_next_query_of_a_job_that_pauses_pauses_too() -> None:
    store, now, gate = prepared_store(1), Time(), BatchGate()
    lease = lease_of(store, BatchGate(), now)
    MemorySink(store).save("g1.pause_request", "mine")
    lease.heartbeat()
    lease.guard(gate)
    assert not _may_enter(gate)


def test_a_job_between_two_queries_pauses_at_once() -> None:
    store, now = prepared_store(1), Time()
    lease = GenerationLease(open_memory(store, 1), 1, clock=now.clock())
    MemorySink(store).save("g1.pause_request", "mine")
    now.every = lease.heartbeat
    lease.heartbeat()
    assert wait_for_pause(MemorySink(store), 1, "mine", now.clock())
