"""What rows from before a column was added have in it, by what the catalogue says of the relations they lie in. Pure.

PostgreSQL keeps the value with the column, where it needn't rewrite the rows. A partitioned table has no rows, so its
partitions have it. A rewrite puts the value into each row, and forgets it: VACUUM FULL and CLUSTER do that as well. So
where nothing is kept, the rows have none only if they weren't rewritten.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cdc.protocol.membership import RecordedStorage


@dataclass(frozen=True, slots=True)
class Holder:
    """A relation that has rows, or had some. ``number`` is the column's in it, 0 where it hasn't the column.

    ``kept`` is the value that rows from before have, in PostgreSQL's own form, where it ``keeps`` one.
    ``oldest_kept`` is the least number of a column of which it keeps one, None where there is none.
    """

    oid: int
    file: str
    number: int
    keeps: bool
    kept: str | None
    oldest_kept: int | None


@dataclass(frozen=True, slots=True)
class Default:
    """``text`` is PostgreSQL's own form. ``is_known`` is False where rows may have values of their own."""

    text: str | None
    is_known: bool


def value_before(relation: int, number: int, holders: Iterable[Holder], recorded: RecordedStorage | None) -> Default:
    """The value of column ``number`` of a relation in rows that were there at its copy, as it was ``recorded``.

    Without that the table is copied anyway. A column that is no younger was there, and wasn't sent: a stored generated
    one, before its expression was dropped, or one that a column list left out.
    """
    if recorded is None:
        return Default(None, is_known=True)
    if number <= recorded.attributes:
        return Default(None, is_known=False)
    values = set()
    for holder in holders:
        file = str(recorded.file) if holder.oid == relation else recorded.partitions.get(str(holder.oid))
        if file is None:
            continue  # it came later, and so did its rows
        is_rewritten = file != holder.file and not _is_younger(holder)
        if not holder.number or (not holder.keeps and is_rewritten):
            return Default(None, is_known=False)
        values.add(holder.kept if holder.keeps else None)
    if len(values) > 1:
        return Default(None, is_known=False)
    return Default(next(iter(values), None), is_known=True)


def _is_younger(holder: Holder) -> bool:
    """Whether nothing was rewritten since the column came: a rewrite would have taken what an older one keeps."""
    return holder.oldest_kept is not None and holder.oldest_kept < holder.number
