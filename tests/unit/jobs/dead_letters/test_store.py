"""What a job knows of its own dead letters, and what it reports of those that it can't read."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from cdc.model.errors import Unavailable
from cdc.model.event import Position
from jobs.dead_letters.record import UnreadableDeadLetter
from jobs.dead_letters.store import DeadLetters, KnownDeadLetters, unreadable_report
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


def known(*dead_letters: tuple[tuple[str, bytes], int]) -> KnownDeadLetters:
    known_now = KnownDeadLetters()
    for row, number in dead_letters:
        known_now.add(row, TAGS[number], f"{row[1].decode()} {number}".encode(), f"reason {number}")
    return known_now


def test_of_a_row_with_several_dead_letters_the_newest_counts() -> None:
    assert known((ROW, 2), (ROW, 1), (OTHER, 3)).newest() == {ROW: TAGS[2], OTHER: TAGS[3]}


def test_dead_letters_that_are_forgotten_are_known_no_more() -> None:
    job = known((ROW, 1), (ROW, 2), (OTHER, 3))
    assert job.record_keys(ROW) == [ROW[1] + b" 1", ROW[1] + b" 2"]
    job.forget(ROW)
    assert job.record_keys(ROW) == []
    assert job.newest() == {OTHER: TAGS[3]}


def test_only_older_dead_letters_are_replaced() -> None:
    job = known((ROW, 1), (ROW, 2), (ROW, 3))
    assert job.record_keys(ROW, older_than=TAGS[2]) == [ROW[1] + b" 1"]
    job.forget(ROW, older_than=TAGS[2])
    assert job.record_keys(ROW) == [ROW[1] + b" 2", ROW[1] + b" 3"]


class _Brokers:
    """The topic, whose brokers don't answer when a record is to be removed for the first time."""

    name = "shop.__dead_letters"

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.is_silent = True

    def send(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in list(records):
            if value is None and self.is_silent:
                self.is_silent = False
                raise Unavailable("Kafka doesn't answer")
            self.records |= {} if value is None else {key: value}
            if value is None:
                self.records.pop(key, None)


@pytest.mark.parametrize("newer", [False, True], ids=["applied", "rejected again"])
def test_what_could_not_be_closed_is_closed_by_the_next_try(newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = _Brokers()
    monkeypatch.setattr("jobs.dead_letters.store.DeadLetterTopic", lambda *_: brokers)
    job = DeadLetters({}, "shop", sink="search", generation=1)
    job.keep([EVENT], [], rejected_at_ms=1, max_open=10)
    again = [replace(EVENT, tag=TAGS[3])] if newer else []
    void = [] if newer else [ROW]
    with pytest.raises(Unavailable):
        job.keep(again, void, rejected_at_ms=2, max_open=10)
    job.keep(again, void, rejected_at_ms=2, max_open=10)
    assert len(brokers.records) == len(again)


def test_the_reasons_are_those_of_what_would_be_open() -> None:
    job = known((ROW, 1), (OTHER, 2))
    again = replace(EVENT, tag=TAGS[3], reason="again")
    elsewhere = replace(EVENT, key=b'{"id":3}', reason="elsewhere")
    assert job.open_with([again, elsewhere], [OTHER]) == ["again", "elsewhere"]
    # Void in an older version and rejected in a newer one.
    assert job.open_with([again], [ROW]) == ["reason 2", "again"]


def test_what_is_rejected_again_is_no_new_rejection() -> None:
    job = known((ROW, 1))
    elsewhere = replace(EVENT, position=Position("shop.public.items", 0, 5))
    assert job.new_topics([EVENT, elsewhere]) == ["shop.public.items"]
    assert job.new_topics([EVENT]) == [EVENT.position.topic]


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
