"""The value of an added column in rows from before, from what the catalogue says of the relations with the rows. Pure.

PostgreSQL stores the value with the column if it needn't rewrite the rows. For a partitioned table, which has no rows,
its partitions store it. A rewrite, also by VACUUM FULL or CLUSTER, puts the value into each row and deletes the stored
one. So a missing stored value means "no value" only if the rows weren't rewritten.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cdc.protocol.membership import RecordedStorage


@dataclass(frozen=True, slots=True)
class Holder:
    """A relation that has or had rows. ``number`` is the column's number in it, 0 if it lacks the column. If it
    ``keeps`` a value for older rows, ``kept`` is that value in PostgreSQL's form. ``oldest_kept`` is the least number
    of any column for which it stores one, None if there is none."""

    oid: int
    file: str
    number: int
    keeps: bool
    kept: str | None
    oldest_kept: int | None


@dataclass(frozen=True, slots=True)
class Default:
    """``text`` is in PostgreSQL's form. ``is_known`` is False if rows may have different values."""

    text: str | None
    is_known: bool


def value_before(relation: int, number: int, holders: Iterable[Holder], recorded: RecordedStorage | None) -> Default:
    """The value of column ``number`` in rows that existed at the relation's copy, when its storage was ``recorded``.
    Without ``recorded`` the table is copied anyway. A column that isn't newer than the record existed at the copy, but
    wasn't sent: it was a stored generated column until its expression was dropped, or a column list left it out."""
    if recorded is None:
        return Default(None, is_known=True)
    if number <= recorded.attributes:
        return Default(None, is_known=False)
    values = set()
    for holder in holders:
        file = str(recorded.file) if holder.oid == relation else recorded.partitions.get(str(holder.oid))
        if file is None:
            continue  # the partition and its rows came later
        is_rewritten = file != holder.file and not _is_younger(holder)
        if not holder.number or (not holder.keeps and is_rewritten):
            return Default(None, is_known=False)
        values.add(holder.kept if holder.keeps else None)
    if len(values) > 1:
        return Default(None, is_known=False)
    return Default(next(iter(values), None), is_known=True)


def _is_younger(holder: Holder) -> bool:
    """Whether the rows weren't rewritten since the column came: a rewrite would have deleted the older stored value."""
    return holder.oldest_kept is not None and holder.oldest_kept < holder.number
