"""The state in memory: the simplest form of the contract, for tests and for views that are only checked."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from views.state.contract import Entry, Reading, Size, Step

T = TypeVar("T")


class MemoryState:
    begin = b""

    def __init__(self) -> None:
        self._entries = _Entries()

    def update(self, work: Callable[[Step], T]) -> T:
        self._entries.before = {}
        try:
            return work(self._entries)
        except BaseException:
            for key, value in self._entries.before.items():
                if value is None:
                    self._entries.delete(key)
                else:
                    self._entries.put(key, value)
            raise

    def clear(self) -> None:
        self._entries = _Entries()

    def compact(self) -> None: ...

    def read(self, work: Callable[[Reading], T]) -> T:
        return work(self._entries)

    def size(self) -> Size:
        values = self._entries.values
        return Size(len(values), sum(len(key) + len(value) for key, value in values.items()))

    def close(self) -> None: ...


class _Entries:
    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self.before: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.before.setdefault(key, self.values.get(key))
        if key not in self.values:
            insort(self._keys, key)
        self.values[key] = value

    def put_all(self, entries: Mapping[bytes, bytes]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def put_stored(self, entries: Sequence[Entry]) -> None:
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        if key in self.values:
            self.before.setdefault(key, self.values[key])
            del self.values[key]
            del self._keys[bisect_left(self._keys, key)]

    def delete_all(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.delete(key)

    def scan(self, prefix: bytes, *, after: bytes | None = None) -> Iterator[Entry]:
        start = bisect_left(self._keys, prefix) if after is None else bisect_right(self._keys, max(after, prefix))
        if after is not None and after < prefix:
            start = bisect_left(self._keys, prefix)
        keys = self._keys
        for index in range(start, len(keys)):
            key = keys[index]
            if not key.startswith(prefix):
                return
            yield key, self.values[key]

    def scan_back(self, prefix: bytes, *, before: bytes | None = None) -> Iterator[Entry]:
        end = _end_of(self._keys, prefix)
        if before is not None:
            end = min(end, bisect_left(self._keys, before))
        for index in range(end - 1, -1, -1):
            key = self._keys[index]
            if not key.startswith(prefix):
                return
            yield key, self.values[key]


def _end_of(keys: list[bytes], prefix: bytes) -> int:
    """The position after the last key that begins with the prefix."""
    beyond = after_prefix(prefix)
    return len(keys) if beyond is None else bisect_left(keys, beyond)


def after_prefix(prefix: bytes) -> bytes | None:
    """The least key that is greater than all that begin with the prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
