"""Reads the control topics: everything a compacted one holds, or what is new on the progress topic."""

import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.kafka.consumer import open_consumer
from cdc.kafka.topic_admin import TopicAdmin, reason
from cdc.kafka.topic_names import PROGRESS, SCHEMA, STATE, control_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import CaptureState, ProgressRecord, SchemaRecord

ClientSettings = Mapping[str, str | int]

_TAIL_OFFSETS = 100
"""How far before its end the progress topic is read first."""

_NOT_YET = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)

_FOLLOW_WAIT_MS = 200
"""A reader that follows a topic asks five times a second, not fifty: it is not in a hurry, and each sink has one."""

_READ_TIMEOUT_S = 30.0
"""When nothing comes for so long, the broker isn't serving."""


def _records(consumer: Consumer, topic: str, start: int, end: int) -> Iterator[Message]:
    """Every committed record from ``start`` to ``end``. Raises Unavailable when nothing comes for long."""
    # The end is given: while somebody writes all the time, the consumer never reports one.
    if start == end:
        return
    consumer.assign([TopicPartition(topic, 0, start)])
    heard = time.monotonic()
    while time.monotonic() - heard < _READ_TIMEOUT_S:
        message = consumer.poll(0.2)
        if message is None:
            continue
        heard = time.monotonic()
        error = message.error()
        if error is None:
            yield message
            if (message.offset() or 0) >= end - 1:
                return
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise KafkaException(error)
    raise Unavailable(f"the end of topic {topic} wasn't reached: nothing came for {_READ_TIMEOUT_S:.0f} s")


def _limits(consumer: Consumer, topic: str) -> tuple[int, int]:
    """The first offset and the end of a topic that exists, as of now.

    A broker that has just come back may not know them in the first moment.
    """
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_READ_TIMEOUT_S)
            return int(low), int(high)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _content(message: Message) -> tuple[bytes, bytes | None]:
    key, value = message.key(), message.value()
    assert isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    return key, value


def read_compacted(client: ClientSettings, topic: str) -> dict[bytes, bytes]:
    """The newest value of every key of a one-partition topic, read-committed, in order of their offsets.

    Raises Unavailable when the broker doesn't answer and LockstepError when the topic doesn't exist.
    """
    consumer = open_consumer(client)
    try:
        metadata = consumer.list_topics(topic, timeout=_READ_TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise LockstepError(f"topic {topic} can't be read: {metadata.error.str()}")
        newest: dict[bytes, bytes] = {}
        for message in _records(consumer, topic, 0, _limits(consumer, topic)[1]):
            key, value = _content(message)
            newest.pop(key, None)  # so that the order is that of the newest records
            if value is not None:
                newest[key] = value
        return newest
    except KafkaException as error:
        raise Unavailable(f"topic {topic} can't be read: {reason(error)}") from error
    finally:
        consumer.close()


def read_state(client: ClientSettings, prefix: str, slot: str) -> CaptureState | None:
    """Capture's state of this slot, or None when it never ran."""
    value = read_compacted(client, control_topic(prefix, STATE)).get(slot.encode())
    return None if value is None else CaptureState.from_bytes(value)


def read_schema_records(client: ClientSettings, prefix: str) -> list[SchemaRecord]:
    """Every shape that any table ever had, in the order in which they held. Raises as ``read_compacted``."""
    return [SchemaRecord.from_bytes(value) for value in read_compacted(client, control_topic(prefix, SCHEMA)).values()]


def read_shapes(client: ClientSettings, prefix: str) -> dict[str, Table]:
    """Every shape that any table ever had, by schema id."""
    return {record.table.schema_id: record.table for record in read_schema_records(client, prefix)}


def read_tables(client: ClientSettings, prefix: str) -> dict[TableName, Table]:
    """Every table's newest shape."""
    return {record.table.name: record.table for record in read_schema_records(client, prefix)}


def read_progress(client: ClientSettings, prefix: str) -> Iterator[ProgressRecord]:
    """All that the progress topic still holds, oldest first. Raises Unavailable."""
    topic = control_topic(prefix, PROGRESS)
    consumer = open_consumer(client)
    try:
        for message in _records(consumer, topic, 0, _limits(consumer, topic)[1]):
            yield ProgressRecord.from_bytes(_content(message)[1] or b"")
    except KafkaException as error:
        raise Unavailable(f"topic {topic} can't be read: {reason(error)}") from error
    finally:
        consumer.close()


class ProgressReader:
    """Follows ``__progress``; keep one open and ask it again and again.

    It doesn't need the topic's history. Whatever was published before the newest record lies below the topics' end
    offsets as they are after that record was read, and an upper bound is always safe. So the first answer is one record
    with the newest LSN and those end offsets as bounds of all ``topics``; later ones hold what is new.
    """

    def __init__(self, client: ClientSettings, prefix: str, topics: Sequence[str]) -> None:
        self._topic = control_topic(prefix, PROGRESS)
        self._topics = tuple(topics)
        self._consumer = open_consumer(client, fetch_wait_ms=_FOLLOW_WAIT_MS)
        self._cluster = TopicAdmin(client)
        self._next: int | None = None

    def new_records(self) -> list[ProgressRecord]:
        """The committed records since the last call that returned, oldest first.

        Where Kafka has deleted some of them by age, one record with new bounds of all topics, as in the first answer.
        Raises Unavailable; then the next call gives all that this one would have given.
        """
        try:
            low, high = _limits(self._consumer, self._topic)
            if self._next is None or self._next < low:
                records, following = self._newest(low, high)
            else:
                records, following = self._read(self._next, high)
        except KafkaException as error:
            raise Unavailable(f"topic {self._topic} can't be read: {reason(error)}") from error
        self._next = following
        return records

    def _newest(self, low: int, high: int) -> tuple[list[ProgressRecord], int]:
        tail = _TAIL_OFFSETS
        while True:
            start = max(low, high - tail)
            records, following = self._read(start, high)
            if records:
                newest = records[-1]
                return [ProgressRecord(newest.lsn, newest.commit_time_ms, self._end_offsets())], following
            if start == low:
                return [], following
            tail *= 10  # nothing but transaction markers so far

    def _read(self, start: int, end: int) -> tuple[list[ProgressRecord], int]:
        """The records, and the offset after the last of them."""
        records = []
        following = start
        for message in _records(self._consumer, self._topic, start, end):
            records.append(ProgressRecord.from_bytes(_content(message)[1] or b""))
            following = (message.offset() or 0) + 1
        return records, following

    def _end_offsets(self) -> dict[str, tuple[int, ...]]:
        counts = self._cluster.partition_counts()
        partitions = [(topic, p) for topic in self._topics for p in range(counts.get(topic, 0))]
        ends = self._cluster.end_offsets(partitions)
        return {topic: tuple(ends[topic, p] for p in range(counts[topic])) for topic in self._topics if topic in counts}

    def close(self) -> None:
        self._consumer.close()
