"""A dead letter: a rejected event and what is known of it, as a record of the dead-letter topic. Pure.

The record's key is ``[sink, generation, topic, event key, tag]``. The tag is part of it because Kafka has no
compare-and-set. Who closes a dead letter closes the rejection that it knows of, never a newer one of the same row that
another process has just written. Of a row with several dead letters the newest counts; the others are void with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.model.event import Position
from cdc.model.tag import Tag

FORMAT: Final = 1
"""The version of the record's form. A record of any other is told of, with the way out, and stays where it is."""

_FACTS: Final = {"partition": int, "offset": int, "tag": str, "reason": str, "rejected_at_ms": int}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What a dead letter says, without the event's value.

    ``key`` is the event's, to the byte; ``record_key`` is the dead letter's own.
    """

    sink: str
    generation: int
    position: Position
    key: bytes
    tag: str
    reason: str
    rejected_at_ms: int
    record_key: bytes
    place: int
    """The letter's offset in the dead-letter topic."""

    @property
    def row(self) -> tuple[str, int, str, bytes]:
        return self.sink, self.generation, self.position.topic, self.key


@dataclass(frozen=True, slots=True)
class UnreadableDeadLetter:
    """A record of the dead-letter topic that this version can't read. ``sink`` is None where not even that is known."""

    record_key: bytes
    place: int
    sink: str | None
    why: str


def dead_letter_key(sink: str, generation: int, topic: str, key: bytes, tag: str) -> bytes:
    """The record's key; ``key`` is the event's."""
    return orjson.dumps([sink, generation, topic, orjson.Fragment(key), tag])


def read_dead_letter(record_key: bytes, value: bytes, place: int) -> DeadLetter | UnreadableDeadLetter:
    """A record as a dead letter, or why it can't be read: another format version, or not one of Lockstep's."""
    names = _parsed(record_key)
    sink = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None

    def unreadable(why: str) -> UnreadableDeadLetter:
        return UnreadableDeadLetter(record_key, place, sink, why)

    if not (isinstance(names, list) and len(names) == 5 and _are(names, str, int, str, dict)):
        return unreadable("its key isn't [sink, generation, topic, event key, tag]")
    facts = _parsed(value)
    if not isinstance(facts, dict):
        return unreadable("it isn't a JSON object")
    if facts.get("format") != FORMAT:
        return unreadable(f"its format isn't {FORMAT}, the one that this version of Lockstep reads")
    missing = [name for name, kind in _FACTS.items() if not _are([facts.get(name)], kind)]
    if not isinstance(facts.get("value", ""), dict | None):
        missing.append("value")
    if missing:
        return unreadable(f"it lacks {', '.join(missing)}")
    tag = facts["tag"]
    key = _event_key(record_key, names, tag)
    if key is None or not _is_tag(tag):
        return unreadable("its tag isn't that of its key")
    position = Position(names[2], facts["partition"], facts["offset"])
    return DeadLetter(
        names[0], names[1], position, key, tag, facts["reason"], facts["rejected_at_ms"], record_key, place
    )


def event_value(value: bytes) -> bytes | None:
    """The event's value in a readable letter's; None for a tombstone."""
    event = orjson.loads(value)["value"]
    return None if event is None else orjson.dumps(event)


def by_row(letters: Iterable[DeadLetter]) -> list[list[DeadLetter]]:
    """The letters of each row, oldest tag first, in the order in which rows come first."""
    rows: dict[tuple[str, int, str, bytes], list[DeadLetter]] = {}
    for letter in letters:
        rows.setdefault(letter.row, []).append(letter)
    return [sorted(of_row, key=lambda letter: letter.tag) for of_row in rows.values()]


def _event_key(record_key: bytes, names: list[Any], tag: str) -> bytes | None:
    """The event's key in a letter's, to the byte; None when it isn't where it should be."""
    start = orjson.dumps(names[:3])[:-1] + b","
    end = b"," + orjson.dumps(tag) + b"]"
    if not (record_key.startswith(start) and record_key.endswith(end)):
        return None
    return record_key[len(start) : -len(end)]


def _parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _are(values: list[Any], *kinds: type) -> bool:
    """Whether these are the types of the first values. A bool is no int."""
    return all(type(value) is kind for value, kind in zip(values, kinds, strict=False))


def _is_tag(text: str) -> bool:
    try:
        Tag.parse(text)
    except ValueError:
        return False
    return True
