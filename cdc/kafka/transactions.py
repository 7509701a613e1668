"""Kafka transactions of one producer: any number of events, then a commit that shows all of them at once. Every wait is
divided into slices of at most a second, with ``while_waiting`` called between them. So the source's connection is kept
alive however long Kafka takes."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import batch_bytes, new_client
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.producer_refusals import ProducerRefusals, RefusedRecords, errors_of_its_own
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, partitions_of
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.tag import TAG_HEADER
from cdc.model.timeouts import KAFKA_TAKES_NOTHING_S

OnDelivery = Callable[[KafkaError | None, Message], None]

QUEUE_BYTES: Final = 32 * 1024 * 1024
"""Bytes that wait for the broker; beyond this, reading stops. More would only take memory: a broker has two such
batches."""

_SLICE_S = 1.0
TRANSACTION_TIMEOUT_MS = 60_000
"""After this the broker aborts what a hung process left open; until then its readers wait."""

LINGER_MS: Final = 5
"""Events of a backlog come so close that this makes fuller batches. Those of a quiet stream are committed before."""

_HELD_EVENTS: Final = 100
_HELD_BYTES: Final = 256 * 1024
"""How much of a transaction is held back until its commit. The client adds the partitions of all that it gets at once
to the transaction in one request, together with those of the state. Sent as they come, events need one more request."""

_MARKERS_S = 0.003
"""Time for the brokers to write the last transaction's markers. They reject a transaction that begins earlier, and the
client retries after 20 ms. Measured: a pause of 2 to 4 ms shortens a small commit from 32 ms to 9."""

_VALUE_OVERHEAD_BYTES = 64 * 1024
_MESSAGES_IN_QUEUE = 2
"""At least so many of the largest messages fit into the queue: one that never fits would wait for ever."""


class _Ends:
    """Where all that was written to each partition ends, as far as its deliveries show. For few events, delivery
    reports cost less than asking the brokers, which takes two requests. For many they cost more."""

    def __init__(self, *, hears_deliveries: bool) -> None:
        self._hears_deliveries = hears_deliveries
        self._ends: dict[tuple[str, int], int] = {}
        self._lost: set[str] = set()

    def lose(self, topic: str) -> None:
        """Something is written there without a delivery report."""
        self._lost.add(topic)

    def listener(self, topic: str) -> OnDelivery | None:
        """The callback for a record written to this topic; None if its delivery isn't reported."""
        if self._hears_deliveries:
            return self._delivered
        self.lose(topic)
        return None

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        topic, partition, offset = record.topic(), record.partition(), record.offset()
        if error is None and topic is not None and partition is not None and offset is not None and offset >= 0:
            self._ends[topic, partition] = offset + 1
        elif topic is not None:  # a record that was sent twice has no reported offset
            self.lose(topic)

    def of(
        self,
        partitions: Sequence[tuple[str, int]],
        ask: Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], int]],
    ) -> Mapping[tuple[str, int], int]:
        """The ends of all partitions of some topics, once what was written is delivered. ``ask`` is called for unknown
        ones."""
        if unknown := [at for at in partitions if at[0] in self._lost or at not in self._ends]:
            self._ends |= ask(unknown)
            self._lost.difference_update(topic for topic, _ in partitions)
        return self._ends


class Transactions:
    """One transactional producer. ``start`` fences every older one of the same ``transactional_id``. Raises as
    ``new_client``.

    ``send`` any number of events, then ``commit_events``. All methods raise Unavailable if the open batch is lost: the
    caller restarts from the committed state, and finds out whether another process took over. They raise LockstepError
    if the brokers refuse.
    """

    def __init__(
        self,
        client: Mapping[str, str | int],
        transactional_id: str,
        sizes: LargeRows,
        *,
        while_waiting: Callable[[], None] = lambda: None,
        new_topic: Callable[[str], TopicPlan | None] = lambda _: None,
        linger_ms: int = LINGER_MS,
        control: Collection[str] = (),
    ) -> None:
        """``sizes`` says how large records may be, and from which topics larger ones are left out; otherwise they are
        an error. ``new_topic`` returns the plan of a missing topic; None: it may not be created. ``linger_ms`` is how
        long an event waits for more of its partition, in milliseconds, unless it is committed. ``control`` are topics
        that accept larger records."""
        self._cluster = TopicAdmin(client)
        self._sizes = sizes
        self._while_waiting = while_waiting
        self._new_topic = new_topic
        self._partitions: dict[str, int] = {}
        self._held: list[tuple[str, bytes, bytes | None, bytes | list[tuple[str, bytes]] | None]] = []
        self._held_bytes = 0
        self._open = False
        self._opened_s = 0.0
        self._committed = 0.0
        refused = RefusedRecords()
        self._refusals = ProducerRefusals(
            self._cluster, sizes, refused, client=client, control=control, timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        smaller = [limit.size for limit in (sizes.limits or {}).values()]
        # A producer that hears refusals hears no other deliveries.
        self._ends = _Ends(hears_deliveries=not smaller)
        largest = sizes.max_message_bytes + _VALUE_OVERHEAD_BYTES
        self._producer = new_client(
            Producer,
            {
                **client,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "partitioner": "murmur2_random",  # as Java's clients do, so that any other producer agrees
                "compression.type": "lz4",
                "linger.ms": linger_ms,  # a flush doesn't wait for it; a backlog gets fuller batches
                "batch.size": batch_bytes(sizes.max_message_bytes, *smaller),
                "queue.buffering.max.kbytes": max(QUEUE_BYTES, _MESSAGES_IN_QUEUE * largest) // 1024,
                "queue.buffering.max.messages": 1_000_000,
                "message.max.bytes": largest,
                # The next transaction often starts before the last one's markers are written.
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 1000,
                # It makes each record cost more, so it is set only if some record may be refused.
                **({"on_delivery": refused, "delivery.report.only.error": True} if smaller else {}),
            },
        )
        self._produce = self._producer.produce

    def start(self) -> None:
        """Fence older processes; whatever they had open is aborted before this returns."""
        self._patiently("init_transactions", self._producer.init_transactions)
        self._partitions = self._cluster.all_partition_counts()

    def send(
        self, topic: str, key: bytes, value: bytes | None, extra: bytes | list[tuple[str, bytes]] | None = None
    ) -> None:
        """Add an event to the open batch; ``extra`` is a tombstone's tag or headers. Blocks while the queue is full. A
        missing topic is created if ``new_topic`` has a plan. Otherwise it was lost, which raises Unavailable: a new
        start creates it as it must be, and publishes its content again."""
        self._touch(topic, 1)
        if value is not None and topic in self._sizes:
            value = self._sizes.fitted(topic, key, value)
        if self._may_hold(1, len(value or b"")):
            self._held.append((topic, key, value, extra))
        else:
            self._ends.lose(topic)
            self._add(topic, key, value, extra)

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """``send`` for keys and values of one topic."""
        self._touch(topic, len(rows))
        if topic in self._sizes:
            rows = [(key, self._sizes.fitted(topic, key, value)) for key, value in rows]
        if not self._open and self._may_hold(len(rows), sum(len(value) for _, value in rows)):
            self._held += [(topic, key, value, None) for key, value in rows]
            return
        self._ends.lose(topic)
        produce = self._produce
        for key, value in rows:
            try:
                produce(topic, value, key)
            except (BufferError, KafkaException):
                self._add(topic, key, value)  # waits, or raises the proper error

    def _may_hold(self, events: int, size: int) -> bool:
        """Whether so much more is held until the commit. Otherwise everything held before is sent."""
        if not self._open and len(self._held) + events <= _HELD_EVENTS and self._held_bytes + size <= _HELD_BYTES:
            self._held_bytes += size
            return True
        self._send_held()
        return False

    def _send_held(self) -> None:
        """Send what is held; begins the transaction if needed."""
        if not self._open:
            self._begin()
        held, self._held, self._held_bytes = self._held, [], 0
        for event in held:
            self._add(*event, on_delivery=self._ends.listener(event[0]))

    def _touch(self, topic: str, events: int) -> None:
        """So many events are sent to a topic next."""
        if topic not in self._partitions:
            self._create(topic)

    def _create(self, topic: str) -> None:
        plan = self._new_topic(topic)
        if plan is None:
            raise Unavailable(f"topic {topic} doesn't exist any more")
        self._cluster.create([plan])
        self._partitions |= self._cluster.partition_counts([topic])

    def _add(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        extra: bytes | list[tuple[str, bytes]] | None = None,
        *,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        deadline = None
        options: dict[str, Any] = {} if on_delivery is None else {"on_delivery": on_delivery}
        if extra is not None:
            options["headers"] = [(TAG_HEADER, extra)] if isinstance(extra, bytes) else extra
        while True:
            try:
                self._produce(topic, value, key, **options)
                return
            except BufferError:
                self._call("poll", self._producer.poll, 0.05)
                self._while_waiting()
                deadline = deadline or time.monotonic() + KAFKA_TAKES_NOTHING_S
                if time.monotonic() > deadline:
                    raise Unavailable(f"Kafka took nothing of a full batch in {KAFKA_TAKES_NOTHING_S:.0f} s") from None
            except KafkaException as error:
                raise self._error(error, topic=topic, size=len(value or b"")) from error

    def commit_events(self) -> None:
        """Commit what was sent, if anything. When this returns, a read-committed reader sees all of it."""
        if self._held:
            self._send_held()
        if self._open:
            self._commit()

    def _commit(self) -> None:
        self._patiently("commit_transaction", self._producer.commit_transaction)
        self._committed = time.monotonic()
        self._open = False

    def end_of(self, topic: str) -> int:
        """Where the first partition of a topic ends once the open batch is committed. Waits until all was sent."""
        if self._held:
            self._send_held()
        self.flush()
        self._ends.lose(topic)
        return self._bounds({topic})[topic][0]

    def serve(self) -> None:
        """Let the client do its housekeeping. Cheap; call it every few thousand events."""
        self._call("poll", self._producer.poll, 0)

    def close(self) -> None:
        """Abort what is open, as far as the broker allows in a moment; the broker does the remainder itself."""
        if self._open:
            try:
                with errors_of_its_own():
                    self._producer.purge()
                    self._producer.abort_transaction(_SLICE_S)
            except KafkaException:
                return  # the transaction times out on the broker, or the next process's start aborts it
            self._open = False

    def _begin(self) -> None:
        pause_s = self._committed + _MARKERS_S - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        self._call("begin_transaction", self._producer.begin_transaction)
        self._open = True
        self._opened_s = time.monotonic()

    def _call(self, doing: str, call: Callable[..., Any], *arguments: object) -> Any:
        """Any call of the client can be the first to learn that we were fenced."""
        try:
            with errors_of_its_own():
                return call(*arguments)
        except KafkaException as error:
            raise self._error(error, doing=doing) from error

    def flush(self) -> None:
        fewest, moved = None, time.monotonic()
        while left := self._call("flush", self._producer.flush, _SLICE_S):
            self._while_waiting()
            if fewest is None or left < fewest:
                fewest, moved = left, time.monotonic()
            elif time.monotonic() - moved > KAFKA_TAKES_NOTHING_S:
                raise Unavailable(f"Kafka took nothing of the batch for {KAFKA_TAKES_NOTHING_S:.0f} s")

    def _bounds(self, topics: set[str]) -> dict[str, tuple[int, ...]]:
        """Where all that we have written to these topics ends, our open transaction's events included."""
        if not topics:
            return {}
        if unknown := topics - self._partitions.keys():
            self._partitions |= self._cluster.partition_counts(unknown)
        partitions = partitions_of(topics, self._partitions)
        ends = self._ends.of(partitions, partial(self._cluster.end_offsets, while_waiting=self._while_waiting))
        return {t: tuple(ends[t, p] for p in range(self._partitions[t])) for t in sorted(topics)}

    def _patiently(self, name: str, call: Callable[[float], object]) -> None:
        """Repeat the call after each time-out, which the client allows and resumes."""
        deadline = time.monotonic() + KAFKA_TAKES_NOTHING_S
        while True:
            try:
                with errors_of_its_own():
                    call(_SLICE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise self._error(error, doing=name) from error
                self._while_waiting()

    def _error(self, error: KafkaException, *, doing: str = "produce", topic: str = "", size: int = 0) -> LockstepError:
        open_s = time.monotonic() - self._opened_s if self._open else 0.0
        return self._refusals.error(error, self._producer, doing=doing, open_s=open_s, topic=topic, size=size)
