"""Brokers' refusals of a transactional producer as errors of ours: each says whether a restart helps."""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.large_rows import LargeRows
from cdc.kafka.record_limits import set_command
from cdc.kafka.topic_admin import CONTROL_RECORD_BYTES, NOT_ALLOWED, WITHOUT_RIGHT, TopicAdmin, reason
from cdc.model.errors import LockstepError, TransactionTimedOut, Unavailable

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
# The client's text for the same, if it makes its own error of it.
_DESYNCHRONIZED = "sequence desynchronization"

_TOO_LATE = (
    KafkaError._STATE,
    KafkaError._FATAL,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
)
"""The client's errors for a call after the transaction has failed."""

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
"""Broker errors that stay the same until somebody changes a setting."""

# The client's text for a batch that a broker has refused.
_REFUSED_BATCH: Final = re.compile(r"ProduceRequest for (?P<topic>\S+) \[\d+\] with (?P<records>\d+) message")

_NOTHING_SKIPPED: Final = "nothing was skipped: a skipped row would be missing in every sink, without a message"

_HEAR_S: Final = 2.0
"""How long the client may take to report which records were refused, after it reported that some were."""


class RefusedRecords:
    """Collects records that no broker accepted, and the size of the largest one that was too large."""

    def __init__(self) -> None:
        self.bytes_max = 0

    def __call__(self, error: KafkaError | None, record: Message) -> None:
        if error is not None and error.code() in _TOO_LARGE:
            self.bytes_max = max(self.bytes_max, len(record))


@contextmanager
def errors_of_its_own() -> Iterator[None]:
    """Make a KafkaException of the SystemError that Python raises if the client reports deliveries during a fatal
    error."""
    try:
        yield
    except SystemError as error:
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise error.__cause__ from None


class ProducerRefusals:
    """The errors of one producer. ``control`` are topics that accept larger records than others. ``timeout_ms`` is the
    time after which brokers end a transaction."""

    def __init__(
        self,
        cluster: TopicAdmin,
        sizes: LargeRows,
        refused: RefusedRecords,
        *,
        client: Mapping[str, str | int],
        control: Collection[str],
        timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._sizes = sizes
        self._refused = refused
        self._servers = client["bootstrap.servers"]
        self._control = control
        self._timeout_ms = timeout_ms

    def error(
        self, error: KafkaException, producer: Producer, *, doing: str, open_s: float, topic: str = "", size: int = 0
    ) -> LockstepError:
        """The error as ours. ``open_s`` is how long the transaction has been open; 0 if there is none."""
        is_own_limit = error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE and bool(topic)
        error = _cause(error, producer)
        details: KafkaError = error.args[0]
        if details.code() in _FENCED_CODES:
            # The next start finds out from the state who did that: see Ownership.
            if open_s * 1000 >= self._timeout_ms:
                return TransactionTimedOut(
                    f"Kafka has ended this producer's transaction: it was open for {open_s:.0f} s, more than the"
                    f" {self._timeout_ms // 1000} s that it may be, or another process has taken over"
                )
            return Unavailable("Kafka has ended this producer's transaction: another process has taken over")
        if is_own_limit:
            return LockstepError(
                f"an event for topic {topic} has {size} bytes, more than max_message_bytes"
                f" ({self._sizes.max_message_bytes})",
                hint=f"{_NOTHING_SKIPPED}. {self._raise_limit(topic)}",
            )
        if details.code() in _TOO_LARGE:
            return self._too_large(details, producer)
        if details.code() in _OUT_OF_STEP or _DESYNCHRONIZED in details.str():
            # Broker and client disagree on what came last, for instance after a freeze. A new producer aborts what is
            # open, and its first event is the one after the last commit.
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

    def _too_large(self, details: KafkaError, producer: Producer) -> LockstepError:
        """The error for a batch that a broker refused for its size. Reads the limit of the topic."""
        refused = _REFUSED_BATCH.search(details.str())
        if refused is None:
            return LockstepError(f"Kafka refuses a batch for its size: {details.str()}", hint=_NOTHING_SKIPPED)
        topic = refused["topic"]
        try:
            limit = self._cluster.record_limit(topic)
        except LockstepError as error:
            return error
        is_control = topic in self._control
        wanted = CONTROL_RECORD_BYTES if is_control else self._sizes.max_message_bytes
        is_smaller = limit.size < wanted
        if is_smaller and self._sizes.limits is not None and self._sizes.limits.get(topic) != limit:
            return Unavailable(f"topic {topic} takes smaller records than before, of {limit} at most")
        deadline = time.monotonic() + _HEAR_S
        while self._sizes.limits and not self._refused.bytes_max and time.monotonic() < deadline:
            producer.poll(0.05)
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
            f" {self._sizes.max_message_bytes:,}",
            hint=f"{_NOTHING_SKIPPED}. {way_out}",
        )

    def _raise_limit(self, topic: str) -> str:
        command = set_command(self._servers, topic, "max.message.bytes", "BYTES")
        return f"Raise kafka.topics.max_message_bytes in lockstep.toml, and give topics that exist the same: {command}"


def _cause(error: KafkaException, producer: Producer) -> KafkaException:
    """Why the transaction has failed, if the error only says that it has: beginning another one shows the cause."""
    if error.args[0].code() in _TOO_LATE:
        try:
            producer.begin_transaction()
        except KafkaException as cause:
            if cause.args[0].code() not in _TOO_LATE:
                return cause
    return error
