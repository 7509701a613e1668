"""Rejected events -> the dead-letter topic, where they are kept until the same or a newer event of the key gets through."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.control_topics import ClientSettings, read_compacted
from cdc.kafka.topics import REJECTED, control_topic
from cdc.model.errors import LockstepError, Unavailable

_DELIVERY_TIMEOUT_S: Final = 30
_RECORD_BYTES_MAX: Final = 1_000_000_000
"""librdkafka's own limit is out of the way: the topic's decides, and the broker says so."""


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """An event that a sink refused for good. ``key`` and ``value`` are the record's own bytes; no value is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    tag: str
    reason: str


OpenRejections = dict[tuple[str, bytes], str]
"""Topic and key of a rejected event -> its tag."""


def dead_letter_key(sink: str, generation: int, topic: str, key: bytes) -> bytes:
    """``[sink, generation, topic, event key]``: a newer rejection of the same row replaces the older one."""
    return orjson.dumps([sink, generation, topic, orjson.Fragment(key)])


def event_key(sink: str, generation: int, topic: str, letter_key: bytes) -> bytes | None:
    """The event's key in a dead letter's key, to the byte; None when the letter is another generation's or topic's."""
    start = orjson.dumps([sink, generation, topic])[:-1] + b","
    return letter_key[len(start) : -1] if letter_key.startswith(start) else None


def dead_letter_value(sink: str, generation: int, event: RejectedEvent, *, rejected_at_ms: int) -> bytes:
    """The facts, and the event itself: compaction may take it from its own topic, and nothing is to be lost."""
    return orjson.dumps(
        {
            "sink": sink,
            "generation": generation,
            "topic": event.topic,
            "partition": event.partition,
            "offset": event.offset,
            "key": orjson.Fragment(event.key),
            "tag": event.tag,
            "reason": event.reason,
            "rejected_at_ms": rejected_at_ms,
            "value": None if event.value is None else orjson.Fragment(event.value),
        }
    )


def open_rejections(
    letters: Mapping[bytes, bytes], *, sink: str, generation: int, topics: Iterable[str]
) -> OpenRejections:
    """What the dead-letter topic holds for this generation. Pure; ``letters`` are the topic's keys and values."""
    names = list(topics)
    found: OpenRejections = {}
    for letter_key, value in letters.items():
        for topic in names:
            key = event_key(sink, generation, topic, letter_key)
            if key is not None:
                found[topic, key] = orjson.loads(value)["tag"]
    return found


class DeadLetters:
    """One generation's part of a pipeline's dead-letter topic. It writes over a connection that most jobs never need."""

    def __init__(self, client: ClientSettings, pipeline: str, *, sink: str, generation: int) -> None:
        self._client = client
        self._topic = control_topic(pipeline, REJECTED)
        self._sink = sink
        self._generation = generation
        self._producer: Producer | None = None

    def read(self, topics: Iterable[str]) -> OpenRejections:
        """The rejections that are open. Raises Unavailable."""
        return open_rejections(
            read_compacted(self._client, self._topic), sink=self._sink, generation=self._generation, topics=topics
        )

    def close_all(self, topics: Iterable[str]) -> None:
        """Remove all letters of this generation, which is about to be dropped. Raises as ``publish``."""
        still_open = self.read(topics)
        if still_open:
            self.close(still_open)

    def publish(self, events: Iterable[RejectedEvent], *, rejected_at_ms: int) -> None:
        """Return once every event is acknowledged by all in-sync replicas. Publishing one twice changes nothing.

        Raises Unavailable when the brokers don't answer, LockstepError when they refuse a record.
        """
        self._send(
            (
                dead_letter_key(self._sink, self._generation, event.topic, event.key),
                dead_letter_value(self._sink, self._generation, event, rejected_at_ms=rejected_at_ms),
            )
            for event in events
        )

    def close(self, rejections: Iterable[tuple[str, bytes]]) -> None:
        """Remove the letters of these rows, topic and key: what was rejected, or something newer, got through. Raises as publish."""
        self._send((dead_letter_key(self._sink, self._generation, topic, key), None) for topic, key in rejections)

    def _send(self, letters: Iterable[tuple[bytes, bytes | None]]) -> None:
        producer = self._connect()
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            for key, value in letters:
                producer.produce(self._topic, key=key, value=value, on_delivery=delivered)
                producer.poll(0)
            unsent = producer.flush(_DELIVERY_TIMEOUT_S + 5)
        except BufferError as error:
            raise Unavailable("the dead-letter topic takes no more records: Kafka doesn't answer") from error
        except KafkaException as error:
            failures.append(error.args[0])
            unsent = 0
        if unsent:
            raise Unavailable(f"{unsent} dead letters didn't reach topic {self._topic}")
        if failures:
            self._refuse(failures[0])

    def _refuse(self, error: KafkaError) -> None:
        timed_out = error.code() in {KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT}
        if error.retriable() or timed_out:
            raise Unavailable(f"rejected events didn't reach topic {self._topic}: {error.str()}")
        raise LockstepError(
            f"rejected events can't be kept in topic {self._topic}: {error.str()}",
            hint="nothing was lost: the batch is read again; the topic must exist and take records as large as the tables'",
        )

    def _connect(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._client,
                    "acks": "all",
                    "enable.idempotence": True,
                    "delivery.timeout.ms": _DELIVERY_TIMEOUT_S * 1000,
                    "message.max.bytes": _RECORD_BYTES_MAX,
                    "compression.type": "lz4",
                }
            )
        return self._producer
