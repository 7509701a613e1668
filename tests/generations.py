"""Generations of a destination in memory, and a clock that tests move."""

from collections.abc import Callable

from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import Clock, GenerationLease
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import column, table

ORDERS = table(column("id", "int8"), column("note"))


class Time:
    """A clock that moves when somebody sleeps; ``every`` runs each time."""

    def __init__(self, every: Callable[[], None] = lambda: None) -> None:
        self.now = 100.0
        self.every = every

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.every()


def prepared_store(*generations: int) -> MemoryStore:
    """A destination with these generations, each prepared for ``ORDERS``."""
    store = MemoryStore()
    for number in generations:
        MemorySink(store, number).prepare([ORDERS])
    return store


def lease_of(store: MemoryStore, gate: BatchGate, now: Time) -> GenerationLease:
    """The lease of generation 1."""
    lease = GenerationLease(open_memory(store, 1), 1, monotonic=lambda: now.now)
    lease.guard(gate)
    return lease
