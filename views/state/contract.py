"""The contract of a view's state: bytes by bytes, in the order of the keys, changed by whole steps or not at all."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdc.model.errors import LockstepError

T = TypeVar("T")

Entry = tuple[bytes, bytes]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a state takes: its entries, and the bytes of its file, or of keys and values in memory."""

    entries: int
    bytes: int


class UnusableState(LockstepError):
    """What is stored is no state of this view and this version, or is damaged. It holds nothing that the log lacks."""


class Reading(Protocol):
    """The state as one step sees it, its own changes included. Keys have any length."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where there is none."""

    def scan(self, prefix: bytes, *, after: bytes | None = None) -> Iterator[Entry]:
        """The entries whose keys begin with the prefix, in order; those after a key. Nothing may change meanwhile."""

    def scan_back(self, prefix: bytes, *, before: bytes | None = None) -> Iterator[Entry]:
        """The same from the last one on; those before a key."""


class Step(Reading, Protocol):
    """One step's changes."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value."""

    def put_all(self, entries: Mapping[bytes, bytes]) -> None:
        """Set the values of many keys."""

    def put_stored(self, entries: Sequence[Entry]) -> None:
        """The same of entries in the order of their keys, each with the state's ``begin`` before its key."""

    def delete(self, key: bytes) -> None:
        """Remove a key, which may be missing."""

    def delete_all(self, keys: Iterable[bytes]) -> None:
        """Remove many of them."""


class State(Protocol):
    """A map that changes in whole steps.

    Every method raises LockstepError when the operator has to act: a full disk, a file of another version. It raises
    Overtaken when another process has opened the state since.

    ``begin`` is what keys have before them for ``Step.put_stored``: who has many entries makes their keys with it.
    """

    @property
    def begin(self) -> bytes:
        """The same for all of a state."""

    def update(self, work: Callable[[Step], T]) -> T:
        """Do the work and keep all of its changes; none of them where it raises. The work may be done more than once:
        it must do the same each time."""

    def clear(self) -> None:
        """Forget everything, in one step."""

    def compact(self) -> None:
        """Give back space that was used once and isn't any more. It takes as long as reading everything."""

    def read(self, work: Callable[[Reading], T]) -> T:
        """Look at what is kept."""

    def size(self) -> Size:
        """What it takes now."""

    def close(self) -> None:
        """Let go of it. Closing twice does nothing."""
