"""The identity of a warehouse's table: recognises another table that took its place (pure)."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sinks.warehouse.dialect import Storage


class Noted(NamedTuple):
    storage: Storage
    has_rows: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a table and its history were stored. ``bookkeeping`` is the relation of the bookkeeping beside them."""

    bookkeeping: int
    relations: Mapping[str, Noted]

    def to_json(self) -> str:
        relations = {name: [*noted.storage, noted.has_rows] for name, noted in self.relations.items()}
        return json.dumps({"bookkeeping": self.bookkeeping, "relations": relations})

    @classmethod
    def from_json(cls, text: str) -> Self:
        value: dict[str, Any] = json.loads(text)
        relations = {
            name: Noted(Storage(*numbers), has_rows) for name, (*numbers, has_rows) in value["relations"].items()
        }
        return cls(value["bookkeeping"], relations)


@dataclass(frozen=True, slots=True)
class Now:
    bookkeeping: int
    storages: Mapping[str, Storage]
    """Of the relations that exist."""
    purged: Collection[str]
    """Relations from which rows were purged."""
    is_empty: Callable[[str], bool]
    keeps_rows: Callable[[str], bool]
    """Whether a relation has a row that is older than its file."""


def what_became(before: Identity | None, relations: Iterable[str], now: Now) -> str | None:
    """What has become of a table with this known identity; None if it is the same one.

    ``relations`` are those of the table in the bookkeeping; empty if the bookkeeping no longer knows it.

    * VACUUM FULL and CLUSTER store a table in another file. Its rows stay as old as they were.
    * TRUNCATE also changes the file, and leaves no row. Otherwise only a purge takes the last row: a deletion leaves a
      mark.
    * Rows loaded after a TRUNCATE are no older than the file. Neither are rows that ALTER TABLE has rewritten; the two
      cases can't be told apart.
    * In a copy of a whole database all numbers differ, and the bookkeeping is as old as the rows.
    """
    if not relations:
        return "the bookkeeping doesn't know it any more"
    for relation in relations:
        if relation not in now.storages:
            return f"{relation} was dropped"
    if before is None or before.bookkeeping != now.bookkeeping:
        return None
    for relation, noted in before.relations.items():
        storage = now.storages.get(relation, noted.storage)
        if storage.relation != noted.storage.relation:
            return f"{relation} was dropped, and another one of its name is there"
        is_due = noted.has_rows or relation not in now.purged
        if storage.file == noted.storage.file or not is_due:
            continue
        if now.is_empty(relation):
            return f"{relation} was emptied"
        if not now.keeps_rows(relation):
            return f"{relation} was emptied and filled again, or ALTER TABLE has written all of its rows anew"
    return None
