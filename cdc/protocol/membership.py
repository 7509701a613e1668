"""What a table is and how it is published, as recorded at its copy, to notice what the stream doesn't show. Pure.

Values alone don't show a change that was changed back. So this stores numbers that PostgreSQL renews with each change:
oids, file numbers, and the transactions (``xmin``) that wrote certain catalogue rows. Maintenance writes none of those
rows: VACUUM keeps the transaction's number even when it freezes a row.
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
    """A fact that must stay the same, or the stream may lack changes of the table. Its text names the cause."""

    PUBLICATION = "the settings of the publication were changed, or it was made again"
    ENTRY = "the table's entry in the publication was changed, or made again"
    SCHEMA = "it was moved to another schema, or its schema's entry in the publication was made again"
    KEYS = "its primary key or a deferrable constraint came, went or was made again, so keys may have changed places"


@dataclass(frozen=True, slots=True)
class RecordedStorage:
    """A table's storage as recorded; ``attached`` is a digest of when the partitions were attached."""

    file: int
    toast: int
    columns: str
    attributes: int
    partitions: Mapping[str, str]
    attached: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a table's rows are, and when its columns were altered.

    ``file`` holds the rows; VACUUM FULL, TRUNCATE and a rewrite by ALTER TABLE change it. ``toast`` is the oid of the
    table of its large values, 0 for none; of those three, only the rewrite renews it. ``columns`` is a digest of when
    its columns were last altered, ``attributes`` the greatest column number ever used. ``partitions`` maps the oid of
    each partition, at any depth, to its file, ``attached`` to the transaction that attached it. Those in ``born`` were
    created as partitions, and not emptied, rewritten or attached again since: all the rows they ever had are in the
    stream. ``can_be_unlogged``: the table is published without an entry of its own.
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
        """Why rows may have changed without an event since then; empty if they haven't."""
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
        """The partitions that came since, and may have rows that aren't in the stream: oid -> form, a text that changes
        once the partition is emptied, rewritten or attached again."""
        return {
            int(oid): f"{file} {self.attached.get(oid)}"
            for oid, file in self.partitions.items()
            if oid not in recorded.partitions and oid not in self.born
        }

    def _attached(self, partitions: Collection[str]) -> str:
        return _digest([[partition, self.attached.get(partition)] for partition in sorted(partitions)])


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """``whole``: why any row may have changed without an event; empty if none has. ``altered``: columns were altered,
    without changing a row. ``partitions``: oids of partitions that came, perhaps with rows."""

    whole: str
    altered: bool = False
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Membership:
    """One table's membership. ``composites`` maps each composite type of its columns to a digest of the attributes.
    ``enums`` maps each enum to its labels: their oids in order, each with the transaction that wrote it. Keys of both
    are oids, and both include types nested in types."""

    oid: int
    facts: Mapping[Fact, str | None]
    storage: Storage
    composites: Mapping[str, str]
    enums: Mapping[str, Sequence[tuple[int, str]]]
    uniques: Mapping[str, Sequence[int]]
    """Column names, as in ``key_text`` -> the constraints and indexes that keep them unique together."""
    altered: Collection[str] = ()
    """Types that were altered after the column that uses them came."""

    def to_text(self) -> str:
        """A text for ``since`` to compare with later."""
        return json.dumps(
            {
                "oid": self.oid,
                "facts": {fact.name: text for fact, text in self.facts.items()},
                "storage": self.storage.to_json(),
                "uniques": dict(self.uniques),
                "composites": dict(self.composites),
                # Labels are only ever added, with greater oids: the newest one shows which existed.
                "enums": [[oid, labels[-1][0], _digest(labels)] for oid, labels in self.enums.items() if labels],
            }
        )

    def since(self, text: str, key: Collection[str] = ()) -> MembershipChange:
        """What happened since ``text`` was recorded. ``key`` are the columns of a configured key."""
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
        """What happened to partitions that came later and have rows on the topic."""
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
        # Types that left with a column change no row. Types that came with one don't either, if they are as they came.
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
    """A membership parsed from ``to_text``. ``enums`` are (oid, the newest label's oid, a digest of the labels).

    ``left`` says why changes may have been missing at a later look; empty if none were. ``later`` maps oids of
    partitions that came after that, and have rows on the topic, to the form in which a copy read them completely. The
    form is empty if only the stream is known to have had their rows.
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
        """None if the text isn't of this form: another version, or another program, may have written it."""
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
    """The text marked with why changes are missing now: once they come again, anything may have changed meanwhile."""
    return json.dumps(json.loads(text) | {"left": why}) if Recorded.from_text(text) is not None else text


def streamed(text: str, partition: int, form: str = "") -> str:
    """The text with a partition added whose rows are in the stream, or were read by a copy in this ``form``. Unchanged
    if the partition is known already."""
    recorded = Recorded.from_text(text)
    if recorded is None or str(partition) in recorded.storage.partitions or str(partition) in recorded.later:
        return text
    return json.dumps(json.loads(text) | {"later": {**recorded.later, str(partition): form}})


def read(text: str, storage: Storage) -> str:
    """The text after a copy that began earlier has read rows of the table as it is now."""
    recorded = Recorded.from_text(text)
    for partition, form in storage.added_since(recorded.storage).items() if recorded is not None else ():
        text = streamed(text, partition, form)
    return text


def key_text(columns: Collection[str]) -> str:
    """Column names in one text, whatever their order."""
    return json.dumps(sorted(columns), ensure_ascii=False)


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
