"""What the tasks of a stream query write to Kafka: rows of its result, and rows that the result can't have. A repeated
batch writes the same records again, with the same keys and the same bytes. So a consumer that goes by the key has each
row once. One producer per worker writes. Nothing counts as written before the brokers have confirmed it.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import batch_bytes, new_client
from cdc.kafka.topic_admin import NOT_ALLOWED, TopicAdmin, reason, without_rights
from cdc.model.errors import LockstepError, PositionMismatch, Unavailable
from cdc.model.event import JsonValue
from cdc.model.tag import TAG_HEADER
from cdc.model.timeouts import KAFKA_TAKES_NOTHING_S
from extensions.streams.executor.task_input import StreamInput
from jobs.executor.log_reader import Client
from jobs.executor.result import RejectedEvent

RECORD_OVERHEAD_BYTES: Final = 128
"""The most bytes of a result record besides key and value: its header, and Kafka's own fields."""

_SIDE_FACTS_BYTES: Final = 2048
"""The most bytes of a side topic's record besides key and value: names, times, a position, a reason."""

_SIDE_KEY_BYTES_MAX: Final = 1000
_REASON_MAX: Final = 300

_SLICE_S: Final = 1.0
_QUEUE_KBYTES: Final = 32 * 1024


def check_same_topics(query: str, client: Client, topic_ids: Mapping[str, str]) -> None:
    """Raise PositionMismatch if one of these topics was recreated: its records may not be those that were read."""
    check_topic_ids(query, topic_ids, TopicAdmin(client).topic_ids(sorted(topic_ids)))


def check_topic_ids(query: str, known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise PositionMismatch if a topic isn't the known one: its offsets mean other records. Pure."""
    changed = sorted(topic for topic, topic_id in known.items() if now.get(topic, topic_id) != topic_id)
    if changed:
        raise PositionMismatch(
            f"topic {changed[0]} of stream query {query!r} was removed and created again",
            hint=f"build the result again from what the topics hold: lockstep streams rebuild {query}",
        )


class StreamTopics:
    """Writes to the topics of one stream query. ``flush`` returns once everything is durable. Every method raises
    Unavailable if the brokers don't answer, and LockstepError if they refuse. Close it then, and open a new one.
    """

    def __init__(self, client: Client, where: StreamInput) -> None:
        self._where = where
        self._failed: KafkaError | None = None
        limits = [where.side_record_bytes_max]
        if where.result_topic is not None:
            limits.append(where.result_record_bytes_max)
        largest = max(limits) + RECORD_OVERHEAD_BYTES
        self._producer = new_client(
            Producer,
            {
                **client,
                "enable.idempotence": True,  # so all brokers confirm, and a retry neither repeats nor reorders
                "compression.type": "lz4",
                "linger.ms": 5,
                "batch.size": batch_bytes(*limits),
                "queue.buffering.max.kbytes": max(_QUEUE_KBYTES, 2 * largest // 1024),
                "message.max.bytes": largest,
            },
        )

    def write_row(self, key: bytes, row: bytes, tag: str) -> None:
        """Add a row of the result. Both are JSON."""
        assert self._where.result_topic is not None
        self._produce(self._where.result_topic, key, row, [(TAG_HEADER, tag.encode())])

    def keep_refused(self, batch_id: int, refused: Iterable[RejectedEvent]) -> None:
        for row in refused:
            where = self._where
            key, value = refused_record(batch_id, row, where.generation, bytes_max=where.side_record_bytes_max)
            self._produce(self._where.side_topic, key.encode(), value.encode(), [])

    def flush(self) -> None:
        """Wait until everything added is durable."""
        fewest, moved = None, time.monotonic()
        while left := self._producer.flush(_SLICE_S):
            self._check()
            if fewest is None or left < fewest:
                fewest, moved = left, time.monotonic()
            elif time.monotonic() - moved > KAFKA_TAKES_NOTHING_S:
                query, seconds = self._where.query, KAFKA_TAKES_NOTHING_S
                raise Unavailable(f"Kafka has confirmed no record of stream query {query!r} for {seconds:.0f} s")
        self._check()

    def close(self) -> None:
        """Gives up records that aren't confirmed."""
        self._producer.purge()
        self._producer.flush(_SLICE_S)

    def _produce(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, str | bytes | None]]) -> None:
        self._check()
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers or None, on_delivery=self._on_delivery)
            except BufferError:  # the queue is full: the brokers are slow
                self._producer.poll(_SLICE_S)
                self._check()
            except KafkaException as error:
                raise self._error(error.args[0]) from error
            else:
                self._producer.poll(0)
                return

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._failed = self._failed or error

    def _check(self) -> None:
        if self._failed is not None:
            raise self._error(self._failed)

    def _error(self, error: KafkaError) -> LockstepError:
        what = f"records of stream query {self._where.query!r} can't be written"
        if error.code() in NOT_ALLOWED:
            return LockstepError(f"{what}: {reason(KafkaException(error))}", hint=without_rights(["Write"]))
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            topics = " and ".join(filter(None, [self._where.side_topic, self._where.result_topic]))
            return LockstepError(
                f"{what}: a topic or a broker takes smaller records only",
                hint=f"raise max.message.bytes of {topics}, and message.max.bytes of the brokers",
            )
        return Unavailable(f"{what}: {reason(KafkaException(error))}")


@dataclass(slots=True)
class _Open:
    """An open writer, and the run and the topics that it was opened for."""

    topics: StreamTopics
    purpose: tuple[str, StreamInput]


_open: dict[str, _Open] = {}
"""By query. A worker outlives batches, and connecting takes time."""


def topics_for(client: Client, where: StreamInput, run: str) -> StreamTopics:
    """This worker's writer for the run; a new one if the open one is of another run. Raises as ``new_client``."""
    opened = _open.get(where.query)
    if opened is not None and opened.purpose == (run, where):
        return opened.topics
    close_topics(where)
    topics = StreamTopics(client, where)
    _open[where.query] = _Open(topics, (run, where))
    return topics


def close_topics(where: StreamInput) -> None:
    opened = _open.pop(where.query, None)
    if opened is not None:
        with suppress(Exception):  # it was given up; how it ends doesn't matter
            opened.topics.close()


def side_room(bytes_max: int) -> tuple[int, int]:
    """How many bytes of JSON a key and a value may have in a side topic's record of this size. Pure."""
    room = max(0, bytes_max - _SIDE_FACTS_BYTES)
    return room // 4, room * 3 // 4


def refused_record(batch_id: int, row: RejectedEvent, generation: int, *, bytes_max: int) -> tuple[str, str]:
    """Key and value of the side topic's record for a row that this build of the result can't have. Pure. If a key or
    row is too long, the beginning of its JSON is stored as text, with its length.
    """
    key: dict[str, JsonValue] = {"batch": batch_id, "row": row.position.offset}
    if len(row.key) <= _SIDE_KEY_BYTES_MAX:
        key["key"] = orjson.loads(row.key)
    else:
        key["key_sha256"] = hashlib.sha256(row.key).hexdigest()
    key_room, value_room = side_room(bytes_max)
    value: dict[str, Any] = {
        "kind": "refused",
        "generation": generation,
        "reason": row.reason[:_REASON_MAX],
        "batch": batch_id,
        **_kept_json("key", row.key, key_room),
        **_kept_json("row", row.value, value_room),
    }
    return orjson.dumps(key).decode(), orjson.dumps(value).decode()


def _kept_json(name: str, document: bytes | None, room: int) -> dict[str, JsonValue]:
    """A document under its name, or as much of it as fits."""
    if document is None or len(document) <= room:
        return {name: None if document is None else orjson.loads(document)}
    part = document.decode()[:room]
    while (size := len(orjson.dumps(part))) > room and part:
        part = part[: min(len(part) - 1, len(part) * room // size)]
    return {f"{name}_text": part, f"{name}_bytes": len(document)}
