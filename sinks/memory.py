"""A complete sink in a dict: the reference that the contract suite is proven on, and a stand-in for tests of the jobs."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from cdc.model.errors import Fenced, LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape, unknown_column, unprepared
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Rejection, StoredRow


@dataclass
class _Generation:
    shapes: dict[TableName, Shape] = field(default_factory=dict)
    # Deleted keys stay, with their tag and without an event's row: an older write must not bring them back.
    newest: dict[TableName, dict[bytes, RowEvent]] = field(default_factory=dict)
    progress: Progress | None = None
    fence: int = 0


@dataclass
class MemoryStore:
    """The destination: what several MemorySinks, one per writer and generation, share."""

    generations: dict[int, _Generation] = field(default_factory=dict)
    live: int | None = None
    notes: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _accept(_: RowEvent) -> str | None:
    return None


class MemorySink:
    """Applies events to a MemoryStore. ``refuse`` returns the reason for an event to be rejected, or None."""

    def __init__(
        self, store: MemoryStore, generation: int, *, refuse: Callable[[RowEvent], str | None] = _accept
    ) -> None:
        self._store = store
        self._number = generation
        self._refuse = refuse
        self._fence = 0

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
            self._store.generations[self._number] = generation
            if self._store.live is None and go_live:
                self._store.live = self._number
        return added

    def begin_bulk(self) -> None:
        """There is nothing faster than a dict."""

    def end_bulk(self) -> None:
        """See ``begin_bulk``."""

    def claim(self) -> int:
        with self._store.lock:
            generation = self._generation()
            generation.fence += 1
            self._fence = generation.fence
            return self._fence

    def fence(self) -> int:
        with self._store.lock:
            return self._generation().fence

    def apply(self, batch: Batch) -> Outcome:
        with self._store.lock:
            generation = self._generation()
            if batch.fence != generation.fence:
                raise Fenced("another job has become the writer of this generation")
            applied = stale = 0
            rejections = []
            for event in batch.events:
                rows = generation.newest.get(event.table)
                if rows is None:
                    raise unprepared(event.table)
                reason = self._refuse(event)
                if reason is not None:
                    rejections.append(Rejection(event, reason))
                    continue
                _check_columns(generation.shapes[event.table], event)
                key = _key_bytes(event.key)
                known = rows.get(key)
                if known is None or event.tag > known.tag or (batch.overwrite_equal_tags and event.tag == known.tag):
                    rows[key] = event
                    applied += 1
                else:
                    stale += 1
            return Outcome(applied, stale, rejections)

    def load_progress(self) -> Progress | None:
        with self._store.lock:
            generation = self._store.generations.get(self._number)
            return None if generation is None else generation.progress

    def save_progress(self, progress: Progress) -> None:
        with self._store.lock:
            generation = self._generation()
            if self._fence != generation.fence:
                raise Fenced("another job has become the writer of this generation")
            generation.progress = progress

    def live_generation(self) -> int | None:
        return self._store.live

    def generations(self) -> list[int]:
        with self._store.lock:
            return sorted(self._store.generations)

    def switch(self) -> None:
        with self._store.lock:
            self._generation()
            self._store.live = self._number

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        with self._store.lock:
            generation = self._store.generations.get(self._number, _Generation())
            others = sorted(generation.shapes.keys() - set(tables))
            for name in others:
                del generation.shapes[name]
                del generation.newest[name]
            return others

    def drop(self) -> None:
        with self._store.lock:
            if self._store.live == self._number:
                raise LockstepError(
                    f"generation {self._number} is live", hint="switch to another generation before you drop this one"
                )
            self._store.generations.pop(self._number, None)
            for name in [name for name in self._store.notes if name.startswith(f"g{self._number}.")]:
                del self._store.notes[name]

    def load_coordination(self, name: str) -> str | None:
        with self._store.lock:
            return self._store.notes.get(name)

    def save_coordination(self, name: str, text: str | None) -> None:
        with self._store.lock:
            if text is None:
                self._store.notes.pop(name, None)
            else:
                self._store.notes[name] = text

    def create_coordination(self, name: str, text: str) -> bool:
        with self._store.lock:
            if name in self._store.notes:
                return False
            self._store.notes[name] = text
            return True

    def scan(self, table: Table) -> Iterator[StoredRow]:
        with self._store.lock:
            generation = self._generation()
            if table.name not in generation.newest:
                raise unprepared(table.name)
            events = list(generation.newest[table.name].values())
        for event in events:
            if event.row is not None:
                row = {column.name: event.row.get(column.name) for column in table.columns}
                lacks = [name for name in row if name not in event.row]
                yield StoredRow({name: row[name] for name in table.key}, row, event.tag, lacks)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        wanted = {_key_bytes(key) for key in keys}
        return (stored for stored in self.scan(table) if _key_bytes(stored.key) in wanted)

    def close(self) -> None:
        """Nothing is held open."""

    def _generation(self) -> _Generation:
        try:
            return self._store.generations[self._number]
        except KeyError:
            raise LockstepError(
                f"generation {self._number} doesn't exist", hint="it was never prepared, or it was dropped"
            ) from None


def _key_bytes(key: Mapping[str, object]) -> bytes:
    return orjson.dumps(list(key.values()))


def _check_columns(shape: Shape, event: RowEvent) -> None:
    if event.row is not None:
        held = {column.name for column in shape.columns}
        for name in event.row:
            if name not in held:
                raise unknown_column(event.table, name)
