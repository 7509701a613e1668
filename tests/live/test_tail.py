"""A table's events as they come, even if others write to its topic."""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer, TopicPartition

from cdc.capture.settings import CaptureSettings
from cdc.kafka.consumer import close_consumer, open_consumer
from cdc.pipeline_settings import Pipeline
from cdc.postgres.settings import SourceSettings
from monitor.tail import FromLsn, FromStart, FromTime, Start, follow
from stack.stack import Endpoints
from tests.builders import table
from tests.events import Delete, Log, Put, kafka_settings
from tests.pipeline import wait_until
from tests.topics import configure

pytestmark = pytest.mark.live

_numbers = itertools.count(1)
T = table()

FOREIGN = {
    "no key": (None, b'{"op":"u","tag":"t","after":{"id":1}}', None),
    "key that is no JSON": (b"1:x", b'{"op":"u","tag":"t","after":{"id":1}}', None),
    "no JSON": (b'{"id":1}', b"hello", None),
    "no object": (b'{"id":1}', b"[1]", None),
    "no tag": (b'{"id":1}', b'{"op":"u","after":{"id":1}}', None),
    "no after": (b'{"id":1}', b'{"op":"u","tag":"t"}', None),
    "unknown operation": (b'{"id":1}', b'{"op":"?","tag":"t","after":null}', None),
    "tombstone without a tag": (b'{"id":1}', None, None),
    "tombstone with an empty tag": (b'{"id":1}', None, [("tag", None)]),
}


@pytest.fixture
def pipeline(endpoints: Endpoints) -> Pipeline:
    """Its topic has an event, foreign records, and a delete with its tombstone."""
    kafka = kafka_settings(endpoints.kafka_bootstrap, partitions=1)
    name = f"tail{os.getpid()}_{next(_numbers)}"
    log = Log(kafka, name, [T])
    topic = log.topic(T)
    configure(kafka.client(), [topic], {"cleanup.policy": "delete"})  # else the broker refuses what has no key
    log.commit([Put(T, {"id": 1, "note": "x"})])
    producer = Producer(kafka.client())
    # The controller answers before the topic's broker knows of its new policy.
    wait_until(lambda: _is_taken(producer, topic, *FOREIGN["no key"]), what="a record without a key is taken")
    for key, value, headers in list(FOREIGN.values())[1:]:
        assert _is_taken(producer, topic, key, value, headers)
    log.commit([Delete(T, {"id": 1})])
    log.close()
    return Pipeline(name, SourceSettings(dsn="host=nowhere", tables=(str(T.name),)), kafka, CaptureSettings())


def _is_taken(
    producer: Producer, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, None]] | None
) -> bool:
    refused: list[object] = []
    producer.produce(topic, value, key, headers=headers, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(30) == 0
    return refused == [None]


def _followed(pipeline: Pipeline, *, as_json: bool) -> tuple[Sequence[str], Sequence[str]]:
    """The output and the messages until three events have come."""
    lines = list(follow(pipeline, str(T.name), start=FromStart(), count=3, as_json=as_json, stopping=lambda: False))
    return [line.text for line in lines if not line.is_remark], [line.text for line in lines if line.is_remark]


def test_what_others_write_is_named_and_passed_by(pipeline: Pipeline) -> None:
    written, said = _followed(pipeline, as_json=False)
    assert [line.split()[1] for line in written] == ["update", "delete", "tombstone"]
    assert len(said) == len(FOREIGN)
    assert said[0].startswith("0:2 of ")  # after the event and its transaction's marker
    assert all("isn't an event of ours" in sentence for sentence in said)


def test_what_others_write_is_an_object_of_its_own_in_json(pipeline: Pipeline) -> None:
    written, said = _followed(pipeline, as_json=True)
    objects = [orjson.loads(line) for line in written]
    assert [set(each) for each in objects] == [
        {"key", "value"},
        *([{"partition", "offset", "foreign"}] * len(FOREIGN)),
        {"key", "value"},
        {"key", "tombstone", "tag"},
    ]
    assert said == []


@pytest.fixture
def log(endpoints: Endpoints) -> Iterator[Log]:
    opened = Log(kafka_settings(endpoints.kafka_bootstrap, partitions=3), f"tail{os.getpid()}_{next(_numbers)}", [T])
    yield opened
    opened.close()


def _pipeline(log: Log) -> Pipeline:
    return Pipeline(
        log.pipeline,
        SourceSettings(dsn="host=nowhere", tables=(str(T.name),)),
        log.kafka,
        CaptureSettings(),
    )


def _shown(log: Log, start: Start, *, key: str | None = None, count: int) -> list[dict[str, Any]]:
    """The events that are followed from ``start``. Their rows' notes identify them."""
    pipeline = _pipeline(log)
    lines = follow(pipeline, str(T.name), start=start, key=key, count=count, as_json=True, stopping=lambda: False)
    return [orjson.loads(line.text) for line in lines if not line.is_remark]


def _notes(events: list[dict[str, Any]]) -> list[tuple[int, str | None]]:
    return [
        (event["key"]["id"], None if "tombstone" in event else (event["value"]["after"] or {}).get("note"))
        for event in events
    ]


def test_from_an_lsn_only_what_was_committed_after_it_is_shown(log: Log) -> None:
    # One batch of capture has several transactions, so that the offsets alone are too early.
    lsns = [log.commit([Put(T, {"id": number, "note": f"v{number}"})], progress=number == 5) for number in range(1, 6)]
    after = _shown(log, FromLsn(lsns[2]), count=2)
    assert sorted(_notes(after)) == [(4, "v4"), (5, "v5")]
    # At the begin of a commit, according to its tag: it is shown as well.
    assert sorted(_notes(_shown(log, FromLsn(lsns[1]), count=3))) == [(3, "v3"), (4, "v4"), (5, "v5")]
    assert len(_shown(log, FromLsn(0), count=5)) == 5


def test_from_a_time_only_what_was_published_since_is_shown(log: Log) -> None:
    log.commit([Put(T, {"id": 1, "note": "early"})])
    # The broker's own times have milliseconds, and the next one differs by then.
    early = _published_ms(log)
    wait_until(lambda: time.time_ns() // 1_000_000 > early, what="the clock has moved on")
    log.commit([Put(T, {"id": 1, "note": "late"})])
    assert _notes(_shown(log, FromTime(early + 1), count=1)) == [(1, "late")]
    assert _notes(_shown(log, FromTime(early), count=2)) == [(1, "early"), (1, "late")]


def _published_ms(log: Log) -> int:
    consumer = open_consumer(log.kafka.client(), [log.topic(T)])
    try:
        consumer.assign([TopicPartition(log.topic(T), partition, 0) for partition in range(3)])
        while True:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                return message.timestamp()[1]
    finally:
        close_consumer(consumer)


def test_only_the_events_of_a_key_are_shown_and_options_combine(log: Log) -> None:
    log.commit([Put(T, {"id": number, "note": "first"}) for number in range(1, 20)])
    between = log.commit([Put(T, {"id": 7, "note": "second"}), Put(T, {"id": 8, "note": "second"})])
    log.commit([Delete(T, {"id": 7})])
    assert _notes(_shown(log, FromStart(), key='{ "id" : 7 }', count=4)) == [
        (7, "first"),
        (7, "second"),
        (7, None),
        (7, None),
    ]
    assert _notes(_shown(log, FromLsn(between), key='{"id":7}', count=2)) == [(7, None), (7, None)]
