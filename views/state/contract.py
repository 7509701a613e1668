"""The contract of a view's state: an ordered map of bytes to bytes that changes in whole steps or not at all."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdc.model.errors import LockstepError

T = TypeVar("T")

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Size:
    """The number of entries, and the bytes of the file, or of keys and values in memory."""

    entries: int
    bytes: int


class UnusableState(LockstepError):
    """What is stored is damaged, or no state of this view and this version. It holds nothing that the log lacks."""


class Reading(Protocol):
    """The state as one step sees it, its own changes included. Keys have any length."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, *, after: bytes | None = None) -> Iterator[Entry]:
        """The entries whose keys begin with the prefix and come after a key, in order. Nothing may change meanwhile."""

    def scan_back(self, prefix: bytes, *, before: bytes | None = None) -> Iterator[Entry]:
        """The same backwards from the last one; those before a key."""


class Step(Reading, Protocol):
    def put(self, key: bytes, value: bytes) -> None: ...

    def put_all(self, entries: Mapping[bytes, bytes]) -> None: ...

    def put_stored(self, entries: Sequence[Entry]) -> None:
        """The same for entries in the order of their keys, each with the state's ``begin`` before its key."""

    def delete(self, key: bytes) -> None:
        """Remove a key, which may be missing."""

    def delete_all(self, keys: Iterable[bytes]) -> None:
        """Remove many keys, which may be missing."""


class State(Protocol):
    """An ordered map that changes in whole steps. Methods raise LockstepError when the operator has to act (a full
    disk, a file of another version), and Overtaken when another process has opened the state since.
    """

    @property
    def begin(self) -> bytes:
        """A constant that ``Step.put_stored`` expects before each key, for callers with many entries."""

    def update(self, work: Callable[[Step], T]) -> T:
        """Store all changes of the work, or none if it raises. It may run again, and must do the same each time."""

    def clear(self) -> None: ...

    def compact(self) -> None:
        """Free unused space. It takes as long as reading everything."""

    def read(self, work: Callable[[Reading], T]) -> T: ...

    def size(self) -> Size: ...

    def close(self) -> None:
        """Closing twice does nothing."""
