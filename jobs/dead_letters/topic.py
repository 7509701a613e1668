"""A pipeline's dead-letter topic: reads, adds and removes dead letters."""

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import new_client
from cdc.kafka.control_topics import ClientSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import DEAD_LETTERS, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError, Unavailable
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter, event_value, read_dead_letter

_DELIVERY_TIMEOUT_S: Final = 30
_RECORD_BYTES_MAX: Final = 1_000_000_000
"""librdkafka's own limit is out of the way: the topic's decides, and the broker says so."""


class DeadLetterTopic:
    """The dead letters of all sinks of a pipeline. The connection to write is opened at the first ``send``."""

    def __init__(self, client: ClientSettings, pipeline: str) -> None:
        self._client = client
        self.name = control_topic(pipeline, DEAD_LETTERS)
        self._producer: Producer | None = None

    def read(self) -> tuple[list[DeadLetter], list[UnreadableDeadLetter]]:
        """The dead letters that are there now, oldest first; none where the topic doesn't exist. Raises Unavailable.

        Events' values are as large as rows, so they aren't kept.
        """
        by_key: dict[bytes, DeadLetter | UnreadableDeadLetter] = {}
        if not TopicAdmin(self._client).exists(self.name):
            return [], []
        for record in TopicReader(self._client).records(self.name):
            by_key.pop(record.key, None)  # so that the order is that of the newest records
            if record.value is not None:
                by_key[record.key] = read_dead_letter(record.key, record.value, record.offset)
        readable = [record for record in by_key.values() if isinstance(record, DeadLetter)]
        return readable, [record for record in by_key.values() if isinstance(record, UnreadableDeadLetter)]

    def values(self, dead_letters: Collection[DeadLetter]) -> Iterator[tuple[DeadLetter, bytes | None]]:
        """These dead letters with their events' values, without those that were closed and compacted since."""
        by_offset = {dead_letter.record_offset: dead_letter for dead_letter in dead_letters}
        if not by_offset:
            return
        for record in TopicReader(self._client).records(self.name, {0: min(by_offset)}):
            dead_letter = by_offset.pop(record.offset, None)
            if dead_letter is not None and record.value is not None:
                yield dead_letter, event_value(record.value)
            if not by_offset:
                return

    def send(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write dead letters, or remove those without a value; return once all in-sync replicas have them.

        Sending them twice changes nothing. Raises Unavailable when the brokers don't answer, LockstepError when they
        refuse a record.
        """
        producer = self._connect()
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            for key, value in records:
                deadline = time.monotonic() + _DELIVERY_TIMEOUT_S
                while True:
                    try:
                        producer.produce(self.name, key=key, value=value, on_delivery=delivered)
                        break
                    except BufferError:  # the client's own queue is full of what is on its way
                        if time.monotonic() > deadline:
                            raise
                        producer.poll(0.1)
                producer.poll(0)
            unsent = producer.flush(_DELIVERY_TIMEOUT_S + 5)
        except BufferError as error:
            raise Unavailable("the dead-letter topic takes no more records: Kafka doesn't answer") from error
        except KafkaException as error:
            failures.append(error.args[0])
            unsent = 0
        if unsent:
            raise Unavailable(f"{unsent} dead letters didn't reach topic {self.name}")
        if failures:
            self._refuse(failures[0])

    def _refuse(self, error: KafkaError) -> None:
        timed_out = error.code() in {KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT}
        if error.retriable() or timed_out:
            raise Unavailable(f"rejected events didn't reach topic {self.name}: {error.str()}")
        raise LockstepError(
            f"rejected events can't be kept in topic {self.name}: {error.str()}",
            hint="nothing was lost: the batch is read again; the topic must exist and take records as large as the"
            " tables'",
        )

    def _connect(self) -> Producer:
        if self._producer is None:
            self._producer = new_client(
                Producer,
                {
                    **self._client,
                    "acks": "all",
                    "enable.idempotence": True,
                    "delivery.timeout.ms": _DELIVERY_TIMEOUT_S * 1000,
                    "message.max.bytes": _RECORD_BYTES_MAX,
                    "compression.type": "lz4",
                },
            )
        return self._producer
