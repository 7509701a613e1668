"""A complete sink in a dict.

The reference that the contract suite is proven on, and a stand-in for tests of the jobs.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
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
    Generations,
    Leftover,
    OpenedSink,
    Outcome,
    Progress,
    Rejection,
    Sink,
    StoredRow,
    TopicPartition,
    check_erased,
    marks_of_rows,
)
from sinks.generation_errors import live_generation, missing_generation
from sinks.stored_progress import check_stored, check_written


@dataclass
class _Generation:
    shapes: dict[TableName, Shape] = field(default_factory=dict)
    # Deleted keys stay, with their tag and without an event's row: an older write must not bring them back.
    newest: dict[TableName, dict[bytes, RowEvent]] = field(default_factory=dict)
    erased: dict[TableName, str] = field(default_factory=dict)
    """The greatest erased tag of each table: an event up to it of a key that isn't there comes again."""
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    progress: Progress | None = None
    fence: int = 0
    made: dict[TableName, str] = field(default_factory=dict)
    """What tells each table from another one that takes its place."""

    def check_fence(self, fence: int) -> None:
        if fence != self.fence:
            raise Fenced("another job has become the writer of this generation")


@dataclass
class MemoryStore:
    """The destination, which all that is opened of it shares."""

    generations: dict[int, _Generation] = field(default_factory=dict)
    live: int | None = None
    records: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def generation(self, number: int) -> _Generation:
        """One generation. Raises LockstepError when there is none of that number."""
        try:
            return self.generations[number]
        except KeyError:
            raise missing_generation(number) from None


class _OfGeneration:
    """What is opened of one generation of a store."""

    def __init__(self, store: MemoryStore, generation: int = 1) -> None:
        self._store = store
        self._number = generation

    @contextmanager
    def _held(self) -> Iterator[_Generation]:
        """The generation, while others wait. Raises LockstepError when it doesn't exist."""
        with self._store.lock:
            yield self._store.generation(self._number)


def _accept(_: RowEvent) -> str | None:
    return None


def open_memory(
    store: MemoryStore, generation: int = 1, *, refuse: Callable[[RowEvent], str | None] = _accept
) -> OpenedSink:
    """A store opened for one generation. ``refuse`` returns the reason for an event to be rejected, or None."""
    sink = MemorySink(store, generation, refuse=refuse)
    return OpenedSink(
        sink,
        MemoryGenerations(store, generation, sink),
        MemoryRecords(store, generation),
        whole=MemorySteps(store, generation),
    )


class MemorySink(_OfGeneration, Sink):
    """The rows of one generation of a store. ``refuse`` returns the reason for an event to be rejected, or None."""

    def __init__(
        self, store: MemoryStore, generation: int, *, refuse: Callable[[RowEvent], str | None] = _accept
    ) -> None:
        super().__init__(store, generation)
        self._refuse = refuse
        self.claimed = 0

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self._store.lock:
            generation = self._store.generations.get(self._number, _Generation())
            shapes = dict(generation.shapes)
            for table in tables:
                known = shapes.get(table.name)
                shapes[table.name] = Shape.of(table) if known is None else known.evolve(table)
            generation.shapes = shapes
            for table in tables:
                generation.newest.setdefault(table.name, {})
                generation.made.setdefault(table.name, uuid.uuid4().hex)
            self._store.generations[self._number] = generation
            if self._store.live is None and go_live:
                self._store.live = self._number
        return added

    def claim(self) -> int:
        with self._held() as generation:
            generation.fence += 1
            self.claimed = generation.fence
            return self.claimed

    def fence(self) -> int:
        with self._held() as generation:
            return generation.fence

    def apply(self, batch: Batch) -> Outcome:
        with self._held() as generation:
            generation.check_fence(batch.fence)
            check_erased(batch, generation.erased, {event.table for event in batch.events})
            counts = {True: 0, False: 0}
            rejections = []
            for event in batch.events:
                if event.table not in generation.newest:
                    raise unprepared(event.table)
                reason = self._refuse(event)
                if reason is None:
                    counts[_apply(generation, event, batch)] += 1
                else:
                    rejections.append(Rejection(event, reason))
            for at, offset in batch.next_offsets.items():
                generation.next_offsets[at] = max(offset, generation.next_offsets.get(at, 0))
            return Outcome(counts[True], counts[False], rejections)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        with self._held() as generation:
            if table.name not in generation.newest:
                raise unprepared(table.name)
            events = list(generation.newest[table.name].values())
        emptied = _emptied(events) if is_append_only(table) else None
        for event in events:
            if event.row is not None and (emptied is None or not hides(event.row, event.tag, emptied)):
                row = {column.name: event.row.get(column.name) for column in table.columns}
                lacks = [name for name in row if name not in event.row]
                yield StoredRow({name: row[name] for name in table.key}, row, event.tag, lacks)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        wanted = {_key_bytes(key) for key in keys}
        return (stored for stored in self.scan(table) if _key_bytes(stored.key) in wanted)

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> Sequence[Leftover]:
        if key is None:
            return self._marks_below(table, "g")
        with self._held() as generation:
            known = generation.newest.get(table.name, {}).get(_key_bytes(key))
        if known is None:
            return ()
        return (Leftover("the mark of its deletion", False) if known.row is None else Leftover("the row", True),)

    def erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        with self._held() as generation:
            return {name: generation.erased[name] for name in tables if name in generation.erased}

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> Sequence[Leftover]:
        with self._held() as generation:
            rows = generation.newest.get(table.name, {})
            for each in list(rows) if key is None else [_key_bytes(key)]:
                known = rows.get(each)
                if known is not None and known.row is None and below is not None and known.tag < below:
                    generation.erased[table.name] = max(known.tag, generation.erased.get(table.name, ""))
                    del rows[each]
        return self.leftovers(table, key) if key is not None else self._marks_below(table, below or "g")

    def _marks_below(self, table: Table, below: str) -> Sequence[Leftover]:
        with self._held() as generation:
            newest = generation.newest.get(table.name, {}).values()
            return marks_of_rows(sum(event.row is None and event.tag < below for event in newest))

    def close(self) -> None:
        """Nothing is held open."""


class MemorySteps(_OfGeneration):
    """Steps of one generation of a store. Others wait while one is made."""

    @contextmanager
    def step(self) -> Iterator[None]:
        with self._held() as generation:
            before = deepcopy(generation), dict(self._store.records)
            try:
                yield
            except BaseException:
                self._store.generations[self._number], self._store.records = before
                raise

    def newest_tag(self) -> str:
        with self._held() as generation:
            return max((event.tag for rows in generation.newest.values() for event in rows.values()), default="")

    def next_offsets(self) -> Mapping[TopicPartition, int]:
        with self._held() as generation:
            return dict(generation.next_offsets)


class MemoryGenerations(_OfGeneration, Generations):
    """The generations of a store, for the one of a sink."""

    def __init__(self, store: MemoryStore, generation: int, sink: MemorySink) -> None:
        super().__init__(store, generation)
        self._sink = sink
        self._known: Progress | None = None

    def live(self) -> int | None:
        return self._store.live

    def numbers(self) -> list[int]:
        with self._store.lock:
            return sorted(self._store.generations)

    def switch(self) -> None:
        with self._held():
            self._store.live = self._number

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        with self._store.lock:
            made = self._store.generations.get(self._number, _Generation()).made
            return {name: made[name] for name in tables if name in made}

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        now = self.identities(known)
        gone = {name: "it was removed" for name in known if name not in now}
        return gone | {
            name: "it was removed, and another one is there"
            for name, identity in known.items()
            if identity and now.get(name, identity) != identity
        }

    def drop(self) -> None:
        with self._store.lock:
            if self._store.live == self._number:
                raise live_generation(self._number)
            self._store.generations.pop(self._number, None)
            for name in [name for name in self._store.records if name.startswith(f"g{self._number}.")]:
                del self._store.records[name]

    def load_progress(self) -> Progress | None:
        with self._store.lock:
            generation = self._store.generations.get(self._number)
            self._known = None if generation is None else generation.progress
            return self._known

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        with self._held() as generation:
            generation.check_fence(self._sink.claimed)
            check_stored(self._known, generation.progress, following=progress, destination="memory")
            check_written(written, generation.next_offsets, destination="memory")
            self._known = generation.progress = progress


class MemoryRecords(_OfGeneration):
    """The coordination records of a store."""

    def load(self, name: str) -> str | None:
        with self._store.lock:
            return self._store.records.get(name)

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        with self._store.lock:
            return {name: self._store.records[name] for name in names if name in self._store.records}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        with self._store.lock:
            if fence:
                self._store.generation(self._number).check_fence(fence)
            if text is None:
                self._store.records.pop(name, None)
            else:
                self._store.records[name] = text

    def create(self, name: str, text: str) -> bool:
        with self._store.lock:
            is_new = name not in self._store.records
            self._store.records.setdefault(name, text)
            return is_new


def _apply(generation: _Generation, event: RowEvent, batch: Batch) -> bool:
    """Whether the event is newer than what is there."""
    _check_columns(generation.shapes[event.table], event)
    rows, key = generation.newest[event.table], _key_bytes(event.key)
    known = rows.get(key)
    if known is None:
        is_newer = batch.never_applied or event.tag > generation.erased.get(event.table, "")
    else:
        is_newer = event.tag > known.tag or (batch.overwrite_equal_tags and event.tag == known.tag)
    if is_newer:
        rows[key] = event
    return is_newer


def _emptied(events: Sequence[RowEvent]) -> str:
    """The tag of what emptied an append-only table last; empty where nothing did."""
    rows = ((event.tag, event.row) for event in events if event.row is not None)
    return max((tag for tag, row in rows if row.get(OPERATION_COLUMN) == TRUNCATE), default="")


def _key_bytes(key: Mapping[str, object]) -> bytes:
    return orjson.dumps(list(key.values()))


def _check_columns(shape: Shape, event: RowEvent) -> None:
    if event.row is not None:
        held = {column.name for column in shape.columns}
        for name in event.row:
            if name not in held:
                raise unknown_column(event.table, name)
