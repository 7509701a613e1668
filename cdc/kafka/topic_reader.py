"""Reads what is committed on a table's topic, from its beginning to its present end."""

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Message

from cdc.event_format.decode import DELETED, op_of, tag_of
from cdc.kafka.reading import WAIT_S, message_lists, reading
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.tag import SNAPSHOT_SEQ, TAG_HEADER, tag_text
from cdc.spilling import SpillingMap


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. ``value`` is None for a tombstone. ``key`` is empty if the record has none, so isn't ours.
    ``tag`` is its header, "" without one, or if tags weren't requested."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    tag: str = ""


class TopicReader:
    """Answers questions about what was published, including everything committed before the question. ``while_waiting``
    is called now and then, since a topic may be large."""

    def __init__(
        self,
        client: Mapping[str, str | int],
        while_waiting: Callable[[], None] = lambda: None,
        *,
        directory: Path | None = None,
        with_tags: bool = False,
    ) -> None:
        """``directory`` is for keys that don't fit into memory; the default is that of temporary files. ``with_tags``:
        records have the tags of their headers."""
        self._with_tags = with_tags
        self._directory = directory or Path(tempfile.gettempdir())
        self._client = client
        self._cluster = TopicAdmin(client)
        self._while_waiting = while_waiting

    def records(self, topic: str, start: Mapping[int, int] | None = None) -> Generator[Record, None, None]:
        """Every committed record, partition after partition, each from its ``start`` (else its beginning) on. Raises
        Unavailable if the brokers stop answering, and if they don't list the topic."""
        with closing(self.record_lists(topic, start)) as lists:
            for records in lists:
                yield from records

    def record_lists(
        self, topic: str, start: Mapping[int, int] | None = None, *, wait_s: float = WAIT_S
    ) -> Generator[list[Record], None, None]:
        """``records`` in lists of those that have come, empty if none comes in ``wait_s``."""
        partitions = partitions_of([topic], self._cluster.partition_counts([topic]))
        # The ends include open transactions. A transaction that was just committed may still lack its markers. Until
        # they are written, a read-committed consumer sees the topic end before it.
        ends = self._cluster.end_offsets(partitions, while_waiting=self._while_waiting)
        with reading(self._client, [topic]) as consumer:
            for at in partitions:
                limits = {at: ((start or {}).get(at[1], 0), ends[at])}
                for portion in message_lists(consumer, limits, while_waiting=self._while_waiting, wait_s=wait_s):
                    yield [self._record(message) for message in portion]

    def _record(self, message: Message) -> Record:
        key, value = message.key(), message.value()
        assert key is None or isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        tag = _tag(message) if self._with_tags else ""
        return Record(message.partition() or 0, message.offset() or 0, key or b"", value, tag)

    def has_records(self, topic: str) -> bool:
        """Whether anything committed is on the topic, even a tombstone. Raises as ``records``."""
        with closing(self.records(topic)) as records:
            return next(records, None) is not None

    def live_keys(self, topic: str) -> Iterator[bytes]:
        """The keys whose newest event isn't a delete. The whole topic is read before the first of them. Records that
        aren't events are skipped: they belong to no row. Raises as ``records``, and as SpillingMap."""
        with self.live_key_set(topic) as keys:
            yield from keys

    def key_set(self) -> SpillingMap:
        """An empty set of keys, for the caller to fill and to close."""
        return SpillingMap(self._directory)

    def live_key_set(self, topic: str) -> SpillingMap:
        """``live_keys`` as a set, for the caller to remove keys from and to close."""
        keys = self.key_set()
        try:
            for record in self.records(topic):
                op = DELETED if record.value is None else op_of(record.value)
                if op == DELETED:
                    keys.discard(record.key)
                elif op:
                    keys[record.key] = b""
        except BaseException:
            keys.close()
            raise
        return keys

    def row_before(self, topic: str, key: bytes, prefix: bytes) -> bytes | None:
        """The event of the row that a key had before the transaction with this tag prefix; None if it had none.

        Only the transaction's own events are skipped. A copy's row may have its prefix, or a greater one if a first
        snapshot was resumed; it was still published before the transaction. This reads the whole topic, for rare
        changes that can't be distinguished otherwise. Raises as ``records``.
        """
        copied = tag_text(prefix, SNAPSHOT_SEQ)
        event = None
        for record in self.records(topic):
            if record.key == key and record.value is not None:
                tag = tag_of(record.value)
                if tag.startswith(prefix) and tag != copied:
                    continue
                event = None if op_of(record.value) == DELETED else record.value
        return event


def _tag(message: Message) -> str:
    text = dict(message.headers() or []).get(TAG_HEADER)
    return text.decode(errors="replace") if isinstance(text, bytes) else ""
