"""Removing for good what a destination keeps of a deleted row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.model.errors import Overtaken
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a destination still keeps of a deleted row."""

    what: str
    """For people: it holds no value of the row."""
    has_values: bool
    """It may hold more than the row's key and tag."""
    until_ms: int | None = None
    """It is gone at this time at the latest, in milliseconds since 1970. None: unknown."""


class Erasing(Protocol):
    """Without it, ``lockstep erase`` can't erase there, and says so for each generation. May be called beside a job.

    Raises ``Unavailable`` and ``LockstepError``.
    """

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> Sequence[Leftover]:
        """Called first: what is kept of the row of this key: the row itself, its versions, the mark of its deletion.

        Empty if nothing is kept, also for a table that this generation wasn't prepared for. Without a key: what is kept
        of all rows that were deleted or replaced, since nobody knows the keys of a view's old rows. A view has no
        history, so versions aren't meant there. Raises ConfigurationError if settings name the columns of the key
        otherwise.
        """
        ...

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> Sequence[Leftover]:
        """Called again and again: remove what is kept of a deleted row, and return what stays nevertheless.

        Without a key: what is kept of all rows that were deleted or replaced by something with a tag less than
        ``below``. The remains of later ones aren't returned.

        A row that wasn't deleted stays, and is returned. All events with a tag less than ``below`` have been applied,
        also those of other rows; None: nothing is known. What has a tag at or above it stays: the mark of a deletion
        keeps older events out. Slow work of the destination is only begun: call it again until nothing stays.

        No late or repeated event brings an erased row back. The exception is an event of a batch with ``never_applied``
        whose ``erased`` doesn't know of it. After a kill the next call continues.
        """
        ...

    def erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Called before rejections are looked at for a retry: a text for each of these tables.

        The text changes each time when more is erased or purged from the table. It lists only tables in which an event
        of a batch with ``never_applied`` could bring erased rows back: none if the marks of deletions stay. If the
        batch has another text for a table, ``Sink.apply`` raises ``Overtaken`` and applies nothing to it.
        """
        return {}


def marks_of_rows(count: int, until_ms: int | None = None) -> list[Leftover]:
    """This many marks of deletions as leftovers. Their keys may hold values of what led to the row."""
    if not count:
        return []
    return [Leftover(f"{count:,} mark{'s' * (count > 1)} of deleted rows, with their keys", True, until_ms)]


def check_erased(
    known: Mapping[TableName, str] | None, erased: Mapping[TableName, str], tables: Iterable[TableName]
) -> None:
    """Raise Overtaken if more was erased from one of these tables than a batch knows of (``Batch.erased``)."""
    if known is not None and any(erased.get(name, "") != known.get(name, "") for name in tables):
        raise Overtaken("rows were erased since it was looked which events are still to be applied")
