"""What capture needs from a memory of large values, and an implementation in dicts."""

from collections.abc import Mapping
from typing import Final, Protocol

Position = tuple[int, int]
"""(commit LSN, seq) of a published change."""

Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the offset below which everything is contained."""

Values = Mapping[str, bytes]
"""A column's identity -> the value's JSON exactly as in an event."""

LEFT_OUT: Final = ""
"""In place of a column: capture left the row out of its topic, so the topic doesn't show its values."""

LEFT_OUT_ROW: Final[Values] = {LEFT_OUT: b"null"}


class ToastMemory(Protocol):
    """The large values of rows, by topic and event key. Reads see earlier puts at once."""

    def get(self, topic: str, key: bytes) -> Values | None: ...

    def put(self, topic: str, key: bytes, values: Values) -> None:
        """Store these values as all that is known of a row."""
        ...

    def forget(self, topic: str, key: bytes) -> None: ...

    def clear(self, topic: str) -> None: ...

    def may_have(self, topic: str) -> bool:
        """False if nothing is stored of any row of a topic. Costs next to nothing."""
        ...


class DurableMemory(ToastMemory, Protocol):
    """A memory that survives its process, up to its last ``commit`` or an earlier one, never to the middle of one."""

    def commit(self, position: Position | None, bounds: Offsets | None = None) -> None:
        """Persist the changes since the last commit. Call it when Kafka has committed the same changes. ``position`` is
        that of the last published change; None: the memory is being filled and isn't complete up to any. ``bounds`` are
        offsets below which everything is contained now; absent partitions keep theirs."""
        ...

    def discard(self) -> None:
        """Drop the changes since the last commit."""
        ...

    def position(self) -> Position | None:
        """The position up to which it is complete; None if it never was."""
        ...

    def offsets(self) -> Offsets:
        """Where to read on to complete it; absent partitions are read from their start."""
        ...


class MemoryStore:
    """A complete memory in dicts, for tests and for capture without a directory. It ends with its process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, bytes], Values] = {}
        self._undo: dict[tuple[str, bytes], Values | None] = {}
        self._position: Position | None = None
        self._offsets: dict[tuple[str, int], int] = {}

    def get(self, topic: str, key: bytes) -> Values | None:
        return self._rows.get((topic, key))

    def put(self, topic: str, key: bytes, values: Values) -> None:
        self._undo.setdefault((topic, key), self._rows.get((topic, key)))
        self._rows[topic, key] = dict(values)

    def forget(self, topic: str, key: bytes) -> None:
        if (topic, key) in self._rows:
            self._undo.setdefault((topic, key), self._rows[topic, key])
            del self._rows[topic, key]

    def clear(self, topic: str) -> None:
        for row in [row for row in self._rows if row[0] == topic]:
            self.forget(*row)

    def may_have(self, topic: str) -> bool:
        return any(of_topic == topic for of_topic, _ in self._rows)

    def commit(self, position: Position | None, bounds: Offsets | None = None) -> None:
        self._undo.clear()
        self._position = position
        self._offsets.update(bounds or {})

    def discard(self) -> None:
        for row, values in self._undo.items():
            if values is None:
                self._rows.pop(row, None)
            else:
                self._rows[row] = values
        self._undo.clear()

    def position(self) -> Position | None:
        return self._position

    def offsets(self) -> Offsets:
        return dict(self._offsets)
