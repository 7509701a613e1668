"""A destination in memory that takes several batches as one step, for tests of jobs that apply steps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from sinks.capabilities.whole_steps import WholeSteps
from sinks.contract import Batch, OpenedSink, Outcome, TopicPartition
from sinks.memory import MemorySink, MemoryStore


@dataclass
class SteppingStore(MemoryStore):
    """Also stores the batches' next offsets with their rows."""

    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)


class SteppingSink(MemorySink, WholeSteps):
    """One generation of a store. Others wait while a step is made."""

    store: SteppingStore

    def apply(self, batch: Batch) -> Outcome:
        outcome = super().apply(batch)
        for at, offset in batch.next_offsets.items():
            self.store.next_offsets[at] = max(offset, self.store.next_offsets.get(at, 0))
        return outcome

    @contextmanager
    def step(self) -> Iterator[None]:
        store = self.store
        with store.lock:
            before = deepcopy((store.generations, store.records, store.next_offsets))
            try:
                yield
            except BaseException:
                store.generations, store.records, store.next_offsets = before
                raise

    def newest_tag(self) -> str:
        events = self.store.generation(self.number).newest.values()
        return max((event.tag for rows in events for event in rows.values()), default="")

    def next_offsets(self) -> Mapping[TopicPartition, int]:
        return dict(self.store.next_offsets)


def open_stepping(store: SteppingStore, generation: int = 1, **refusing: Any) -> OpenedSink:
    sink = SteppingSink(store, generation, **refusing)
    return OpenedSink(sink, sink, sink, whole=sink)
