"""The newest records of topics, to see who wrote them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from confluent_kafka import Message

from cdc.kafka.reading import messages, reading
from cdc.kafka.topic_admin import TopicAdmin, partitions_of

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
    """The newest record of every partition of these topics that has one near its end. Raises Unavailable, also for a
    topic that the brokers don't list."""
    cluster = TopicAdmin(client)
    partitions = partitions_of(topics, cluster.partition_counts(topics))
    ends = cluster.committed_ends(partitions) if partitions else {}
    limits = {at: (max(0, end - _TAIL_OFFSETS), end) for at, end in ends.items() if end > 0}
    newest: dict[tuple[str, int], Message] = {}
    if limits:
        with reading(client, topics, what="topics") as consumer:
            newest = {
                (message.topic() or "", message.partition() or 0): message for message in messages(consumer, limits)
            }
    return [
        NewestRecord(
            *at,
            message.offset() or 0,
            _bytes(message.key()),
            _bytes(message.value()),
            {name: _bytes(value) for name, value in dict(message.headers() or []).items()},
        )
        for at, message in sorted(newest.items(), key=itemgetter(0))
    ]


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
