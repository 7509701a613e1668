"""What a dead letter holds, and what a job knows of its own."""

from dataclasses import replace

import orjson

from cdc.model.event import Position
from jobs.dead_letters.record import UnreadableDeadLetter
from jobs.dead_letters.store import KnownLetters, dead_letter_value, unreadable_report
from jobs.executor.result import RejectedEvent
from jobs.report import UnreadableDeadLetters

EVENT = RejectedEvent(
    position=Position("shop.public.orders", 2, 17),
    key=b'{"id":12345678901234567890}',
    value=b'{"op":"u","tag":"0","after":{"price":1.10}}',
    tag="0" * 28,
    reason="mapper_parsing_exception",
)
ROW = (EVENT.position.topic, EVENT.key)
OTHER = (EVENT.position.topic, b'{"id":2}')
TAGS = [f"{number:028x}" for number in range(4)]


def test_the_event_is_kept_to_the_byte() -> None:
    value = dead_letter_value("search", 3, EVENT, rejected_at_ms=5)
    assert EVENT.value is not None
    assert value.endswith(b'"value":' + EVENT.value + b"}")


def test_the_facts_are_there() -> None:
    facts = orjson.loads(dead_letter_value("search", 3, EVENT, rejected_at_ms=5))
    del facts["value"]
    assert facts == {
        "format": 1,
        "sink": "search",
        "generation": 3,
        "topic": "shop.public.orders",
        "partition": 2,
        "offset": 17,
        "key": {"id": 12345678901234567890},
        "tag": "0" * 28,
        "reason": "mapper_parsing_exception",
        "rejected_at_ms": 5,
    }


def test_a_tombstone_has_no_value() -> None:
    event = RejectedEvent(Position("t", 0, 1), b"{}", None, "0" * 28, "no")
    assert orjson.loads(dead_letter_value("search", 1, event, rejected_at_ms=5))["value"] is None


def known(*letters: tuple[tuple[str, bytes], int]) -> KnownLetters:
    found = KnownLetters()
    for row, number in letters:
        found.add(row, TAGS[number], f"{row[1].decode()} {number}".encode(), f"reason {number}")
    return found


def test_of_a_row_with_several_letters_the_newest_counts() -> None:
    assert known((ROW, 2), (ROW, 1), (OTHER, 3)).newest() == {ROW: TAGS[2], OTHER: TAGS[3]}


def test_letters_that_are_taken_are_known_no_more() -> None:
    letters = known((ROW, 1), (ROW, 2), (OTHER, 3))
    assert letters.take(ROW) == [ROW[1] + b" 1", ROW[1] + b" 2"]
    assert letters.take(ROW) == []
    assert letters.newest() == {OTHER: TAGS[3]}


def test_only_older_letters_are_replaced() -> None:
    letters = known((ROW, 1), (ROW, 2), (ROW, 3))
    assert letters.take(ROW, older_than=TAGS[2]) == [ROW[1] + b" 1"]
    assert letters.newest() == {ROW: TAGS[3]}


def test_the_reasons_are_those_of_what_would_be_open() -> None:
    letters = known((ROW, 1), (OTHER, 2))
    again = replace(EVENT, tag=TAGS[3], reason="again")
    elsewhere = replace(EVENT, key=b'{"id":3}', reason="elsewhere")
    assert letters.reasons_with([again, elsewhere], [OTHER]) == ["again", "elsewhere"]
    # Void in an older version and rejected in a newer one.
    assert letters.reasons_with([again], [ROW]) == ["reason 2", "again"]


def test_a_job_reports_the_dead_letters_that_it_cannot_read() -> None:
    records = [
        UnreadableDeadLetter(b"k", 7, "cache", "its format isn't 1"),
        UnreadableDeadLetter(b"l", 9, "search", "it lacks tag"),
        UnreadableDeadLetter(b"m", 12, None, "it isn't a JSON object"),
    ]
    # A record that names no sink may be this one's.
    expected = UnreadableDeadLetters("search", 3, "shop.__dead_letters", 2, 9, "it lacks tag")
    assert unreadable_report("search", 3, "shop.__dead_letters", records) == expected
    assert unreadable_report("search", 3, "shop.__dead_letters", records[:1]) is None
