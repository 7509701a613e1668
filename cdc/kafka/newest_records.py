"""The newest records of topics, to see who wrote them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdc.kafka.consumer import close_consumer, open_consumer
from cdc.kafka.topic_admin import TopicAdmin, partitions_of, reason
from cdc.model.errors import Unavailable
from cdc.model.timeouts import KAFKA_SILENT_S

_TAIL_OFFSETS = 50
"""How far before its end a partition is read: transaction markers have offsets too, and compaction leaves gaps."""


@dataclass(frozen=True, slots=True)
class NewestRecord:
    """The newest committed record of a partition."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]


def newest_records(client: Mapping[str, str | int], topics: Sequence[str]) -> list[NewestRecord]:
    """Of every partition of these topics, where it has any near its end.

    Raises Unavailable, also for a topic that the brokers don't list.
    """
    cluster = TopicAdmin(client)
    partitions = partitions_of(topics, cluster.partition_counts(topics))
    ends = {at: end for at, end in cluster.end_offsets(partitions).items() if end > 0} if partitions else {}
    if not ends:
        return []
    consumer = open_consumer(client, topics)
    newest: dict[tuple[str, int], NewestRecord] = {}
    unread = set(ends)
    heard = time.monotonic()
    try:
        consumer.assign([TopicPartition(*at, max(0, end - _TAIL_OFFSETS)) for at, end in ends.items()])
        while unread:
            message = consumer.poll(0.2)
            if time.monotonic() - heard > KAFKA_SILENT_S:
                nothing = f"nothing came of them for {KAFKA_SILENT_S:.0f} s"
                raise Unavailable(f"the end of {len(unread)} partitions wasn't reached: {nothing}")
            if message is None:
                continue
            at = (message.topic() or "", message.partition() or 0)
            if at in unread:  # others that were read go on to tell of what is written
                heard = time.monotonic()
            error = message.error()
            if error is None:
                newest[at] = NewestRecord(
                    *at,
                    message.offset() or 0,
                    _bytes(message.key()),
                    _bytes(message.value()),
                    {name: _bytes(value) for name, value in dict(message.headers() or []).items()},
                )
                if newest[at].offset >= ends[at] - 1:
                    unread.discard(at)  # where somebody writes all the time, the consumer tells of no end
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(at)
            else:
                raise KafkaException(error)  # noqa: TRY301  translated below like all others
    except KafkaException as error:
        raise Unavailable(f"topics can't be read: {reason(error)}") from error
    finally:
        close_consumer(consumer)
    return [newest[at] for at in sorted(newest)]


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
