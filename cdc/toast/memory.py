"""What capture needs of a memory of large values, and one in a dict with the same contract as the store on disk."""

from collections.abc import Mapping
from typing import Final, Protocol

Position = tuple[int, int]
"""(commit LSN, seq) of a published change."""

Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the offset below which everything is contained."""

Values = Mapping[str, bytes]
"""A column's identity -> the value's JSON exactly as in an event."""

LEFT_OUT: Final = ""
"""In place of a column: capture has left the row out of its topic, so nothing there tells its values."""

LEFT_OUT_ROW: Final[Values] = {LEFT_OUT: b"null"}


class ToastMemory(Protocol):
    """The large values of rows, by topic and event key. What is read includes what was just put."""

    def get(self, topic: str, key: bytes) -> Values | None:
        """The values of a row, or None."""
        ...

    def put(self, topic: str, key: bytes, values: Values) -> None:
        """Remember these values of a row, and no others of it."""
        ...

    def forget(self, topic: str, key: bytes) -> None:
        """Remember nothing of a row."""
        ...

    def clear(self, topic: str) -> None:
        """Forget all rows of a topic."""
        ...

    def may_have(self, topic: str) -> bool:
        """False when nothing is remembered of any row of a topic. Costs next to nothing."""
        ...


class DurableMemory(ToastMemory, Protocol):
    """One that survives its process, up to its last ``commit`` or to an earlier one, never to the middle of one."""

    def commit(self, position: Position | None, bounds: Offsets | None = None) -> None:
        """Keep what was put and forgotten since the last commit. Call it when Kafka has committed the same changes.

        ``position`` is that of the last published change; None says that the memory is being filled and isn't complete
        up to any. ``bounds`` are offsets below which everything is contained now; partitions left out keep theirs.
        """
        ...

    def discard(self) -> None:
        """Drop what was put, forgotten and cleared since the last commit."""
        ...

    def position(self) -> Position | None:
        """Up to where it is complete; None for one that never was."""
        ...

    def offsets(self) -> Offsets:
        """Where to read on to complete one that isn't; partitions that aren't here from their start."""
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
