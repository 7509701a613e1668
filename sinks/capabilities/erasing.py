"""Removing for good what is kept of a deleted row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.model.errors import Overtaken
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a destination still keeps of a row that is gone.

    ``what`` is for people: it holds no value of the row. With ``has_values`` it may be more than the row's key and tag.
    It is gone at ``until_ms`` at the latest, in milliseconds since 1970; None: nobody knows when.
    """

    what: str
    has_values: bool
    until_ms: int | None = None


class Erasing(Protocol):
    """Without it, ``lockstep erase`` says of each generation of the sink that it can't erase there.

    It may be called beside a job. Raises ``Unavailable`` and ``LockstepError``.
    """

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> Sequence[Leftover]:
        """Called first: what is kept of the row of this key. That is the row itself, its versions, its deletion's mark.

        Empty for none, also for a table that this generation wasn't prepared for. Without a key it is what is kept of
        all rows that were deleted or replaced: a view's rows go by a key that nobody knows any more. A view has no
        history, and versions in one aren't meant. Raises ConfigurationError where settings name columns of the key
        otherwise.
        """
        ...

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> Sequence[Leftover]:
        """Called again and again: remove what is kept of a row that was deleted, and return what stays all the same.

        Without a key that is what is kept of all rows that were deleted or replaced by something of a tag less than
        ``below``. What later ones leave isn't returned.

        A row that wasn't deleted stays, and is returned. Of everything with a tag less than ``below`` all events have
        been applied, also to other rows; None: nothing is known. What is at or above it stays: the mark of a deletion
        keeps older events out. What takes the destination time is begun: call it again until nothing stays.

        No event that comes late or again brings a row back that was erased, but for one of a batch that says
        ``never_applied``, and doesn't know of it by ``erased``. After a kill the next call goes on.
        """
        ...

    def erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Called before rejections are looked at that are to be retried: a text of each of these tables.

        It is another text once more was erased, or purged, of the table. Only of those where such an event could bring
        back what was erased: one of a batch that says ``never_applied``. ``Sink.apply`` raises ``Overtaken``, and
        applies nothing of a table, where the batch has another text of it. Of none where the marks of deletions stay.
        """
        return {}


def marks_of_rows(count: int, until_ms: int | None = None) -> list[Leftover]:
    """What so many marks of deletions are that a table keeps: their keys may have values of what led to the row."""
    if not count:
        return []
    return [Leftover(f"{count:,} mark{'s' * (count > 1)} of deleted rows, with their keys", True, until_ms)]


def check_erased(
    known: Mapping[TableName, str] | None, erased: Mapping[TableName, str], tables: Iterable[TableName]
) -> None:
    """Raise Overtaken where more was erased of one of these tables than a batch knows of (``Batch.erased``)."""
    if known is not None and any(erased.get(name, "") != known.get(name, "") for name in tables):
        raise Overtaken("rows were erased since it was looked which events are still to be applied")
