"""extensions.streams.jobs.posting_turn, with a destination in memory."""

from functools import partial

import pytest

from cdc.model.errors import Unavailable
from cdc.model.timeouts import PAUSE_MAX_S
from extensions.streams.jobs.posting_turn import PostingTurn
from extensions.streams.jobs.records import POSTING_PAUSE
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import SILENCE_S, GenerationLease
from jobs.generations.record import list_generations
from sinks.memory import MemoryStore, open_memory
from tests.generations import Time, prepared_store


def turn_of(store: MemoryStore, now: Time, said: list[str] | None = None) -> PostingTurn:
    opened = open_memory(store)
    builds = partial(list_generations, opened)
    return PostingTurn(
        opened, "logins", builds=builds, say=[].append if said is None else said.append, clock=now.clock()
    )


def job_of(store: MemoryStore, now: Time, generation: int = 1) -> tuple[GenerationLease, BatchGate]:
    """A job of this build, and the gate that its posts pass."""
    gate = BatchGate()
    lease = GenerationLease(open_memory(store, generation), generation, pause_request=POSTING_PAUSE, clock=now.clock())
    lease.guard(gate)
    lease.heartbeat()
    return lease, gate


def is_held(gate: BatchGate) -> bool:
    return gate.is_wanted


def test_jobs_of_all_builds_post_nothing_until_it_ends() -> None:
    store, now = prepared_store(1, 2), Time()
    (older, gate_1), (newer, gate_2) = job_of(store, now, 1), job_of(store, now, 2)

    def beat() -> None:
        older.heartbeat()
        newer.heartbeat()

    now.every = beat
    turn = turn_of(store, now)
    turn.take()
    assert is_held(gate_1)
    assert is_held(gate_2)
    turn.end()
    beat()
    assert POSTING_PAUSE not in store.records
    assert not is_held(gate_1)
    assert not is_held(gate_2)


def test_a_row_that_is_being_posted_is_waited_for() -> None:
    store, now = prepared_store(1), Time()
    lease, gate = job_of(store, now)
    assert gate.enter()
    now.every = lease.heartbeat
    with pytest.raises(Unavailable, match="doesn't let go of the row"):
        turn_of(store, now).take()


def test_of_two_commands_one_waits_for_the_other_but_not_for_one_that_was_killed() -> None:
    store, now, said = prepared_store(1), Time(), list[str]()
    first, second = turn_of(store, now), turn_of(store, now, said)
    first.take()
    looks = 0

    def end_soon() -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            first.end()

    now.every = end_soon
    second.take()
    assert looks == 5
    assert len(said) == 1
    now.every = lambda: None
    began = now.now
    turn_of(store, now).take()  # the second one never ends
    assert PAUSE_MAX_S < now.now - began < 2 * PAUSE_MAX_S
    held = store.records[POSTING_PAUSE]
    second.end()
    assert store.records[POSTING_PAUSE] == held, "it is another one's by now"


def test_killed_jobs_of_many_builds_are_waited_for_at_once() -> None:
    """One after the other would take longer than a turn lasts, so that none would ever begin."""
    builds = range(1, 9)
    store, now = prepared_store(*builds), Time()
    for number in builds:
        job_of(store, now, number)
    began = now.now

    def check() -> None:
        assert now.now - began < PAUSE_MAX_S

    now.every = check
    assert turn_of(store, now).take()
    assert now.now - began < 2 * SILENCE_S


def test_what_a_look_finds_counts_only_while_its_turn_lasts() -> None:
    store, now = prepared_store(1), Time()
    turn, looks = turn_of(store, now), list[bool]()

    def look(is_another: bool) -> int:
        looks.append(is_another)
        if len(looks) == 1:
            now.sleep(PAUSE_MAX_S / 2)
        return len(looks)

    assert turn.looked(look) == 2
    assert turn.looked(look) == 3
    assert looks == [True, True, False]


def test_who_looks_for_longer_than_a_turn_lasts_is_told_so() -> None:
    """And lets jobs post again."""
    store, now = prepared_store(1), Time()
    turn = turn_of(store, now)
    with pytest.raises(Unavailable, match="takes longer than a turn"):
        turn.looked(lambda _: now.sleep(PAUSE_MAX_S / 2))
    turn.end()
    assert POSTING_PAUSE not in store.records
