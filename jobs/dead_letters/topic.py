"""A pipeline's dead-letter topic: reads, adds and removes dead letters."""

from collections.abc import Collection, Iterable, Iterator

from confluent_kafka import KafkaError, Producer

from cdc.kafka.control_topics import ClientSettings
from cdc.kafka.delivery import deliver, delivering_producer
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import DEAD_LETTERS, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError, Unavailable
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter, event_value, read_dead_letter


class DeadLetterTopic:
    """The dead letters of all sinks of a pipeline. The connection for writing is opened at the first ``send``."""

    def __init__(self, client: ClientSettings, pipeline: str) -> None:
        self._client = client
        self.name = control_topic(pipeline, DEAD_LETTERS)
        self._producer: Producer | None = None

    def read(self) -> tuple[list[DeadLetter], list[UnreadableDeadLetter]]:
        """The present dead letters, oldest first; none if the topic doesn't exist. Raises Unavailable. Events' values
        are as large as rows, so they aren't returned."""
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
        """Write dead letters, or remove those without a value; return once all in-sync replicas have them. Sending them
        twice changes nothing. Raises Unavailable if the brokers don't answer, LockstepError if they refuse a record."""
        if self._producer is None:
            self._producer = delivering_producer(self._client)
        refusal = deliver(self._producer, self.name, ((key, value, ()) for key, value in records))
        if refusal is not None:
            self._refuse(refusal)

    def _refuse(self, error: KafkaError) -> None:
        timed_out = error.code() in {KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT}
        if error.retriable() or timed_out:
            raise Unavailable(f"rejected events didn't reach topic {self.name}: {error.str()}")
        raise LockstepError(
            f"rejected events can't be kept in topic {self.name}: {error.str()}",
            hint="nothing was lost: the batch is read again; the topic must exist and take records as large as the"
            " tables'",
        )
