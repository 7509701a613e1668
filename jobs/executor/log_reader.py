"""Ranges of the log -> Arrow, inside Spark's tasks: the records of a batch, read by librdkafka.

The driver says where a batch begins and ends. Spark's own reader would make rows of records, and Arrow of rows, which
takes 12 us per record until Python has it. Here records become Arrow at once, in 2 us. It runs in Python workers, so it
imports nothing of Spark's.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heapreplace
from operator import methodcaller
from typing import Any, Final

import orjson
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Assigned

from cdc.kafka.client import new_client
from cdc.kafka.consumer import close_consumer, find_leaders
from cdc.kafka.topic_admin import reason
from cdc.model.errors import LockstepError, PositionMismatch, Unavailable
from cdc.model.tag import TAG_HEADER
from cdc.model.timeouts import KAFKA_SILENT_S
from jobs.offsets import Offsets
from sinks.contract import TopicPartition

Client = Mapping[str, str | int]
"""librdkafka's configuration. Holds the password."""

_WAIT_S: Final = 0.2
_FOLLOW_WAIT_S: Final = 0.05
IDLE_WAIT_S: Final = 0.2
"""How often a follower returns without records, and so notices that it must end. It returns sooner just after records
came, since it then has more to do, such as reporting."""

_IDLE_AFTER_S: Final = 1.0

_GATHER_S: Final = 0.002
"""Records that come so soon after another one mostly belong to the same transactions."""

_MESSAGES_AT_ONCE: Final = 3_000
"""Messages are Python objects until they are Arrow. 3,000 fit in the processor's cache; of 10,000 each takes 25 %
longer."""
_READ_AHEAD_KB: Final = 16 * 1024
"""For all partitions of a task together; what the task has just taken comes on top."""

_LOST: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_REFUSED: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

_SCHEMA: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "tombstone_tag": pa.binary(),
        "timestamp_ms": pa.int64(),
    }
)

_error_of, _topic_of, _partition_of = methodcaller("error"), methodcaller("topic"), methodcaller("partition")


@dataclass(frozen=True, slots=True)
class Range:
    """The records of a partition from offset ``start`` (None: its beginning) up to, but without, offset ``end``."""

    topic: str
    partition: int
    start: int | None
    end: int

    @property
    def at(self) -> TopicPartition:
        return self.topic, self.partition


def ranges(starts: Offsets, ends: Offsets) -> list[Range]:
    """The ranges between two positions in the log. A partition without a start is read from its beginning."""
    all_ranges = (Range(*at, starts.get(at), end) for at, end in ends.items())
    return [wanted_range for wanted_range in all_ranges if wanted_range.end > (wanted_range.start or 0)]


def open_ranges(starts: Offsets, ends: Offsets) -> list[Range]:
    """As ``ranges``, for a reader that goes on after them: all partitions, including those with nothing in between."""
    all_ranges = (Range(*at, starts.get(at), end) for at, end in ends.items())
    return [replace(part, end=max(part.end, part.start or 0)) for part in all_ranges]


def spread(wanted_ranges: Sequence[Range], *, tasks_max: int) -> list[list[Range]]:
    """Divide ranges among at most so many tasks: about as many offsets each, and at least one range."""
    tasks: list[list[Range]] = [[] for _ in range(min(len(wanted_ranges), tasks_max))]
    loads = [(0, number) for number in range(len(tasks))]
    for wanted_range in sorted(wanted_ranges, key=_offsets, reverse=True):
        load, number = loads[0]
        tasks[number].append(wanted_range)
        heapreplace(loads, (load + _offsets(wanted_range), number))
    return tasks


def _offsets(wanted_range: Range) -> int:
    return wanted_range.end - (wanted_range.start or 0)


def dump_ranges(wanted_ranges: Sequence[Range]) -> str:
    return orjson.dumps(
        [
            [wanted_range.topic, wanted_range.partition, wanted_range.start, wanted_range.end]
            for wanted_range in wanted_ranges
        ]
    ).decode()


def load_ranges(text: str) -> list[Range]:
    """Parse the output of ``dump_ranges``."""
    return [Range(*fields) for fields in orjson.loads(text)]


@dataclass(frozen=True, slots=True)
class Polled:
    """The records that came, and the next offsets of partitions that were read up to there, ``records`` included."""

    records: Sequence[pa.RecordBatch]
    ends: Offsets


class LogReader:
    """A client of the brokers that reads ranges, one call after another. Raises as ``new_client``."""

    def __init__(self, client: Client, *, fetch_wait_ms: int = 1) -> None:
        """``fetch_wait_ms`` is how long the broker holds a request without records. It must be short if a batch ends
        with its ranges: a request still held then would delay the next batch's."""
        self._consumer = new_client(
            Consumer,
            {
                **client,
                "group.id": "lockstep-sinks",  # never committed: positions are explicit
                "enable.auto.commit": False,
                # Open and aborted transactions of capture must never reach a sink.
                "isolation.level": "read_committed",
                # A gap in the log means lost events and must stop the job. Compaction doesn't count as a gap.
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": fetch_wait_ms,
                "queued.max.messages.kbytes": _READ_AHEAD_KB,
                # The pause before it reads on ahead once that much is queued.
                "fetch.queue.backoff.ms": 10,
            },
        )
        self._met: set[str] = set()

    def close(self) -> None:
        close_consumer(self._consumer)

    def read(self, wanted_ranges: Sequence[Range]) -> Generator[pa.RecordBatch]:
        """The records of these ranges, each in order, with the columns that delivery reads. Raises PositionMismatch if
        the log has lost a range's beginning, Unavailable if brokers don't answer, LockstepError if they refuse."""
        remaining = {wanted_range.at: wanted_range.end for wanted_range in wanted_ranges}
        self._assign(wanted_ranges)
        try:
            heard = time.monotonic()
            while remaining:
                # One poll, then what came with it: asked for many records, the client waits until it has them all.
                first = self._consumer.poll(_WAIT_S)
                if first is not None:
                    messages = [first, *self._consumer.consume(_MESSAGES_AT_ONCE, 0)]
                    heard = time.monotonic()
                    yield from self._taken(messages, remaining)
                elif time.monotonic() - heard > KAFKA_SILENT_S:
                    raise Unavailable(f"Kafka has sent nothing for {KAFKA_SILENT_S:.0f} s")
        except KafkaException as error:
            raise Unavailable(f"the log can't be read: {reason(error)}") from error
        finally:
            # Otherwise paused partitions would stay paused when they are assigned again.
            self._consumer.resume([Assigned(*wanted_range.at) for wanted_range in wanted_ranges])
            self._consumer.unassign()

    def follow(self, wanted_ranges: Sequence[Range]) -> Generator[Polled]:
        """The records of these ranges and all that come after them, each partition's in order, without end. Yields now
        and then even if nothing comes. Raises as ``read``; but once the ranges are read it waits for brokers without
        end, since there may be nothing to send."""
        behind = {part.at: part.end for part in wanted_ranges if part.end > (part.start or 0)}
        reached: Offsets = {}
        self._assign(wanted_ranges)
        try:
            heard = time.monotonic()
            while True:
                is_idle = time.monotonic() - heard > _IDLE_AFTER_S
                first = self._consumer.poll(IDLE_WAIT_S if is_idle else _FOLLOW_WAIT_S)
                messages: list[Any] = []
                if first is not None:
                    messages = [first, *self._consumer.consume(_MESSAGES_AT_ONCE, _GATHER_S)]
                    heard = time.monotonic()
                elif behind and time.monotonic() - heard > KAFKA_SILENT_S:
                    raise Unavailable(f"Kafka has sent nothing for {KAFKA_SILENT_S:.0f} s")
                polled = self._polled(messages)
                reached |= polled.ends
                behind = {at: end for at, end in behind.items() if reached.get(at, 0) < end}
                yield polled
        except KafkaException as error:
            raise Unavailable(f"the log can't be read: {reason(error)}") from error
        finally:
            self._consumer.unassign()

    def _polled(self, messages: Sequence[Message]) -> Polled:
        # Tuned, as in ``_by_partition``.
        if (only := _only_partition(messages)) is not None:
            last = messages[-1].offset()
            assert last is not None
            return Polled([to_arrow(*only, messages)], {only: last + 1})
        ends: Offsets = {}
        records: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            at, offset = _topic_partition(message), message.offset()
            error = message.error()
            if error is None:
                assert offset is not None
                records.setdefault(at, []).append(message)
                ends[at] = offset + 1
                continue
            _check(message)
            if error.code() == KafkaError._PARTITION_EOF:
                assert offset is not None
                # Transaction markers and aborted records may follow the last record.
                ends[at] = max(offset, ends.get(at, 0))
        return Polled([to_arrow(*at, of_partition) for at, of_partition in records.items()], ends)

    def _assign(self, wanted_ranges: Sequence[Range]) -> None:
        if unmet := {wanted_range.topic for wanted_range in wanted_ranges} - self._met:
            find_leaders(self._consumer, unmet)
            self._met |= unmet
        self._consumer.assign(
            [
                Assigned(*wanted_range.at, OFFSET_BEGINNING if wanted_range.start is None else wanted_range.start)
                for wanted_range in wanted_ranges
            ]
        )

    def _taken(self, messages: Sequence[Message], remaining: dict[TopicPartition, int]) -> Iterator[pa.RecordBatch]:
        """Messages -> the wanted records. Removes partitions that are read to their end from ``remaining``."""
        errors: list[Any] = [message for message in messages if message.error() is not None]
        for at, polled in _by_partition(messages, remaining).items():
            records, end = polled, remaining[at]
            if records[-1].offset() >= end - 1:
                records = [record for record in polled if record.offset() < end]
                self._done(at, remaining)
            if records:
                yield to_arrow(*at, records)
        for message in errors:
            _check(message)
            # If only transaction markers and aborted records are left below the end, nothing else shows it.
            if message.error().code() == KafkaError._PARTITION_EOF:
                at = _topic_partition(message)
                if at in remaining and message.offset() >= remaining[at]:
                    self._done(at, remaining)

    def _done(self, at: TopicPartition, remaining: dict[TopicPartition, int]) -> None:
        del remaining[at]
        if remaining:
            self._consumer.pause([Assigned(*at)])


def _by_partition(
    messages: Sequence[Message], remaining: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, Sequence[Any]]:
    """The records among the messages, of partitions that aren't read to their end yet."""
    # Tuned: in a backlog all are of one partition, with nothing in between.
    if (only := _only_partition(messages)) is not None and only in remaining:
        return {only: messages}
    by_partition: dict[TopicPartition, list[Message]] = {}
    for message in messages:
        at = _topic_partition(message)
        if message.error() is None and at in remaining:
            by_partition.setdefault(at, []).append(message)
    return by_partition


def _only_partition(messages: Sequence[Message]) -> TopicPartition | None:
    """The partition that all of these are records of; None if there are several, or errors too."""
    partitions: set[TopicPartition] = {*zip(map(_topic_of, messages), map(_partition_of, messages), strict=True)}
    return partitions.pop() if len(partitions) == 1 and not any(map(_error_of, messages)) else None


def _topic_partition(message: Any) -> TopicPartition:
    """An error that concerns no partition has neither."""
    return message.topic(), message.partition()


def _check(message: Message) -> None:
    """Raise the error that came among the records, unless the client recovers from it by itself, as from most."""
    error = message.error()
    assert error is not None
    code = error.code()
    if code in _LOST:
        raise PositionMismatch(
            f"the log no longer holds what is to be read next: topic {message.topic()}, partition {message.partition()}"
        )
    if code in _REFUSED or error.fatal():
        raise LockstepError(f"the log can't be read: {error.str()}")
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        raise Unavailable(f"topic {message.topic()}, partition {message.partition()}, isn't there")


def to_arrow(topic: str, partition: int, records: Sequence[Message]) -> pa.RecordBatch:
    """Records of one partition -> the columns that delivery reads."""
    values = [record.value() for record in records]
    tags = pa.nulls(len(values), pa.binary())
    if None in values:
        record_tags = [_tag(record) if value is None else None for record, value in zip(records, values, strict=True)]
        tags = pa.array(record_tags, pa.binary())
    columns = [
        pa.array([record.key() for record in records], pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), len(values)),
        pa.repeat(pa.scalar(partition, pa.int32()), len(values)),
        pa.array([record.offset() for record in records], pa.int64()),
        tags,
        pa.array([record.timestamp()[1] for record in records], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _tag(record: Any) -> bytes | None:
    return next((value for name, value in record.headers() or () if name == TAG_HEADER), None)


# One per worker process and set of brokers. Workers outlive batches, and connecting costs more than a batch.
_Identity = tuple[int, tuple[tuple[str, str | int], ...]]
_open: dict[_Identity, LogReader] = {}


@contextmanager
def reader_for(client: Client, wanted_ranges: Sequence[Range], *, fetch_wait_ms: int = 1) -> Iterator[LogReader]:
    """This process's reader for these brokers, fit to read these ranges. Raises as ``LogReader``."""
    identity = _identity(client, fetch_wait_ms)
    if any(wanted_range.start is None for wanted_range in wanted_ranges):
        # A client that has read from a partition's beginning starts at the same offset again, even if it was deleted
        # since.
        _forget(identity)
    if identity not in _open:
        _open[identity] = LogReader(client, fetch_wait_ms=fetch_wait_ms)
    try:
        yield _open[identity]
    except BaseException:
        # The client would give errors of partitions to its next reader, which has asked for others.
        _forget(identity)
        raise


def forget_reader(client: Client, *, fetch_wait_ms: int) -> None:
    """Close this process's reader, so that the next one is new. Nobody may be using it."""
    _forget(_identity(client, fetch_wait_ms))


def _identity(client: Client, fetch_wait_ms: int) -> _Identity:
    return fetch_wait_ms, tuple(sorted(client.items()))


def _forget(identity: _Identity) -> None:
    if (reader := _open.pop(identity, None)) is not None:
        reader.close()
