"""Publishes batches of events, each in one Kafka transaction together with the state and progress that describe it.

Everything blocks in slices of a second at most, and calls ``while_waiting`` between them. So the source's connection is
kept alive however long Kafka takes.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import batch_bytes, new_client
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.record_limits import RecordLimit, set_command
from cdc.kafka.topic_admin import (
    CONTROL_RECORD_BYTES,
    NOT_ALLOWED,
    WITHOUT_RIGHT,
    TopicAdmin,
    TopicPlan,
    partitions_of,
    reason,
)
from cdc.kafka.topic_names import PROGRESS, SCHEMA, STATE, control_topic, table_topic
from cdc.model.errors import LockstepError, TransactionTimedOut, Unavailable
from cdc.model.table import TableName
from cdc.model.timeouts import KAFKA_TAKES_NOTHING_S
from cdc.protocol.control_records import CaptureState, ProgressRecord, SchemaRecord, TableTexts
from cdc.protocol.envelope import TAG_HEADER

_SLICE_S = 1.0
TRANSACTION_TIMEOUT_MS = 60_000
"""After this the broker aborts what a hung process left open; until then its readers wait."""

LINGER_MS: Final = 5
"""Events of a backlog come so close that it makes fuller batches. Those of a quiet stream are committed before."""

PROGRESS_EVERY_S: Final = 0.1
"""How often a progress record is written under load. It needs a flush in the middle of its transaction, and after many
events a request to the brokers. Such a transaction takes up to twice as long as one that sends everything at once."""

_FEW_EVENTS: Final = 500
"""With more of them, a transaction counts as load."""

_HELD_EVENTS: Final = 100
_HELD_BYTES: Final = 256 * 1024
"""So much of a transaction is held back until its commit. The client adds the partitions of what it is given at once to
the transaction in one request, and those of the state with them. Sent as they come, events take one request more."""

_MARKERS_S = 0.003
"""Time for the brokers to write the last transaction's markers. They reject a transaction that begins earlier, and the
client tries again after 20 ms. Measured: a pause of 2 to 4 ms takes a small commit from 32 ms to 9."""

_VALUE_OVERHEAD_BYTES = 64 * 1024
_MESSAGES_IN_QUEUE = 2
"""As many of the largest messages fit into the queue at least: one that never fits would wait for ever."""

_FENCED_CODES = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)

_OUT_OF_STEP = (
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)
# The client's words for the same, where it makes an error of its own of it.
_DESYNCHRONIZED = "sequence desynchronization"

_TOO_LATE = (
    KafkaError._STATE,
    KafkaError._FATAL,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
)
"""What the client says of a call after the transaction has failed."""

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)

_REFUSED_FOR_GOOD = (
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_CONFIG,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.SECURITY_DISABLED,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.INVALID_RECORD,
)
"""A broker's answers that are the same whenever it is asked, until somebody changes a setting."""

# The client's words for what a broker has refused.
_REFUSED_BATCH: Final = re.compile(r"ProduceRequest for (?P<topic>\S+) \[\d+\] with (?P<records>\d+) message")

_NOTHING_SKIPPED: Final = "nothing was skipped: what is left out would lack in every sink, and nobody would be told"

OnDelivery = Callable[[KafkaError | None, Message], None]

_HEAR_S: Final = 2.0
"""How long it may take the client to tell which records were refused, once it has said that some were."""


class _RefusedRecords:
    """Hears of records that no broker took, and knows how large the largest of those was that are too large."""

    def __init__(self) -> None:
        self.bytes_max = 0

    def __call__(self, error: KafkaError | None, record: Message) -> None:
        if error is not None and error.code() in _TOO_LARGE:
            self.bytes_max = max(self.bytes_max, len(record))


@contextmanager
def _errors_of_its_own() -> Iterator[None]:
    """The client tells of deliveries also where it is to raise a fatal error. Python makes a SystemError of that."""
    try:
        yield
    except SystemError as error:
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise error.__cause__ from None


class _Ends:
    """Where all that was written to each partition ends, as far as its deliveries tell.

    Hearing of few deliveries costs less than asking the brokers, which takes two requests. Of many it costs more.
    """

    def __init__(self, *, hears_deliveries: bool) -> None:
        self._hears_deliveries = hears_deliveries
        self._ends: dict[tuple[str, int], int] = {}
        self._lost: set[str] = set()

    def lose(self, topic: str) -> None:
        """Something is written there of which no delivery tells."""
        self._lost.add(topic)

    def listener(self, topic: str) -> OnDelivery | None:
        """For a record that is written to this topic; None where nobody will be told."""
        if self._hears_deliveries:
            return self._delivered
        self.lose(topic)
        return None

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        topic, partition, offset = record.topic(), record.partition(), record.offset()
        if error is None and topic is not None and partition is not None and offset is not None and offset >= 0:
            self._ends[topic, partition] = offset + 1
        elif topic is not None:  # of one that was sent again, and was there already, nobody says where
            self.lose(topic)

    def of(
        self,
        partitions: Sequence[tuple[str, int]],
        ask: Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], int]],
    ) -> Mapping[tuple[str, int], int]:
        """All partitions of some topics, once what was written is delivered. ``ask`` is for those that aren't known."""
        if unknown := [at for at in partitions if at[0] in self._lost or at not in self._ends]:
            self._ends |= ask(unknown)
            self._lost.difference_update(topic for topic, _ in partitions)
        return self._ends


class TransactionalPublisher:
    """One transactional producer. ``start`` fences every older one of the same ``transactional_id``.

    Raises as ``new_client``.

    ``send`` any number of events, then ``commit``. All of them raise Unavailable when the open batch is lost: the
    caller starts over from the committed state, and finds out whether another process took over. They raise
    LockstepError when the brokers refuse.
    """

    def __init__(
        self,
        client: Mapping[str, str | int],
        *,
        prefix: str,
        transactional_id: str,
        queue_bytes: int,
        max_message_bytes: int,
        while_waiting: Callable[[], None],
        new_topic: Callable[[str], TopicPlan | None] = lambda _: None,
        progress_every_s: float = PROGRESS_EVERY_S,
        limits: Mapping[str, RecordLimit] | None = None,
        linger_ms: int = LINGER_MS,
        large_rows: LargeRows | None = None,
    ) -> None:
        """``new_topic`` says how a topic that doesn't exist is created; None: it may not be.

        ``limits`` are those of the topics that take smaller records than ``max_message_bytes``, as of a moment ago.
        None: nobody has looked, and nobody will where this one ends with Unavailable.

        ``large_rows`` leaves out rows that are too large for its topics. Without it, and on others, that is an error.

        ``progress_every_s`` is the time between two progress records, in seconds, where it isn't under load.
        ``linger_ms`` is how long an event waits for more of its partition, in milliseconds, unless it is committed.
        """
        self._progress_every_s = progress_every_s
        self._events = 0
        self._held: list[tuple[str, bytes, bytes | None, bytes | list[tuple[str, bytes]] | None]] = []
        self._held_bytes = 0
        self._new_topic = new_topic
        self._prefix = prefix
        self._topic_of: dict[TableName, str] = {}
        self._state_topic = control_topic(prefix, STATE)
        self._table_texts = TableTexts()
        self._progress_topic = control_topic(prefix, PROGRESS)
        self._schema_topic = control_topic(prefix, SCHEMA)
        self._cluster = TopicAdmin(client)
        self._partitions: dict[str, int] = {}
        self._while_waiting = while_waiting
        self._open = False
        self._opened_s = 0.0
        self._committed = 0.0
        self._progress_at = 0.0
        self._owes_progress = False
        self._touched: set[str] = set()
        self._max_message_bytes = max_message_bytes
        self._servers = client["bootstrap.servers"]
        self._limits = limits
        self._large_rows = large_rows or LargeRows()
        self._refused = _RefusedRecords()
        sizes = [limit.size for limit in (limits or {}).values()]
        # Where refusals are heard of, nothing else is.
        self._ends = _Ends(hears_deliveries=not sizes)
        self._producer = new_client(
            Producer,
            {
                **client,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "partitioner": "murmur2_random",  # as Java's clients do, so that any other producer agrees
                "compression.type": "lz4",
                "linger.ms": linger_ms,  # a flush doesn't wait for it; a backlog gets fuller batches
                "batch.size": batch_bytes(max_message_bytes, *sizes),
                "queue.buffering.max.kbytes": max(
                    queue_bytes, _MESSAGES_IN_QUEUE * (max_message_bytes + _VALUE_OVERHEAD_BYTES)
                )
                // 1024,
                "queue.buffering.max.messages": 1_000_000,
                "message.max.bytes": max_message_bytes + _VALUE_OVERHEAD_BYTES,
                # The next transaction often starts before the last one's markers are written.
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 1000,
                # Each record costs more with it: only where it is known that one may be refused.
                **({"on_delivery": self._refused, "delivery.report.only.error": True} if sizes else {}),
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
        """Add an event to the open batch; ``extra`` is a tombstone's tag or headers. Blocks while the queue is full.

        A topic that doesn't exist is created where ``new_topic`` says how. Else it was lost: Unavailable, since a new
        start creates it as it has to be, and publishes again what was on it.
        """
        self._touch(topic)
        self._events += 1
        if value is not None and topic in self._large_rows:
            value = self._large_rows.fitted(topic, key, value)
        if self._may_hold(1, len(value or b"")):
            self._held.append((topic, key, value, extra))
        else:
            self._ends.lose(topic)
            self._add(topic, key, value, extra)

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """The same for keys and values of one topic."""
        self._touch(topic)
        self._events += len(rows)
        if topic in self._large_rows:
            rows = [(key, self._large_rows.fitted(topic, key, value)) for key, value in rows]
        if not self._open and self._may_hold(len(rows), sum(len(value) for _, value in rows)):
            self._held += [(topic, key, value, None) for key, value in rows]
            return
        self._ends.lose(topic)
        produce = self._produce
        for key, value in rows:
            try:
                produce(topic, value, key)
            except (BufferError, KafkaException):
                self._add(topic, key, value)  # waits, or says what it is

    def _may_hold(self, events: int, size: int) -> bool:
        """Whether so much more is held until the commit, with what was before it. Else that is sent by now."""
        if not self._open and len(self._held) + events <= _HELD_EVENTS and self._held_bytes + size <= _HELD_BYTES:
            self._held_bytes += size
            return True
        self._send_held()
        return False

    def _send_held(self) -> None:
        """Begin the transaction, where that wasn't done, with what is held."""
        if not self._open:
            self._begin()
        held, self._held, self._held_bytes = self._held, [], 0
        for event in held:
            self._add(*event, on_delivery=self._ends.listener(event[0]))

    def _touch(self, topic: str) -> None:
        if not self._open and not self._held:
            self._events = 0
        if topic not in self._partitions:
            self._create(topic)
        self._touched.add(topic)

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
                raise self._translated(error, topic=topic, size=len(value or b"")) from error

    def commit(
        self,
        state: CaptureState,
        schemas: Sequence[SchemaRecord] = (),
        *,
        covering: Sequence[str] = (),
        progress: bool = True,
        interval_s: float | None = None,
    ) -> dict[tuple[str, int], int] | None:
        """Commit the open batch with its state. When this returns, a read-committed reader will see all of it.

        Returns the progress record's bounds, by topic and partition, where one was written.

        A progress record goes with it, or with a later one when the last was written a moment ago (``owes_progress``).
        While rows are being copied there is none: until the last row is there, nothing is known about what has been
        applied. In the middle of the stream ``progress`` is False then. The record tells ``interval_s``, the seconds
        between two commits by now, unless nobody knows. ``covering`` names topics whose end is recorded
        though no event touched them. The first commit of a process names all, since it doesn't know what an earlier
        process owed.
        """
        if not self._open and not self._held:
            self._events = 0
        self._send_held()
        slot = state.slot.encode()
        self._touched.update(covering)
        is_first_copy = state.is_first_copy
        with_progress = progress and not is_first_copy and (bool(covering) or self._progress_is_due())
        bounds: dict[str, tuple[int, ...]] = {}
        if with_progress:
            self._flush()
            for topic in covering:  # others have written there
                self._ends.lose(topic)
            bounds = self._bounds(self._touched)
            record = ProgressRecord(
                state.end_lsn,
                state.commit_time_ms,
                bounds,
                state.epoch,
                self._uncopied_topics(state),
                self._table_texts.selection(state),
                round((interval_s or 0.0) * 1000),
            )
            self._add(self._progress_topic, slot, record.to_bytes())
        for schema in schemas:
            self._add(self._schema_topic, schema.key(), schema.to_bytes())
        self._add(self._state_topic, slot, state.to_bytes(self._table_texts))
        self._patiently("commit_transaction", self._producer.commit_transaction)
        self._committed = time.monotonic()
        self._open = False
        self._owes_progress = not with_progress
        if not with_progress:
            return None
        self._touched.clear()
        self._progress_at = time.monotonic()
        return {(topic, partition): end for topic, ends in bounds.items() for partition, end in enumerate(ends)}

    def send_beside_state(self, key: bytes, value: bytes | None) -> None:
        """Add a record to the topic of the state; None removes the one of this key. Raises as ``send``."""
        self._send_held()
        self._add(self._state_topic, key, value)

    def commit_events(self) -> None:
        """Commit the open batch without a state: another publisher's describes it."""
        if self._held:
            self._send_held()
        if not self._open:
            return
        self._patiently("commit_transaction", self._producer.commit_transaction)
        self._committed = time.monotonic()
        self._open = False
        self._touched.clear()

    def _uncopied_topics(self, state: CaptureState) -> tuple[str, ...]:
        for name in state.copied.keys() - self._topic_of.keys():
            self._topic_of[name] = table_topic(self._prefix, name)
        copied = {self._topic_of[name] for name in state.copied}
        return tuple(sorted(state.topics.keys() - copied - {self._schema_topic}))

    def end_of(self, topic: str) -> int:
        """Where the first partition of a topic ends once the open batch is committed. Waits until all was sent."""
        if self._held:
            self._send_held()
        self._flush()
        self._ends.lose(topic)
        return self._bounds({topic})[topic][0]

    def owes_progress(self) -> bool:
        """Whether an idle caller should commit once more, so that what was published last becomes known."""
        return self._owes_progress and self._progress_is_due()

    def _progress_is_due(self) -> bool:
        is_loaded = self._events > _FEW_EVENTS
        every_s = max(self._progress_every_s, PROGRESS_EVERY_S) if is_loaded else self._progress_every_s
        return time.monotonic() - self._progress_at >= every_s

    def serve(self) -> None:
        """Let the client do its housekeeping. Cheap; call it every few thousand events."""
        self._call("poll", self._producer.poll, 0)

    def close(self) -> None:
        """Abort what is open, as far as the broker lets us in a moment; the broker does the rest by itself."""
        if self._open:
            try:
                with _errors_of_its_own():
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
        """Any call of the client can be the one that learns that we were fenced."""
        try:
            with _errors_of_its_own():
                return call(*arguments)
        except KafkaException as error:
            raise self._translated(error, doing=doing) from error

    def _flush(self) -> None:
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
        """Call again after each time-out, which the client allows and resumes."""
        deadline = time.monotonic() + KAFKA_TAKES_NOTHING_S
        while True:
            try:
                with _errors_of_its_own():
                    call(_SLICE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise self._translated(error, doing=name) from error
                self._while_waiting()

    def _cause(self, error: KafkaException) -> KafkaException:
        """Why the transaction has failed, where the error only says that it has.

        Who begins another one is told, and doesn't begin it.
        """
        if error.args[0].code() in _TOO_LATE:
            try:
                self._producer.begin_transaction()
            except KafkaException as cause:
                if cause.args[0].code() not in _TOO_LATE:
                    return cause
        return error

    def _too_large(self, details: KafkaError) -> LockstepError:
        """What to tell of a batch that a broker has refused for its size. Asks for the limit of the topic."""
        refused = _REFUSED_BATCH.search(details.str())
        if refused is None:
            return LockstepError(f"Kafka refuses a batch for its size: {details.str()}", hint=_NOTHING_SKIPPED)
        topic = refused["topic"]
        try:
            limit = self._cluster.record_limit(topic)
        except LockstepError as error:
            return error
        is_control = topic in (self._state_topic, self._schema_topic, self._progress_topic)
        wanted = CONTROL_RECORD_BYTES if is_control else self._max_message_bytes
        is_smaller = limit.size < wanted
        if is_smaller and self._limits is not None and self._limits.get(topic) != limit:
            return Unavailable(f"topic {topic} takes smaller records than before, of {limit} at most")
        deadline = time.monotonic() + _HEAR_S
        while self._limits and not self._refused.bytes_max and time.monotonic() < deadline:
            self._producer.poll(0.05)
        what = f"a record of {self._refused.bytes_max:,} bytes, before compression"
        if not self._refused.bytes_max:
            what = "a record" if refused["records"] == "1" else f"a batch of {refused['records']} records"
        way_out = f"Run {set_command(self._servers, topic, limit.setting, wanted)}"
        if not is_smaller:
            way_out = self._raise_limit(topic)
        if not is_smaller and is_control:
            way_out = f"Raise that one alone: {set_command(self._servers, topic, limit.setting, 'BYTES')}"
        return LockstepError(
            f"topic {topic} doesn't take {what}: its limit is {limit}, and kafka.topics.max_message_bytes is"
            f" {self._max_message_bytes:,}",
            hint=f"{_NOTHING_SKIPPED}. {way_out}",
        )

    def _raise_limit(self, topic: str) -> str:
        command = set_command(self._servers, topic, "max.message.bytes", "BYTES")
        return f"Raise kafka.topics.max_message_bytes in lockstep.toml, and give topics that exist the same: {command}"

    def _translated(
        self, error: KafkaException, *, doing: str = "produce", topic: str = "", size: int = 0
    ) -> LockstepError:
        is_own_limit = error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE and bool(topic)
        error = self._cause(error)
        details: KafkaError = error.args[0]
        if details.code() in _FENCED_CODES:
            # Who has done that is found out at the next start, from the state: see Ownership.
            open_s = time.monotonic() - self._opened_s if self._open else 0.0
            if open_s * 1000 >= TRANSACTION_TIMEOUT_MS:
                return TransactionTimedOut(
                    f"Kafka has ended this producer's transaction: it was open for {open_s:.0f} s, more than the"
                    f" {TRANSACTION_TIMEOUT_MS // 1000} s that it may be, or another process has taken over"
                )
            return Unavailable("Kafka has ended this producer's transaction: another process has taken over")
        if is_own_limit:
            return LockstepError(
                f"an event for topic {topic} has {size} bytes, more than max_message_bytes ({self._max_message_bytes})",
                hint=f"{_NOTHING_SKIPPED}. {self._raise_limit(topic)}",
            )
        if details.code() in _TOO_LARGE:
            return self._too_large(details)
        if details.code() in _OUT_OF_STEP or _DESYNCHRONIZED in details.str():
            # Broker and client disagree on what came last, as after a freeze. A new producer aborts what is open, and
            # its first event is the one after the last commit.
            return Unavailable(f"Kafka has lost count of this producer's events: {doing}: {reason(error)}")
        if details.code() in NOT_ALLOWED:
            return LockstepError(
                f"Kafka refuses: {doing}: {reason(error)}",
                hint=WITHOUT_RIGHT.format("Write on the pipeline's topics, and Write on its transactional ids"),
            )
        if details.code() == KafkaError.SASL_AUTHENTICATION_FAILED:
            return LockstepError(
                f"Kafka refuses: {doing}: {reason(error)}", hint="check kafka.username and the password"
            )
        if details.code() in _REFUSED_FOR_GOOD or (details.fatal() and not details.retriable()):
            return LockstepError(
                f"Kafka refuses for good: {doing}: {reason(error)}",
                hint=f"{_NOTHING_SKIPPED}. Look for a setting of the topic or of the brokers that was changed",
            )
        return Unavailable(f"Kafka: {doing}: {reason(error)}")
