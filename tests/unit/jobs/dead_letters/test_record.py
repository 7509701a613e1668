"""A record of the dead-letter topic, whoever wrote it, as a dead letter."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from cdc.model.event import Position
from jobs.dead_letters.record import (
    DeadLetter,
    UnreadableDeadLetter,
    dead_letter_key,
    dead_letter_value,
    event_value,
    newest_of_rows,
    read_dead_letter,
)
from jobs.executor.result import RejectedEvent

TOPIC = "shop.public.orders"
TAG = f"{7:028x}"
# A name and a value that look like what surrounds them.
KEY = b'{"a,\\"]":"]","id":12345678901234567890}'
EVENT = RejectedEvent(
    Position(TOPIC, 2, 17), KEY, b'{"op":"u","after":{"n":"1.10","big":9007199254740993}}', TAG, "no room"
)
DEEP_KEY = b'{"id":' + b"[" * 600 + b"]" * 600 + b"}"
RECORD_KEY = dead_letter_key("search", 3, TOPIC, KEY, TAG)
VALUE = dead_letter_value("search", 3, EVENT, rejected_at_ms=5)
DEAD_LETTER = DeadLetter("search", 3, Position(TOPIC, 2, 17), KEY, TAG, "no room", 5, RECORD_KEY, 99)


def test_the_records_key_is_the_generation_the_row_and_the_tag() -> None:
    assert dead_letter_key(
        "search", 3, TOPIC, b'{"id":1}', TAG
    ) == b'["search",3,"shop.public.orders",{"id":1},"%b"]' % (TAG.encode())


def test_the_event_is_kept_to_the_byte() -> None:
    assert EVENT.value is not None
    assert VALUE.endswith(b'"value":' + EVENT.value + b"}")


def test_a_record_has_its_format_and_the_facts() -> None:
    facts = orjson.loads(VALUE)
    del facts["value"]
    assert facts == {
        "format": 1,
        "sink": "search",
        "generation": 3,
        "topic": "shop.public.orders",
        "partition": 2,
        "offset": 17,
        "key": {'a,"]': "]", "id": 12345678901234567890},
        "tag": TAG,
        "reason": "no room",
        "rejected_at_ms": 5,
    }


def test_a_dead_letter_is_read_as_it_was_written() -> None:
    assert read_dead_letter(RECORD_KEY, VALUE, 99) == DEAD_LETTER
    assert event_value(VALUE) == EVENT.value


def test_a_tombstone_has_no_value() -> None:
    event = RejectedEvent(Position(TOPIC, 2, 17), KEY, None, TAG, "no room")
    value = dead_letter_value("search", 3, event, rejected_at_ms=5)
    assert read_dead_letter(RECORD_KEY, value, 99) == DEAD_LETTER
    assert event_value(value) is None


@pytest.mark.parametrize("version", [2, "1", None])
def test_a_record_of_another_format_is_reported_with_its_sink(version: object) -> None:
    other = orjson.dumps({**orjson.loads(VALUE), "format": version})
    dead_letter = read_dead_letter(RECORD_KEY, other, 99)
    why = "its format isn't 1, which this version of Lockstep reads"
    assert dead_letter == UnreadableDeadLetter(RECORD_KEY, 99, "search", why)


def without(name: str) -> bytes:
    facts: dict[str, Any] = orjson.loads(VALUE)
    del facts[name]
    return orjson.dumps(facts)


@pytest.mark.parametrize("name", ["partition", "offset", "tag", "reason", "rejected_at_ms", "value"])
def test_a_record_that_lacks_something_is_reported_with_its_sink(name: str) -> None:
    dead_letter = read_dead_letter(RECORD_KEY, without(name), 99)
    assert dead_letter == UnreadableDeadLetter(RECORD_KEY, 99, "search", f"it lacks {name}")


@pytest.mark.parametrize(
    ("record_key", "value", "sink"),
    [
        (b"", VALUE, None),
        (b"\xff", VALUE, None),
        (KEY, VALUE, None),
        (b'["search",3,"t"]', VALUE, "search"),
        (b'["search",3,"t",{}]', VALUE, "search"),
        (b'["search",true,"t",{},"x"]', VALUE, "search"),
        (b'[null,3,"t",{},"x"]', VALUE, None),
        (RECORD_KEY, b"", "search"),
        (RECORD_KEY, b"[]", "search"),
        (RECORD_KEY, VALUE.replace(TAG.encode(), b"x" * 28), "search"),
        (dead_letter_key("search", 3, TOPIC, KEY, "f" * 28), VALUE, "search"),
        (RECORD_KEY + b" ", VALUE, "search"),
        (RECORD_KEY, VALUE.replace(b'"value":', b'"deep":' + b"[" * 600 + b"]" * 600 + b',"value":'), "search"),
        (dead_letter_key("search", 3, TOPIC, DEEP_KEY, TAG), VALUE, "search"),
    ],
)
def test_anything_else_is_no_dead_letter_and_no_error(record_key: bytes, value: bytes, sink: str | None) -> None:
    dead_letter = read_dead_letter(record_key, value, 99)
    assert isinstance(dead_letter, UnreadableDeadLetter)
    assert (dead_letter.sink, dead_letter.record_key) == (sink, record_key)
    assert dead_letter.why


def test_the_newest_dead_letter_of_a_row_counts_and_knows_the_older_ones() -> None:
    def dead_letter(key: bytes, tag: str) -> DeadLetter:
        return DeadLetter("search", 3, Position(TOPIC, 0, 0), key, tag, "no", 5, key + tag.encode(), 0)

    first, second, other = dead_letter(b"{}", "1"), dead_letter(b"{}", "2"), dead_letter(b'{"id":1}', "0")
    newest = newest_of_rows([second, other, first])
    assert newest == [replace(second, older_record_keys=(first.record_key,)), other]
    assert newest[0].record_keys == [first.record_key, second.record_key]
