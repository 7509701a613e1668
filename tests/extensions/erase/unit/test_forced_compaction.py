"""extensions.erase.forced_compaction: what is remembered of a topic; compaction itself is in tests/live"""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.kafka.control_topics import StoredRecord
from cdc.kafka.settings import TopicSettings
from cdc.model.errors import LockstepError
from extensions.erase.forced_compaction import ForcedCompaction, Mark, Pass, TopicRecord

REMEMBERED = TopicRecord(
    {"segment.ms": "5", "min.cleanable.dirty.ratio": None}, (Pass(7, {0: 3, 2: 9}), Pass(8, {0: 4}, 6))
)


MARKED = TopicRecord(marks=(Mark(5, {0: 3, 1: 8}), Mark(7, {0: 9}), Mark(9, {0: 12, 1: 20})))


@pytest.mark.parametrize("remembered", [TopicRecord(), REMEMBERED, MARKED])
def test_what_is_remembered_is_read_back(remembered: TopicRecord) -> None:
    assert TopicRecord.from_record(StoredRecord(remembered.to_bytes(), "it")) == remembered


@pytest.mark.parametrize("value", [b"", b"[]", b'{"format":2}', b'{"format":1,"settings":{}}', b'{"format":1}'])
def test_a_record_of_another_form_is_refused_with_its_place(value: bytes) -> None:
    with pytest.raises(LockstepError, match="the record at offset 3"):
        TopicRecord.from_record(StoredRecord(value, "the record at offset 3"))


def test_a_record_was_there_at_the_first_compaction_that_got_beyond_it() -> None:
    remembered = TopicRecord(passes=(Pass(5, {0: 3}), Pass(7, {0: 9, 1: 4}), Pass(9, {0: 12})))
    assert remembered.compacted_since_ms(0, 2) == 5
    assert remembered.compacted_since_ms(0, 3) == 7
    assert remembered.compacted_since_ms(1, 4) is None


def test_the_newest_mark_that_is_old_enough_counts_in_each_partition() -> None:
    assert MARKED.ripe_marks([0, 1], before_ms=8) == {0: 9, 1: 8}
    assert MARKED.ripe_marks([1, 2], before_ms=100) == {1: 20}
    assert MARKED.ripe_marks([0], before_ms=5) == {}


def test_of_the_marks_that_are_old_enough_one_is_kept_for_each_partition_and_all_younger_ones() -> None:
    kept = MARKED.with_mark(Mark(11, {0: 30}), before_ms=8)
    assert kept.marks == (Mark(5, {1: 8}), Mark(7, {0: 9}), Mark(9, {0: 12, 1: 20}), Mark(11, {0: 30}))
    assert [mark.at_ms for mark in MARKED.with_mark(Mark(11, {0: 30}), before_ms=0).marks] == [5, 7, 9, 11]


def test_marks_that_are_old_enough_say_since_when_in_all_of_their_partitions() -> None:
    for remembered in (MARKED, MARKED.with_mark(Mark(11, {0: 30}), before_ms=8)):
        assert remembered.ripe_since_ms([0, 1], before_ms=8) == 5
        assert remembered.ripe_since_ms([0], before_ms=8) == 7
        assert remembered.ripe_since_ms([0], before_ms=5) is None


def test_what_was_there_by_then_has_been_compacted_in_all_of_the_partitions() -> None:
    remembered = TopicRecord(passes=(Pass(5, {0: 3}), Pass(7, {0: 9, 1: 4}, 4), Pass(9, {0: 12}, 8)))
    assert remembered.compacted_up_to_ms([0]) == 8
    assert remembered.compacted_up_to_ms([0, 1]) == 4
    assert remembered.compacted_up_to_ms([0, 2]) is None


def test_who_comes_often_finds_a_mark_that_is_old_enough_in_the_end() -> None:
    remembered = TopicRecord()
    for at_ms in range(1_000):
        remembered = remembered.with_mark(Mark(at_ms, {0: at_ms}), before_ms=at_ms - 500)
    assert len(remembered.marks) <= 101
    assert remembered.ripe_marks([0], before_ms=500)


def test_settings_of_a_topic_that_may_not_be_seen_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """To us it is as one that doesn't exist, and has the settings of the one who was killed for ever then."""
    hidden: Future[Any] = Future()
    hidden.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    brokers = SimpleNamespace(describe_topics=lambda *_, **__: {"shop.public.t": hidden}, poll=lambda _: 0)
    monkeypatch.setattr("cdc.kafka.topic_admin.AdminClient", lambda _: brokers)
    forced = ForcedCompaction({}, "shop", TopicSettings())
    put_back: list[str] = []
    monkeypatch.setattr(forced, "records", lambda: {"shop.public.t": REMEMBERED})
    monkeypatch.setattr(forced, "put_back", lambda topic, **_: put_back.append(topic))
    with pytest.raises(LockstepError, match=r"isn't known whether topic shop\.public\.t exists") as refused:
        forced.restore()
    assert "Describe" in (refused.value.hint or "")
    assert not put_back
