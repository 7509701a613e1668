"""A table's events as they come, also where others write to its topic."""

import itertools
import os
from collections.abc import Sequence

import orjson
import pytest
from confluent_kafka import Producer

from cdc.capture.settings import CaptureSettings
from cdc.pipeline import Pipeline
from cdc.postgres.settings import SourceSettings
from monitor.tail import follow
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
    """Its topic has an event, what others wrote, and a delete with its tombstone."""
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
    """What is written and what is said until three events have come."""
    written: list[str] = []
    said: list[str] = []
    follow(
        pipeline,
        str(T.name),
        from_start=True,
        count=3,
        as_json=as_json,
        stopping=lambda: False,
        write=written.append,
        say=said.append,
    )
    return written, said


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
