"""All records of some keys that a topic still has, those of aborted transactions included: for who proves that none is.

A log cleaner takes records away by and by, and readers of what is committed don't see all that is there.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.kafka.consumer import close_consumer, open_consumer
from cdc.kafka.topic_admin import TopicAdmin, partitions_of, reason
from cdc.model.errors import Unavailable
from cdc.model.timeouts import KAFKA_SILENT_S
from cdc.protocol.envelope import DELETE_START, EVENT_START, TAG_END, TAG_HEADER, TAG_START
from cdc.spilling import SpillingMap

_OFFSET: Final = Struct("<q")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Where a record of a wanted key is, and when it was written, in milliseconds since 1970.

    ``tag`` is that of an event or a tombstone, "" for what is neither. ``is_deletion``: a delete, or a tombstone.
    """

    partition: int
    offset: int
    timestamp_ms: int
    is_tombstone: bool
    is_deletion: bool = False
    tag: str = ""


def key_records(
    client: Mapping[str, str | int],
    topic: str,
    is_wanted: Callable[[bytes], bool],
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> list[KeyRecord]:
    """The records of wanted keys in all partitions of a topic, as it is now, in order. Reads the whole topic.

    Raises Unavailable when the brokers stop answering, and when they don't list the topic.
    """
    cluster = TopicAdmin(client)
    partitions = partitions_of([topic], cluster.partition_counts([topic]))
    ends = cluster.end_offsets(partitions, while_waiting=while_waiting)
    found = []
    consumer = open_consumer(client, [topic], committed=False)
    try:
        for _, partition in partitions:
            for message in _messages(consumer, TopicPartition(topic, partition, 0), ends[topic, partition]):
                while_waiting()
                key = message.key()
                if isinstance(key, bytes) and is_wanted(key):
                    found.append(_record(message))
    except KafkaException as error:
        raise Unavailable(f"topic {topic} can't be read: {reason(error)}") from error
    finally:
        close_consumer(consumer)
    return found


def replaced_records(
    client: Mapping[str, str | int],
    topic: str,
    *,
    below: int,
    directory: Path,
    while_waiting: Callable[[], None] = lambda: None,
) -> list[KeyRecord]:
    """What of the records below an offset isn't the newest committed one of its key, and tombstones.

    Of a topic with one partition. At most two records stand for all of them: one for those with values and one for
    tombstones, at the greatest offset, with the newest time. Reads the topic twice; the newest record of each key is
    remembered in a temporary file in ``directory`` where that is much. Raises as ``key_records``.
    """
    cluster = TopicAdmin(client)
    partitions = partitions_of([topic], cluster.partition_counts([topic]))
    assert len(partitions) == 1, topic
    at = partitions[0]
    found = dict[bool, KeyRecord]()
    with SpillingMap(directory) as newest:
        committed = cluster.committed_ends([at])[at]
        for message in _read(client, at, committed, only_committed=True, while_waiting=while_waiting):
            newest[_key(message)] = _OFFSET.pack(message.offset() or 0)
        end = min(below, cluster.end_offsets([at], while_waiting=while_waiting)[at])
        for message in _read(client, at, end, only_committed=False, while_waiting=while_waiting):
            record = _record(message)
            if not record.is_tombstone and newest.get(_key(message)) == _OFFSET.pack(record.offset):
                continue
            before = found.get(record.is_tombstone, record)
            found[record.is_tombstone] = replace(record, timestamp_ms=max(before.timestamp_ms, record.timestamp_ms))
    return list(found.values())


def _read(
    client: Mapping[str, str | int],
    at: tuple[str, int],
    end: int,
    *,
    only_committed: bool,
    while_waiting: Callable[[], None],
) -> Iterator[Message]:
    topic, partition = at
    consumer = open_consumer(client, [topic], committed=only_committed)
    try:
        for message in _messages(consumer, TopicPartition(topic, partition, 0), end):
            while_waiting()
            yield message
    except KafkaException as error:
        raise Unavailable(f"topic {topic} can't be read: {reason(error)}") from error
    finally:
        close_consumer(consumer)


def _key(message: Message) -> bytes:
    key = message.key()
    return key if isinstance(key, bytes) else b""


def still_there(client: Mapping[str, str | int], topic: str, at: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these (partition, offset) at which there is a record still. Raises as ``key_records``."""
    there = set()
    consumer = open_consumer(client, [topic], committed=False)
    try:
        for partition, offset in at:
            first = next(_messages(consumer, TopicPartition(topic, partition, offset), offset + 1), None)
            if first is not None and first.offset() == offset:
                there.add((partition, offset))
    except KafkaException as error:
        raise Unavailable(f"topic {topic} can't be read: {reason(error)}") from error
    finally:
        close_consumer(consumer)
    return there


def _record(message: Message) -> KeyRecord:
    value = message.value()
    if value is None:
        text = dict(message.headers() or []).get(TAG_HEADER)
        is_deletion = True
    else:
        assert isinstance(value, bytes)
        text = value[TAG_START:TAG_END] if value.startswith(EVENT_START) else b""
        is_deletion = value.startswith(DELETE_START)
    tag = text.decode(errors="replace") if isinstance(text, bytes) else ""
    at = (message.partition() or 0, message.offset() or 0, message.timestamp()[1])
    return KeyRecord(*at, value is None, is_deletion, tag)


def _messages(consumer: Consumer, start: TopicPartition, end: int) -> Iterator[Message]:
    """What a partition has below an end that is known to have been reached by its log."""
    if start.offset >= end:
        return
    consumer.assign([start])
    heard = time.monotonic()
    while True:
        message = consumer.poll(0.2)
        if message is None:
            if time.monotonic() - heard > KAFKA_SILENT_S:
                raise Unavailable(
                    f"the end of topic {start.topic} wasn't reached: nothing came for {KAFKA_SILENT_S:.0f} s"
                )
            continue
        heard = time.monotonic()
        error, offset = message.error(), message.offset() or 0
        if error is None:
            if offset >= end:
                return
            yield message
            if offset == end - 1:
                return
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif offset >= end:  # a broker that has just come back may tell of an earlier end
            return
