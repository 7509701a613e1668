"""A complete sink in a dict, with only what the contract requires: for the contract suite, and tests of jobs."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from cdc.model.append_only import OPERATION_COLUMN, TRUNCATE, hides, is_append_only
from cdc.model.errors import Fenced
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape, unknown_column, unprepared
from sinks.contract import (
    NOTHING_ADDED,
    NOTHING_WRITTEN,
    AddedValues,
    Batch,
    CoordinationRecords,
    Generations,
    OpenedSink,
    Outcome,
    Progress,
    Rejection,
    Sink,
    StoredRow,
    TopicPartition,
)
from sinks.generation_errors import live_generation, missing_generation
from sinks.stored_progress import check_stored


@dataclass
class MemoryGeneration:
    shapes: dict[TableName, Shape] = field(default_factory=dict)
    newest: dict[TableName, dict[bytes, RowEvent]] = field(default_factory=dict)
    """By key. The deletion of a row stays: an older event must not bring the row back."""
    progress: Progress | None = None
    fence: int = 0

    def check_fence(self, fence: int) -> None:
        if fence != self.fence:
            raise Fenced("another job has become the writer of this generation")


@dataclass
class MemoryStore:
    """The destination, shared by everything that is opened of it."""

    generations: dict[int, MemoryGeneration] = field(default_factory=dict)
    live: int | None = None
    records: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def generation(self, number: int) -> MemoryGeneration:
        """One generation. Raises LockstepError when it doesn't exist."""
        if number not in self.generations:
            raise missing_generation(number)
        return self.generations[number]


class MemorySink(Sink, Generations, CoordinationRecords):
    """One generation of a store. ``refuse`` returns why an event is rejected, or None."""

    def __init__(
        self, store: MemoryStore, generation: int = 1, *, refuse: Callable[[RowEvent], str | None] = lambda _: None
    ) -> None:
        self.store = store
        self.number = generation
        self._refuse = refuse
        self._claimed = 0
        self._known: Progress | None = None

    @contextmanager
    def _held(self) -> Iterator[MemoryGeneration]:
        """Lock the store and return the generation. Raises LockstepError when it doesn't exist."""
        with self.store.lock:
            yield self.store.generation(self.number)

    # The rows

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self.store.lock:
            generation = self.store.generations.get(self.number, MemoryGeneration())
            known = generation.shapes
            shapes = {
                each.name: known[each.name].evolve(each) if each.name in known else Shape.of(each) for each in tables
            }
            generation.shapes |= shapes
            generation.newest = {name: {} for name in shapes} | generation.newest
            self.store.generations[self.number] = generation
            if self.store.live is None and go_live:
                self.store.live = self.number
        return added

    def claim(self) -> int:
        with self._held() as generation:
            generation.fence += 1
            self._claimed = generation.fence
            return self._claimed

    def fence(self) -> int:
        with self._held() as generation:
            return generation.fence

    def apply(self, batch: Batch) -> Outcome:
        applied, rejections = 0, []
        with self._held() as generation:
            generation.check_fence(batch.fence)
            for event in batch.events:
                if event.table not in generation.shapes:
                    raise unprepared(event.table)
                reason = self._refuse(event)
                if reason is None:
                    applied += _apply(generation, event, or_equal=batch.overwrite_equal_tags)
                else:
                    rejections.append(Rejection(event, reason))
        return Outcome(applied, len(batch.events) - applied - len(rejections), rejections)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        with self._held() as generation:
            if table.name not in generation.newest:
                raise unprepared(table.name)
            events = [event for event in generation.newest[table.name].values() if event.row is not None]
        emptied = _emptied(events) if is_append_only(table) else None
        for event in events:
            assert event.row is not None
            if emptied is None or not hides(event.row, event.tag, emptied):
                row = {column.name: event.row.get(column.name) for column in table.columns}
                lacks = [name for name in row if name not in event.row]
                yield StoredRow({name: row[name] for name in table.key}, row, event.tag, lacks)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        wanted = {_key_bytes(key) for key in keys}
        return (stored for stored in self.scan(table) if _key_bytes(stored.key) in wanted)

    def close(self) -> None: ...

    # The generations

    def live(self) -> int | None:
        return self.store.live

    def numbers(self) -> list[int]:
        with self.store.lock:
            return sorted(self.store.generations)

    def switch(self) -> None:
        with self._held():
            self.store.live = self.number

    def drop(self) -> None:
        with self.store.lock:
            if self.store.live == self.number:
                raise live_generation(self.number)
            self.store.generations.pop(self.number, None)
            for name in [name for name in self.store.records if name.startswith(f"g{self.number}.")]:
                del self.store.records[name]

    def load_progress(self) -> Progress | None:
        with self.store.lock:
            self._known = self.store.generations.get(self.number, MemoryGeneration()).progress
            return self._known

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        with self._held() as generation:
            generation.check_fence(self._claimed)
            check_stored(self._known, generation.progress, following=progress, destination="memory")
            self._known = generation.progress = progress

    # The coordination records

    def load(self, name: str) -> str | None:
        with self.store.lock:
            return self.store.records.get(name)

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        with self.store.lock:
            if fence:
                self.store.generation(self.number).check_fence(fence)
            if text is None:
                self.store.records.pop(name, None)
            else:
                self.store.records[name] = text

    def create(self, name: str, text: str) -> bool:
        with self.store.lock:
            is_new = name not in self.store.records
            self.store.records.setdefault(name, text)
            return is_new


def open_memory(
    store: MemoryStore, generation: int = 1, *, refuse: Callable[[RowEvent], str | None] = lambda _: None
) -> OpenedSink:
    sink = MemorySink(store, generation, refuse=refuse)
    return OpenedSink(sink, sink, sink)


def _apply(generation: MemoryGeneration, event: RowEvent, *, or_equal: bool) -> bool:
    """Store the event if it is newer than what is stored. Returns whether it was."""
    held = {column.name for column in generation.shapes[event.table].columns}
    for name in event.row or ():
        if name not in held:
            raise unknown_column(event.table, name)
    rows, key = generation.newest[event.table], _key_bytes(event.key)
    is_newer = key not in rows or event.tag > rows[key].tag or (or_equal and event.tag == rows[key].tag)
    if is_newer:
        rows[key] = event
    return is_newer


def _emptied(events: Sequence[RowEvent]) -> str:
    """The tag of the last truncation of an append-only table; "" if there was none."""
    return max((event.tag for event in events if event.row and event.row.get(OPERATION_COLUMN) == TRUNCATE), default="")


def _key_bytes(key: Mapping[str, object]) -> bytes:
    return orjson.dumps(list(key.values()))
