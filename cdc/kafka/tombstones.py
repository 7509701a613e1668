"""Writes tombstones, by which compaction eventually removes all of some keys from a topic."""

from collections.abc import Mapping

from confluent_kafka import KafkaException

from cdc.kafka.delivery import deliver, delivering_producer
from cdc.kafka.topic_admin import NOT_ALLOWED, reason, without_rights
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.tag import TAG_HEADER


def write_tombstones(client: Mapping[str, str | int], topic: str, tags: Mapping[bytes, str]) -> None:
    """Return once all in-sync replicas have a tombstone for each of these keys, with its tag ("": none). Only for
    topics with one partition: in others, a key's writer may have chosen another partition for it. Writing them twice
    changes nothing. Raises Unavailable if the brokers don't answer, LockstepError if they refuse one."""
    records = ((key, None, [(TAG_HEADER, tag.encode())] if tag else []) for key, tag in tags.items())
    refusal = deliver(delivering_producer(client), topic, records)
    if refusal is None:
        return
    why = f"topic {topic} can't be written: {reason(KafkaException(refusal))}"
    if refusal.code() in NOT_ALLOWED:
        raise LockstepError(why, hint=without_rights(["Write"]))
    raise Unavailable(why)
