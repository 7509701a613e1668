"""By what a table of a warehouse is told from another one that takes its place (pure)."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sinks.warehouse.dialect import Storage


class Noted(NamedTuple):
    """What a relation was stored in, and whether it had rows."""

    storage: Storage
    has_rows: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """What a table and its history were stored in. ``bookkeeping`` is the relation of the bookkeeping beside them."""

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
    """How it is now. ``storages`` are those of relations that are there, ``purged`` those from which rows have gone.

    ``keeps_rows`` says of a relation whether it has a row that was there before its file was.
    """

    bookkeeping: int
    storages: Mapping[str, Storage]
    purged: Collection[str]
    is_empty: Callable[[str], bool]
    keeps_rows: Callable[[str], bool]


def what_became(before: Identity | None, relations: Iterable[str], now: Now) -> str | None:
    """What has become of a table that was known like this; None where it is the same one.

    ``relations`` are those that it has by the bookkeeping, none where that doesn't know it any more. VACUUM FULL and
    CLUSTER store a table in another file, in which rows stay as old as they were. So does TRUNCATE: that leaves no row,
    and no deletion takes the last one but a purge. Rows that are loaded after it are no older than the file; neither
    are those that ALTER TABLE has written anew, and nobody can tell the two apart. In a copy of a whole database all
    have other numbers, and the bookkeeping is as old as the rows.
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
