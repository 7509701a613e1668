"""Writes tombstones, which take all that a compacted topic has of some keys away in time."""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import new_client
from cdc.kafka.topic_admin import NOT_ALLOWED, reason, without_rights
from cdc.model.errors import LockstepError, Unavailable
from cdc.protocol.envelope import TAG_HEADER

_DELIVERY_TIMEOUT_S: Final = 30


def write_tombstones(client: Mapping[str, str | int], topic: str, tags: Mapping[bytes, str]) -> None:
    """Return once all in-sync replicas have one for each of these keys, with its tag, "" for none.

    Writing them twice changes nothing. Raises Unavailable when the brokers don't answer, LockstepError when they
    refuse one.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = new_client(
        Producer,
        {
            **client,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": _DELIVERY_TIMEOUT_S * 1000,
            "message.max.bytes": 1_000_000_000,  # the topic's limit decides, and the broker says so
        },
    )
    try:
        for key, tag in tags.items():
            headers: list[tuple[str, str | bytes | None]] = [(TAG_HEADER, tag.encode())] if tag else []
            producer.produce(topic, key=key, value=None, headers=headers or None, on_delivery=delivered)
            producer.poll(0)
        unsent = producer.flush(_DELIVERY_TIMEOUT_S + 5)
    except BufferError as error:
        raise Unavailable(f"topic {topic} takes no more records: Kafka doesn't answer") from error
    except KafkaException as error:
        failures.append(error.args[0])
        unsent = 0
    if failures:
        why = f"topic {topic} can't be written: {reason(KafkaException(failures[0]))}"
        if failures[0].code() in NOT_ALLOWED:
            raise LockstepError(why, hint=without_rights(["Write"]))
        raise Unavailable(why)
    if unsent:
        raise Unavailable(f"{unsent} tombstones didn't reach topic {topic}")
