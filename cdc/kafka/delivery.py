"""Writes a few records outside of a transaction, and waits until all in-sync replicas have them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import new_client
from cdc.model.errors import Unavailable
from cdc.model.timeouts import KAFKA_CONFIRMS_S

_RECORD_BYTES_MAX: Final = 1_000_000_000
"""Disables librdkafka's own limit: the topic's decides, and the broker reports it."""

Headers = Sequence[tuple[str, str | bytes | None]]


def delivering_producer(client: Mapping[str, str | int]) -> Producer:
    """A producer for ``deliver``. Raises as ``new_client``."""
    return new_client(
        Producer,
        {
            **client,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": int(KAFKA_CONFIRMS_S * 1000),
            "message.max.bytes": _RECORD_BYTES_MAX,
            "compression.type": "lz4",
        },
    )


def deliver(
    producer: Producer, topic: str, records: Iterable[tuple[bytes, bytes | None, Headers]]
) -> KafkaError | None:
    """Write these (key, value, headers). Returns None once all in-sync replicas have them, else the first refusal.
    Raises Unavailable if the brokers don't accept them in time."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    try:
        for key, value, headers in records:
            deadline = time.monotonic() + KAFKA_CONFIRMS_S
            while True:
                try:
                    producer.produce(topic, key=key, value=value, headers=list(headers), on_delivery=delivered)
                    break
                except BufferError:  # the client's own queue is full of records in transit
                    if time.monotonic() > deadline:
                        raise
                    producer.poll(0.1)
            producer.poll(0)
        unsent = producer.flush(KAFKA_CONFIRMS_S + 5)
    except BufferError as error:
        raise Unavailable(f"topic {topic} takes no more records: Kafka doesn't answer") from error
    except KafkaException as error:
        failures.append(error.args[0])
        unsent = 0
    if unsent:
        raise Unavailable(f"{unsent} records didn't reach topic {topic}: Kafka doesn't answer")
    return failures[0] if failures else None
