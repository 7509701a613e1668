"""Reads the control topics: everything in a compacted one, or what is new on the progress topic."""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.kafka.consumer import close_consumer, open_consumer
from cdc.kafka.reading import messages, reading
from cdc.kafka.topic_admin import TopicAdmin, partitions_of, reason
from cdc.kafka.topic_names import PROGRESS, SCHEMA, STATE, control_topic
from cdc.model.errors import ForeignRecord, Unavailable
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import CaptureState, ProgressRecord, SchemaRecord, TopicIdentity, is_schema_key
from cdc.protocol.copy_ledger import CopiedRange, is_range_key

ClientSettings = Mapping[str, str | int]

_TAIL_OFFSETS = 100
"""How far before its end the progress topic is read first."""

_FOLLOW_WAIT_MS = 1
"""The marker of a transaction follows its last record, so a reader learns from an answer without records that the topic
ends there. A broker that holds that request would delay the reader too. Between reads, the reader requests nothing."""

_LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""The client's errors for an offset that a topic no longer has."""

_BELL_WAIT_MS = 2000
"""How long the broker holds a bell's request until something is written."""

_LOOK_MS = 5_000
_ASK_MS = 500
"""How often a reader that listens to a bell asks the brokers: in any case, and while the bell is silent."""

_RINGS_AT_ONCE = 1000
"""Messages that came meanwhile count as one ring."""

_FORGED_MAX = 100
"""The most foreign records that are skipped in place of a state, since each may be large."""


def _committed_end(cluster: TopicAdmin, topic: str) -> int:
    return cluster.committed_ends([(topic, 0)])[topic, 0]


def _committed(client: ClientSettings, topic: str) -> Iterator[Message]:
    """All committed records of a one-partition topic, in order. Raises Unavailable."""
    with reading(client, [topic]) as consumer:
        yield from messages(consumer, {(topic, 0): (0, _committed_end(TopicAdmin(client), topic))})


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The newest record of a key: its value, and its place in words."""

    value: bytes
    what: str


def _what(message: Message) -> str:
    return record_at(message.topic() or "", message.offset() or 0)


def record_at(topic: str, offset: int) -> str:
    """A record of a one-partition topic, as errors name it."""
    return f"the record at offset {offset} of topic {topic}"


def read_compacted(client: ClientSettings, topic: str) -> dict[bytes, StoredRecord]:
    """The newest record of every key of a one-partition topic, read-committed, in order of their offsets. Raises
    Unavailable if the broker doesn't answer and LockstepError if the topic doesn't exist."""
    return read_compacted_topics(client, [topic])[topic]


def read_compacted_topics(client: ClientSettings, topics: Sequence[str]) -> dict[str, dict[bytes, StoredRecord]]:
    """``read_compacted`` for several topics at once. Raises as that, for the first topic that fails."""
    if not topics:
        return {}
    cluster = TopicAdmin(client)
    cluster.require(topics)
    ends = cluster.committed_ends([(topic, 0) for topic in topics])
    # Opened only if there is something to read, since its first requests take 50 ms.
    with reading(client, topics) as consumer:
        return _newest(topics, messages(consumer, {at: (0, end) for at, end in ends.items()}))


def _newest(topics: Collection[str], read: Iterable[Message]) -> dict[str, dict[bytes, StoredRecord]]:
    newest: dict[str, dict[bytes, StoredRecord]] = {topic: {} for topic in topics}
    for message in read:
        records = newest[message.topic() or ""]
        key, value = message.key(), message.value()
        if not isinstance(key, bytes):
            continue  # not ours, and it can't replace a record of ours
        records.pop(key, None)  # keeps the order that of the newest records
        if isinstance(value, bytes):
            records[key] = StoredRecord(value, _what(message))
    return newest


def read_state(client: ClientSettings, prefix: str, slot: str) -> CaptureState | None:
    """Capture's state of this slot, or None if it never ran. If another program has overwritten it, this is the last
    one of capture's own that the topic still has. Raises as ``read_compacted``, ForeignRecord, and LockstepError for a
    state of another version."""
    topic = control_topic(prefix, STATE)
    record = read_compacted(client, topic).get(slot.encode())
    if record is None:
        return None
    try:
        return CaptureState.from_bytes(record.value, record.what)
    except ForeignRecord:
        for earlier in reversed(_records_of_key(client, topic, slot.encode())):
            with suppress(ForeignRecord):
                return CaptureState.from_bytes(earlier.value, earlier.what)
        raise


def _records_of_key(client: ClientSettings, topic: str, key: bytes) -> Sequence[StoredRecord]:
    """The newest records of a key that a one-partition topic still has, in order, without tombstones."""
    found: deque[StoredRecord] = deque(maxlen=_FORGED_MAX)
    for message in _committed(client, topic):
        value = message.value()
        if message.key() == key and isinstance(value, bytes):
            found.append(StoredRecord(value, _what(message)))
    return found


def read_copied_ranges(client: ClientSettings, prefix: str, slot: str) -> list[CopiedRange]:
    """The ledger of this slot's first copy, until that is done. Raises as ``read_state``."""
    return copied_ranges(read_compacted(client, control_topic(prefix, STATE)), slot)


def copied_ranges(records: Mapping[bytes, StoredRecord], slot: str) -> list[CopiedRange]:
    """The ledger among the records of ``__state``. Raises as ``read_state``."""
    ranges = [CopiedRange.from_bytes(record.value, record.what) for key, record in records.items() if is_range_key(key)]
    return [copied for copied in ranges if copied.slot == slot]


def read_schema_records(client: ClientSettings, prefix: str) -> list[SchemaRecord]:
    """Every shape that any table ever had, in the order in which they held. A table may have had one several times.
    Foreign records are skipped, unless one may have replaced a shape. Raises as ``read_state``."""
    return list(schema_records(read_compacted(client, control_topic(prefix, SCHEMA))))


def schema_records(records: Mapping[bytes, StoredRecord]) -> Iterator[SchemaRecord]:
    """The shapes among the records of ``__schema``. Raises as ``read_schema_records``."""
    for key, record in records.items():
        try:
            yield SchemaRecord.from_bytes(record.value, record.what)
        except ForeignRecord:
            if is_schema_key(key):
                raise


def read_shapes(client: ClientSettings, prefix: str) -> dict[str, Table]:
    """Every shape that any table ever had, by schema id. Raises as ``read_state``."""
    return {record.table.schema_id: record.table for record in read_schema_records(client, prefix)}


def read_tables(client: ClientSettings, prefix: str) -> dict[TableName, Table]:
    """Every table's newest shape. Raises as ``read_state``."""
    return {record.table.name: record.table for record in read_schema_records(client, prefix)}


def read_progress(client: ClientSettings, prefix: str) -> Iterator[ProgressRecord]:
    """All that the progress topic still holds, oldest first. Raises Unavailable, and as ``_progress_record``."""
    for message in _committed(client, control_topic(prefix, PROGRESS)):
        if (record := _progress_record(message)) is not None:
            yield record


def _progress_record(message: Message) -> ProgressRecord | None:
    """None for a record that isn't ours: nothing is lost, since capture's bounds are in its own records. Raises
    LockstepError for one of another version."""
    value = message.value()
    try:
        return ProgressRecord.from_bytes(value if isinstance(value, bytes) else None, _what(message))
    except ForeignRecord:
        return None


@dataclass(frozen=True, slots=True)
class Heard:
    """All committed records of ``__progress`` from offset ``start`` on that lie below ``end``."""

    start: int
    end: int
    messages: Sequence[Message]


class ProgressReader:
    """Follows ``__progress``; keep one open and call it repeatedly.

    It doesn't need the topic's history. After the newest record was read, the topics' end offsets lie above all that
    was published before it, and an upper bound is always safe. So the first answer is one record: the newest LSN, with
    those end offsets as bounds of all ``topics``. Later answers hold what is new.
    """

    def __init__(
        self, client: ClientSettings, prefix: str, topics: Sequence[str], *, watched: Collection[str] = ()
    ) -> None:
        """``identities`` covers the ``watched`` topics."""
        self._client = client
        self._topic = control_topic(prefix, PROGRESS)
        self._topics = tuple(topics)
        self._watched = frozenset(watched)
        self._consumer: Consumer | None = None
        self._cluster = TopicAdmin(client)
        self._next: int | None = None
        self._topic_id = ""
        self.known_at_ms = 0
        """The answers so far include all that was committed by then; in milliseconds since 1970."""
        self.identities: Mapping[str, TopicIdentity] = {}
        """The watched topics that the last records bound, as of after those were read."""

    def new_records(self, heard: Sequence[Heard] | None = None) -> list[ProgressRecord]:
        """The committed records since the last call that returned, oldest first.

        ``heard`` is what a ``LogBell`` has heard since then; None without a bell. If it has something new, and nothing
        is missing before that, the topic itself is checked only every five seconds: a process that hung doesn't know
        how old the news is. If it has nothing, the topic is checked twice a second.
        If Kafka has lost some records, by age or because the topic was recreated, this is one record with new bounds of
        all topics, as in the first answer.
        Raises Unavailable, and LockstepError for a record of another version; the next call then returns everything
        that this one would have.
        """
        try:
            records, following = self._of(heard or ())
            known_at_ms = self.known_at_ms
            asked_at_ms = time.time_ns() // 1_000_000
            has_news = following != self._next
            is_recent = 0 <= asked_at_ms - known_at_ms < (_LOOK_MS if has_news else _ASK_MS)
            if heard is None or records is None or not is_recent:
                known_at_ms = asked_at_ms
                high = _committed_end(self._cluster, self._topic)
                if self._next == high:
                    self.known_at_ms = known_at_ms
                    return []
                records, following = None, high
                if self._next is not None and self._next < high:
                    records, following = self._since(self._next, high)
            elif not has_news:
                return []
            # Offsets don't reveal a topic that was recreated and has grown since. That matters only if there is
            # something new.
            if records is None or self._id(records) != self._topic_id:
                records, following = self._anew()
        except (KafkaException, Unavailable) as error:
            # A consumer may get nothing for ever from a broker that was restarted; a new one does.
            self.close()
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"topic {self._topic} can't be read: {reason(error)}") from error
        self._next, self.known_at_ms = following, known_at_ms
        return records

    @property
    def next_offset(self) -> int:
        """Where the topic continues after the last answer; where it ended, before the first."""
        return self._next if self._next is not None else self._range()[1]

    def _of(self, heard: Sequence[Heard]) -> tuple[list[ProgressRecord] | None, int | None]:
        """The new records in ``heard``, and the next offset to read; None for the records if some are missing."""
        records: list[ProgressRecord] = []
        following = self._next
        for part in heard:
            if following is None or part.start > following:
                return None, self._next
            new = [message for message in part.messages if (message.offset() or 0) >= following]
            records += [record for message in new if (record := _progress_record(message)) is not None]
            following = max(following, part.end)
        return records, following

    def _range(self) -> tuple[int, int]:
        partition = (self._topic, 0)
        return self._cluster.begin_offsets([partition])[partition], _committed_end(self._cluster, self._topic)

    def _id(self, records: Iterable[ProgressRecord] = ()) -> str:
        """The topic's id. The same request gets the identities of the topics that the records bound."""
        bounded = self._watched.intersection(topic for record in records for topic in record.bounds)
        identities = self._cluster.identities([self._topic, *bounded])
        self.identities = {topic: identities[topic] for topic in bounded}
        return identities[self._topic].topic_id

    def _anew(self) -> tuple[list[ProgressRecord], int]:
        """The first answer, and the next offset to read, both of the same incarnation of the topic."""
        while True:
            topic_id = self._id()
            records, following = self._newest(*self._range())
            if self._id(records) == topic_id:
                self._topic_id = topic_id
                return records, following

    def _newest(self, low: int, high: int) -> tuple[list[ProgressRecord], int]:
        tail = _TAIL_OFFSETS
        while True:
            start = max(low, high - tail)
            records, following = self._read(start, high)
            if records:
                newest = records[-1]
                return [replace(newest, bounds=self._end_offsets())], following
            if start == low:
                return [], following
            tail *= 10  # only transaction markers so far

    def _since(self, start: int, end: int) -> tuple[list[ProgressRecord] | None, int]:
        """``_read``, with None if Kafka has deleted some of the records."""
        try:
            return self._read(start, end)
        except KafkaException as error:
            if error.args[0].code() not in _LOST:
                raise
            self.close()
            return None, end

    def _read(self, start: int, end: int) -> tuple[list[ProgressRecord], int]:
        """The records, and the next offset after all that was read, transaction markers included."""
        records = []
        following = end
        if self._consumer is None:
            self._consumer = open_consumer(
                self._client, [self._topic], fetch_wait_ms=_FOLLOW_WAIT_MS, lost_is_error=True
            )
        for message in messages(self._consumer, {(self._topic, 0): (start, end)}):
            record = _progress_record(message)
            following = max(following, (message.offset() or 0) + 1)
            if record is not None:
                records.append(record)
        # Otherwise the client requests what comes next, and the next read's request waits behind that one.
        self._consumer.unassign()
        return records, following

    def _end_offsets(self) -> dict[str, tuple[int, ...]]:
        counts = self._cluster.partition_counts(self._topics)
        ends = self._cluster.end_offsets(partitions_of(self._topics, counts))
        return {topic: tuple(ends[topic, p] for p in range(counts[topic])) for topic in self._topics}

    def close(self) -> None:
        """End the connection; the next call opens another one."""
        if self._consumer is not None:
            close_consumer(self._consumer)
            self._consumer = None


class LogBell:
    """Rings when something was committed to ``__progress`` or ``__schema``, for a caller with nothing else to wait for.
    It costs a request every two seconds, and one per ring. Asking repeatedly where topics end costs more, the more
    topics there are. Opened at the first use."""

    def __init__(self, client: ClientSettings, prefix: str) -> None:
        self._client = client
        self._topics = [control_topic(prefix, kind) for kind in (PROGRESS, SCHEMA)]
        self._consumer: Consumer | None = None
        self._has_heard_error = False
        self._next: int | None = None
        """The next offset of ``__progress`` after all that has come. The first record or end that arrives sets it."""
        self.heard: Heard | None = None
        """The records of ``__progress`` since the previous ring. None if there may be others."""

    def rings(self, timeout_s: float) -> bool:
        """Wait for it. The commit may be long past. Raises as ``new_client``. It rings once at the beginning, for
        earlier commits. It may ring for nothing, and does so when a connection breaks, so that the caller checks. It
        may also stay silent: never depend on it."""
        if self._consumer is None:
            heard = {**self._client, "error_cb": self._hear_error}
            self._consumer = open_consumer(heard, self._topics, fetch_wait_ms=_BELL_WAIT_MS, lost_is_error=True)
            # It stays assigned: a new request would wait behind the one that the broker holds.
            self._consumer.assign([TopicPartition(topic, 0, OFFSET_END) for topic in self._topics])
            self._next = None
        self.heard = None
        message = self._consumer.poll(timeout_s)
        if message is not None:
            self._hear([message, *self._consumer.consume(_RINGS_AT_ONCE, 0)])
        has_heard_error, self._has_heard_error = self._has_heard_error, False
        return has_heard_error or message is not None

    def _hear(self, messages: Sequence[Message]) -> None:
        errors = {error.code() for message in messages if (error := message.error()) is not None}
        if errors - {KafkaError._PARTITION_EOF}:
            self._next = None  # records may be lost
            if errors & set(_LOST):
                self.close()
            return
        of_progress = [each for each in messages if each.topic() == self._topics[0]]
        records = [each for each in of_progress if each.error() is None]
        if self._next is None:
            if of_progress:
                last = of_progress[-1]
                self._next = (last.offset() or 0) + (last.error() is None)
        elif records:
            end = (records[-1].offset() or 0) + 1
            self.heard = Heard(self._next, end, records)
            self._next = end

    def _hear_error(self, _: KafkaError) -> None:
        self._has_heard_error = True

    def close(self) -> None:
        """End the connection; the next call opens another one."""
        if self._consumer is not None:
            close_consumer(self._consumer)
            self._consumer = None
