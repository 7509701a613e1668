"""What a table is and how it is published, as recorded at its copy: to notice what the stream doesn't tell of it. Pure.

Values alone don't show what was changed and changed back. So this holds numbers that PostgreSQL gives out anew with
each change: oids, the numbers of files, and the transactions (``xmin``) that wrote certain rows of the catalogue.
Maintenance writes none of those rows: VACUUM keeps the number of the transaction also where it freezes a row.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from cdc.protocol.partition_files import packed, unpacked


class Fact(StrEnum):
    """What is as it was, or else changes of the table may be missing from the stream. Its text is the cause, told."""

    PUBLICATION = "the settings of the publication were changed, or it was made again"
    ENTRY = "the table's entry in the publication was changed, or made again"
    SCHEMA = "it was moved to another schema, or its schema's entry in the publication was made again"
    KEYS = "its primary key or a deferrable constraint came, went or was made again, so keys may have changed places"


@dataclass(frozen=True, slots=True)
class RecordedStorage:
    """A table's storage as it was recorded; ``attached`` is a digest of when the partitions were."""

    file: int
    toast: int
    columns: str
    attributes: int
    partitions: Mapping[str, str]
    attached: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a table's rows are, and when its columns were altered.

    ``file`` is that of the rows: VACUUM FULL and TRUNCATE change it as well as a rewrite by ALTER TABLE. ``toast`` is
    the oid of the table of its large values, 0 for none: of those three, only the rewrite makes it anew. ``columns`` is
    a digest of when its columns were last altered, and ``attributes`` the greatest number that one of them ever had.
    ``partitions`` maps the oid of each one, at any depth, to its file, and ``attached`` to the transaction that made it
    one. Those in ``born`` were created as partitions, and not emptied, rewritten or attached again since: all the rows
    that they ever had are in the stream. A table that ``can_be_unlogged`` is published without an entry of its own.
    """

    file: int
    toast: int
    columns: str
    attributes: int
    partitions: Mapping[str, str]
    attached: Mapping[str, str]
    born: frozenset[str]
    can_be_unlogged: bool

    def to_json(self) -> list[Any]:
        partitions = dict(self.partitions)
        attached = self._attached(partitions)
        return [self.file, self.toast, self.columns, self.attributes, packed(partitions), attached]

    def rewritten_since(self, recorded: RecordedStorage) -> str:
        """Why rows may have changed without an event since then; empty when they haven't."""
        if self.file != recorded.file and (self.toast != recorded.toast or not self.toast):
            if self.columns != recorded.columns:
                return "an ALTER TABLE may have rewritten its rows"
            if self.can_be_unlogged:
                return "it may have been UNLOGGED for a while"
        if any(self.partitions.get(partition) != file for partition, file in recorded.partitions.items()):
            return "a partition went, was emptied or was rewritten"
        if self._attached(recorded.partitions) != recorded.attached:
            return "a partition was detached for a while"
        return ""

    def added_since(self, recorded: RecordedStorage) -> dict[int, str]:
        """The partitions that came, and may have rows that didn't come by the stream: oid -> form, which is another one
        once the partition was emptied, rewritten or attached again.
        """
        return {
            int(oid): f"{file} {self.attached.get(oid)}"
            for oid, file in self.partitions.items()
            if oid not in recorded.partitions and oid not in self.born
        }

    def _attached(self, partitions: Collection[str]) -> str:
        """Of these partitions."""
        return _digest([[partition, self.attached.get(partition)] for partition in sorted(partitions)])


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """``whole``: why any row may have changed without an event; empty when none has. ``altered``: columns were, and no
    row changed by that. ``partitions``: oids of those that came, perhaps with rows of before."""

    whole: str
    altered: bool = False
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Membership:
    """One table's. ``composites`` maps each composite type of its columns to a digest of the attributes. ``enums`` maps
    each enum to its labels: oids, in their order, with the transaction that wrote them. Both go by oid, and hold the
    types inside of types."""

    oid: int
    facts: Mapping[Fact, str | None]
    storage: Storage
    composites: Mapping[str, str]
    enums: Mapping[str, Sequence[tuple[int, str]]]
    uniques: Mapping[str, Sequence[int]]
    """Column names, as ``key_text`` has them -> the constraints and indexes that keep them unique together."""
    altered: Collection[str] = ()
    """Types that were altered after the column came that has them."""

    def to_text(self) -> str:
        """For comparison with another one, later."""
        return json.dumps(
            {
                "oid": self.oid,
                "facts": {fact.name: text for fact, text in self.facts.items()},
                "storage": self.storage.to_json(),
                "uniques": dict(self.uniques),
                "composites": dict(self.composites),
                # Labels are only ever added, with greater oids: the newest one says which of them were there.
                "enums": [[oid, labels[-1][0], _digest(labels)] for oid, labels in self.enums.items() if labels],
            }
        )

    def since(self, text: str, key: Collection[str] = ()) -> MembershipChange:
        """What happened since the one that ``text`` holds. ``key`` are the columns of a configured key."""
        recorded = Recorded.from_text(text)
        if recorded is None:
            return MembershipChange("nothing that can be read was recorded of it")
        return MembershipChange(
            self._whole(recorded)
            or self.storage.rewritten_since(recorded.storage)
            or self._passed(recorded)
            or self._was_not_unique(recorded, key),
            altered=self.storage.columns != recorded.storage.columns,
            partitions=tuple(self.storage.added_since(recorded.storage)),
        )

    def _passed(self, recorded: "Recorded") -> str:
        """What has become of partitions that came later, and of which the topic has rows."""
        if not self.storage.partitions.keys() >= recorded.later.keys():
            return "a partition came, was written and went"
        added = self.storage.added_since(recorded.storage)
        if any(form != added[int(oid)] for oid, form in recorded.later.items() if oid not in self.storage.born):
            return "a partition that came and was written was attached, emptied or rewritten"
        return ""

    def _was_not_unique(self, recorded: "Recorded", key: Collection[str]) -> str:
        columns = key_text(key)
        before = recorded.uniques.get(columns, ())
        if not before or not set(before).isdisjoint(self.uniques.get(columns, ())):
            return ""
        return "the index of its configured key was made again, so rows may have shared a key"

    def _whole(self, recorded: "Recorded") -> str:
        if recorded.oid != self.oid:
            return "another table has its name now"
        if recorded.left:
            return recorded.left
        for fact, text in self.facts.items():
            if recorded.facts.get(fact.name) != text:
                return fact.value
        # Types that went with a column change no row, and those that came with one don't if they are as they came.
        if not {*recorded.composites, *(oid for oid, _, _ in recorded.enums)}.issuperset(self.altered):
            return "a type that came with a column was altered since"
        if any(self.composites.get(oid, digest) != digest for oid, digest in recorded.composites.items()):
            return "a composite type of its columns has other attributes"
        for oid, newest, digest in recorded.enums:
            labels = self.enums.get(oid)
            if labels is not None and _digest([label for label in labels if label[0] <= newest]) != digest:
                return "a label of an enum of its columns was renamed"
        return ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A membership out of what ``to_text`` gave. ``enums`` are (oid, the newest label's oid, a digest of the labels).

    ``left`` says why changes may have been missing at some look after that; empty when they weren't. ``later`` are oids
    of partitions that came after that, and of which the topic has rows. Each has its form where a copy has read it,
    which is all that it had then. It is empty where only the stream is known to have had rows.
    """

    oid: int
    facts: Mapping[str, str | None]
    storage: RecordedStorage
    composites: Mapping[str, str]
    enums: Sequence[tuple[str, int, str]]
    left: str
    later: Mapping[str, str]
    uniques: Mapping[str, Sequence[int]]

    @classmethod
    def from_text(cls, text: str) -> "Recorded | None":
        """None where it isn't of this form: another version, or somebody else, may have written it."""
        return _recorded(text)


@lru_cache(maxsize=1024)
def _recorded(text: str) -> Recorded | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match parsed:
        case {
            "oid": int(oid),
            "facts": dict(facts),
            "storage": [int(file), int(toast), str(columns), int(attributes), str(runs), str(attached)],
            "uniques": dict(uniques),
            "composites": dict(composites),
            "enums": list(enums),
        } if all(isinstance(enum, list) and list(map(type, enum)) == [str, int, str] for enum in enums):
            try:
                partitions = unpacked(runs)
            except ValueError:
                return None
            storage = RecordedStorage(file, toast, columns, attributes, partitions, attached)
            labels = [tuple(enum) for enum in enums]
            later = (
                str(parsed.get("left", "")),
                {str(key): str(form) for key, form in parsed.get("later", {}).items()},
            )
            return Recorded(oid, facts, storage, composites, labels, *later, uniques)
    return None


def left(text: str, why: str = "it wasn't published for a while") -> str:
    """The same for a table whose changes don't come now: when they do again, anything may have changed meanwhile."""
    return json.dumps(json.loads(text) | {"left": why}) if Recorded.from_text(text) is not None else text


def streamed(text: str, partition: int, form: str = "") -> str:
    """The same where the stream has rows of this partition, or a copy that has read it in this form; as it was, if that
    is known of it.
    """
    recorded = Recorded.from_text(text)
    if recorded is None or str(partition) in recorded.storage.partitions or str(partition) in recorded.later:
        return text
    return json.dumps(json.loads(text) | {"later": {**recorded.later, str(partition): form}})


def read(text: str, storage: Storage) -> str:
    """The same where a copy that began before has rows of what the table is now."""
    recorded = Recorded.from_text(text)
    for partition, form in storage.added_since(recorded.storage).items() if recorded is not None else ():
        text = streamed(text, partition, form)
    return text


def key_text(columns: Collection[str]) -> str:
    """Column names in one text, whatever their order."""
    return json.dumps(sorted(columns), ensure_ascii=False)


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
