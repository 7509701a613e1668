"""Generations of a destination in memory, and a clock that tests move."""

from collections.abc import Callable, Collection, Mapping

from cdc.model.table import TableName
from jobs.generations.batch_gate import BatchGate
from jobs.generations.held_tables import HeldState, HeldTable, Wish, dump_held_tables, give_order, held_tables_name
from jobs.generations.lease import Clock, GenerationLease
from jobs.query.sink_tables import SinkTables
from sinks.contract import OpenedSink
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
    lease = GenerationLease(open_memory(store, 1), 1, clock=now.clock())
    lease.guard(gate)
    return lease


class AskedRecords(MemorySink):
    """Records which records were asked for, and in how many requests."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.requests: list[list[str]] = []

    def load(self, name: str) -> str | None:
        self.requests.append([name])
        return super().load(name)

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        self.requests.append(list(names))
        return {name: self.store.records[name] for name in names if name in self.store.records}


def hold_tables(tables: SinkTables, opened: OpenedSink, held_tables: Mapping[TableName, HeldTable]) -> GenerationLease:
    """Make a job know these as the tables that it holds. Returns its lease, of generation 1."""
    lease = GenerationLease(opened, 1)
    lease.claim(opened.sink.claim)
    paused = [table for table, held in held_tables.items() if held.state is HeldState.PAUSED]
    if paused:
        give_order(opened.records, 1, paused, Wish.PAUSE, now_ms=1)
    opened.records.save(held_tables_name(1), dump_held_tables(held_tables))
    tables.obey(opened, lease)
    return lease
