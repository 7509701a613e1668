"""Writes tombstones, which take all that a compacted topic has of some keys away in time."""

from collections.abc import Mapping

from confluent_kafka import KafkaException

from cdc.kafka.delivery import deliver, delivering_producer
from cdc.kafka.topic_admin import NOT_ALLOWED, reason, without_rights
from cdc.model.errors import LockstepError, Unavailable
from cdc.protocol.envelope import TAG_HEADER


def write_tombstones(client: Mapping[str, str | int], topic: str, tags: Mapping[bytes, str]) -> None:
    """Return once all in-sync replicas have one for each of these keys, with its tag, "" for none.

    Of a topic with one partition: in any other, whoever wrote a key may have chosen another partition for it. Writing
    them twice changes nothing. Raises Unavailable when the brokers don't answer, LockstepError when they refuse one.
    """
    records = ((key, None, [(TAG_HEADER, tag.encode())] if tag else []) for key, tag in tags.items())
    refusal = deliver(delivering_producer(client), topic, records)
    if refusal is None:
        return
    why = f"topic {topic} can't be written: {reason(KafkaException(refusal))}"
    if refusal.code() in NOT_ALLOWED:
        raise LockstepError(why, hint=without_rights(["Write"]))
    raise Unavailable(why)
