"""A dead letter: a rejected event and what is known of it, as a record of the dead-letter topic. Pure.

The record's key is ``[sink, generation, topic, event key, tag]``. Kafka has no compare-and-set, so the tag is part of
the key: closing a dead letter never closes a newer one of the same row, which another process may just have written.
The newest dead letter of a row counts. Closing it closes the older ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.model.event import Position
from cdc.model.tag import Tag

if TYPE_CHECKING:  # commands that only read dead letters don't load Arrow
    from jobs.executor.result import RejectedEvent

FORMAT: Final = 1
"""The version of the record's form. A record of another version is reported, with the way out, and stays."""

_FACTS: Final = {"partition": int, "offset": int, "tag": str, "reason": str, "rejected_at_ms": int}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter without the event's value. ``key`` is the event's, ``record_key`` the record's own.
    ``record_offset`` is its offset in the dead-letter topic. ``older_record_keys`` are those of the row's older dead
    letters, as far as known."""

    sink: str
    generation: int
    position: Position
    key: bytes
    tag: str
    reason: str
    rejected_at_ms: int
    record_key: bytes
    record_offset: int
    older_record_keys: tuple[bytes, ...] = ()

    @property
    def row(self) -> tuple[str, int, str, bytes]:
        """What all dead letters of a row have in common: sink, generation, topic and the event's key."""
        return self.sink, self.generation, self.position.topic, self.key

    @property
    def record_keys(self) -> list[bytes]:
        """The records to remove in order to close the rejection."""
        return [*self.older_record_keys, self.record_key]


@dataclass(frozen=True, slots=True)
class UnreadableDeadLetter:
    """A record of the dead-letter topic that this version can't read. ``sink`` is None if the key doesn't name it."""

    record_key: bytes
    record_offset: int
    sink: str | None
    why: str


def dead_letter_key(sink: str, generation: int, topic: str, key: bytes, tag: str) -> bytes:
    """The record's key; ``key`` is the event's."""
    return orjson.dumps([sink, generation, topic, orjson.Fragment(key), tag])


def dead_letter_value(sink: str, generation: int, event: "RejectedEvent", *, rejected_at_ms: int) -> bytes:
    """The record's value: the facts and the event itself, which compaction may remove from its own topic."""
    return orjson.dumps(
        {
            "format": FORMAT,
            "sink": sink,
            "generation": generation,
            "topic": event.position.topic,
            "partition": event.position.partition,
            "offset": event.position.offset,
            "key": orjson.Fragment(event.key),
            "tag": event.tag,
            "reason": event.reason,
            "rejected_at_ms": rejected_at_ms,
            "value": None if event.value is None else orjson.Fragment(event.value),
        }
    )


def read_dead_letter(record_key: bytes, value: bytes, record_offset: int) -> DeadLetter | UnreadableDeadLetter:
    """A record as a dead letter, or why it can't be read: another format version, or not one of Lockstep's."""
    names = _parsed(record_key)
    sink = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None

    def unreadable(why: str) -> UnreadableDeadLetter:
        return UnreadableDeadLetter(record_key, record_offset, sink, why)

    if not (isinstance(names, list) and len(names) == 5 and _are(names, str, int, str, dict)):
        return unreadable("its key isn't [sink, generation, topic, event key, tag]")
    facts = _parsed(value)
    if not isinstance(facts, dict):
        return unreadable("it isn't a JSON object")
    if facts.get("format") != FORMAT:
        return unreadable(f"its format isn't {FORMAT}, which this version of Lockstep reads")
    missing = [name for name, kind in _FACTS.items() if not _are([facts.get(name)], kind)]
    if not isinstance(facts.get("value", ""), dict | None):
        missing.append("value")
    if missing:
        return unreadable(f"it lacks {', '.join(missing)}")
    if not _can_be_written([names, facts]):
        return unreadable("it is nested deeper than any row")
    tag = facts["tag"]
    key = _event_key(record_key, names, tag)
    if key is None or not _is_tag(tag):
        return unreadable("its tag isn't that of its key")
    position = Position(names[2], facts["partition"], facts["offset"])
    return DeadLetter(
        names[0], names[1], position, key, tag, facts["reason"], facts["rejected_at_ms"], record_key, record_offset
    )


def event_of(record_key: bytes) -> tuple[str, bytes, str] | None:
    """The topic, key and tag of a record's event, by the record's key; None if the key doesn't name them."""
    names = _parsed(record_key)
    if not (isinstance(names, list) and len(names) == 5 and _are(names, str, int, str, dict, str)):
        return None
    key = _event_key(record_key, names, names[4])
    return None if key is None else (names[2], key, names[4])


def event_value(value: bytes) -> bytes | None:
    """The event's value, from the value of a readable dead letter; None for a tombstone."""
    event = orjson.loads(value)["value"]
    return None if event is None else orjson.dumps(event)


def newest_of_rows(dead_letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """The dead letter with the newest tag of each row, with its older ones, in the order in which rows come first."""
    rows: dict[tuple[str, int, str, bytes], list[DeadLetter]] = {}
    for dead_letter in dead_letters:
        rows.setdefault(dead_letter.row, []).append(dead_letter)
    newest = []
    for of_row in rows.values():
        *older, last = sorted(of_row, key=lambda dead_letter: dead_letter.tag)
        newest.append(replace(last, older_record_keys=tuple(dead_letter.record_key for dead_letter in older)))
    return newest


def _event_key(record_key: bytes, names: list[Any], tag: str) -> bytes | None:
    """The event's key in the record's, to the byte; None if it isn't in its place."""
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


def _can_be_written(value: Any) -> bool:
    """Whether it can be written again: values that can be read may be nested too deeply for that."""
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def _are(values: list[Any], *kinds: type) -> bool:
    """Whether these are the types of the first values. A bool is no int."""
    return all(type(value) is kind for value, kind in zip(values, kinds, strict=False))


def _is_tag(text: str) -> bool:
    try:
        Tag.parse(text)
    except ValueError:
        return False
    return True
