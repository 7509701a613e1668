"""What an extension stores of rows, and how an erased row is removed there: the contract for the erasing extension.

The order: an ``Eraser`` is made before anything is changed. ``places`` is called after the row is gone from its topic,
sinks and views, then ``close_rejections``, then ``unchecked``.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Table
from sinks.capabilities.erasing import Leftover
from sinks.wrappers.retrying import Retries

LOOK_EVERY_S: Final = 0.5
_PATIENCE_S: Final = 10.0
"""How long a server that doesn't answer is asked again."""


class Stopped(LockstepError):
    """The work isn't done, and may be begun again."""


def stopped() -> LockstepError:
    return Stopped("stopped before it was done", hint="run the same command again: it goes on")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits between two looks. ``check`` is called before each wait, and raises Stopped if a stop was asked for."""

    check: Callable[[], None]

    def wait(self) -> None:
        self.check()
        time.sleep(LOOK_EVERY_S)

    def retries(self) -> Retries:
        """For a sink whose server doesn't answer for a while."""
        return Retries(
            sleep=time.sleep,
            monotonic=time.monotonic,
            random=random.random,
            on_wait=lambda _: self.check(),
            give_up_after_s=_PATIENCE_S,
        )


@dataclass(frozen=True, slots=True)
class DeletedRow:
    """``tag`` is that of its deletion, "" if no topic has it any more. ``key`` is in the order of the table's key.
    ``gone_at`` is a tag greater than those of everything committed while the row existed."""

    table: Table
    key: dict[str, JsonValue]
    tag: str
    topic: str
    gone_at: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """One place, such as a topic or a sink's generation: what was there, and what is ``left``.

    ``why`` says why something is left for an unknown time, and what to do. ``unasked`` says why the place couldn't be
    looked at. Everything in a topic at ``compacted_up_to_ms`` (milliseconds since 1970) was compacted. ``note`` says
    what may still arrive there from sources that aren't looked at, and doesn't count.
    """

    name: str
    found: tuple[Leftover, ...] = ()
    left: tuple[Leftover, ...] = ()
    why: str | None = None
    unasked: str | None = None
    compacted_up_to_ms: int | None = None
    note: str | None = None

    def unproven(self, why: str) -> Self:
        """The same, with an unknown end for what is left: it should be gone, and isn't."""
        return replace(self, left=tuple(replace(leftover, until_ms=None) for leftover in self.left), why=why)

    @property
    def is_proven(self) -> bool:
        """Whether nothing is left, or its end is known."""
        return self.unasked is None and all(leftover.until_ms is not None for leftover in self.left)


def without_erasing(name: str, kind: str) -> Place:
    return Place(name, unasked=f"can't erase here: a sink of type {kind!r} keeps what it has of a row")


@dataclass(frozen=True, slots=True)
class RecordWords:
    """How a topic's records are called for people: those of a key that aren't tombstones, and what a tombstone is. With
    ``of_many`` they belong to all keys, may hold values of the row themselves, and weren't counted."""

    with_what: str = "with the row"
    have_values: bool = True
    of_many: bool = False


class KeyRecord(Protocol):
    """A record of a topic, including tombstones and records of aborted transactions."""

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def is_tombstone(self) -> bool: ...


class Topics(Protocol):
    """Erases keys from topics: has them compacted, and reads them to see what is left."""

    def records(self, topic: str, is_wanted: Callable[[bytes], bool]) -> Sequence[KeyRecord]:
        """All records of these keys. ``is_wanted`` is called for each record, in order."""
        ...

    def look_at(self, topic: str, read: Callable[[], Sequence[Any]], words: RecordWords | None = None) -> Place:
        """What is there of the records that ``read`` finds, which come from ``records``. Changes nothing."""
        ...

    def erase_those(self, topic: str, read: Callable[[], Sequence[Any]], words: RecordWords | None = None) -> Place:
        """Have the topic compacted if that removes some of them, and ``read`` them again."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What an eraser works with. ``timeout_s`` is the longest wait for one place. ``check`` raises Stopped if a stop
    was asked for."""

    topics: Topics
    timeout_s: float
    check: Callable[[], None]
    say: Callable[[str], None]


class Eraser(ABC):
    """Erases one row from what an extension stores. It is made with the configuration, the row and means. Making it
    raises ConfigurationError if the configuration says something impossible of the row. Nothing is changed then."""

    @abstractmethod
    def places(self, has_had: Callable[[str], bool], *, only_look: bool) -> Iterable[Place]:
        """Erase the row wherever it may be, or only look there. ``has_had`` says whether a topic has or had values of
        it. Raises LockstepError if nobody knows what is there."""

    def is_rejected(self, topic: str, key: bytes) -> bool:
        return False

    def close_rejections(self, rejections: Collection[bytes], close: Callable[[Collection[bytes]], None]) -> str | None:
        """Call ``close`` with the keys for which ``is_rejected`` holds. Returns why some stay open."""
        close(rejections)
        return None

    def unchecked(self, topics: Collection[str]) -> Iterable[str]:
        """What isn't looked at, in sentences. ``topics`` are all that exist."""
        return ()
