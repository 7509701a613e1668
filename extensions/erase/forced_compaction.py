"""Makes the brokers compact a topic now, up to a record that was just written, with temporary settings.

Only closed segments are compacted. So a record is written in an aborted transaction, which no reader sees, and the next
one closes its segment. Compaction removes records of aborted transactions: once this one is gone, everything before it
has been compacted.

If a topic has a `min.compaction.lag.ms`, such a record stays for that long, and the first run can prove nothing. It
leaves one as a mark in a closed segment, and remembers where. A later run finds out that it is gone.

The old settings are stored on a topic before they are changed. If a run is killed in between, the next one restores
them.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Self

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.kafka.client import new_client
from cdc.kafka.control_topics import StoredRecord, read_compacted
from cdc.kafka.settings import TopicSettings
from cdc.kafka.topic_admin import TopicAdmin, erasures_topic_plan, reason
from cdc.kafka.topic_names import ERASURES, control_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.timeouts import KAFKA_SHOWS_S
from extensions.erase.key_records import still_there

_SEGMENT_MS: Final = 1_000
"""The greatest age of a segment. A topic that is written all the time gets another segment each second."""

TEMPORARY: Final[Mapping[str, str]] = {"segment.ms": str(_SEGMENT_MS), "min.cleanable.dirty.ratio": "0.0"}
"""The temporary settings of a topic."""

_ROLL_EVERY_S: Final = 1.2
_LOOK_EVERY_S: Final = 0.3
_ANSWER_S: Final = 15.0
_TRANSACTION_MS: Final = 15_000
"""After this time the brokers abort the transaction of a killed run. Until then readers of the topic wait."""

_KEPT_MAX: Final = 1_000
"""How many compactions of a topic are remembered. The oldest add nothing to the others."""

_MARKS_MAX: Final = 100
"""How many marks of a topic that are still too young are remembered."""

_CLOSING_RECORDS: Final = 2
"""How many records are written behind a mark: brokers learn of a shorter segment a moment after it is set."""

_FORMAT: Final = 1
_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class Compacted(Enum):
    """The outcome of a compaction. ``NOTHING_RIPE``: all records are too young. ``LATE``: the brokers should have done
    it by now, and haven't.
    """

    DONE = "done"
    NOTHING_RIPE = "nothing ripe"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Pass:
    """A compaction that had reached these offsets, by partition, at a time in milliseconds since 1970. Everything that
    existed at ``up_to_ms`` is before them; None if unknown.
    """

    at_ms: int
    through: Mapping[int, int]
    up_to_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Records written to be compacted away, by partition, at a time in milliseconds since 1970."""

    at_ms: int
    at: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What is remembered of a topic. ``settings`` are to be put back; None if the topic has its own. ``marks`` are
    those that may still exist, oldest first.
    """

    settings: Mapping[str, str | None] | None = None
    passes: tuple[Pass, ...] = ()
    marks: tuple[Mark, ...] = ()

    def to_bytes(self) -> bytes:
        passes = [
            {"at_ms": each.at_ms, "through": _texts(each.through), "up_to_ms": each.up_to_ms} for each in self.passes
        ]
        marks = [{"at_ms": each.at_ms, "at": _texts(each.at)} for each in self.marks]
        return orjson.dumps({"format": _FORMAT, "settings": self.settings, "passes": passes, "marks": marks})

    @classmethod
    def from_record(cls, record: StoredRecord) -> Self:
        """Raises LockstepError for a record of another form."""
        try:
            value = {_FORMAT: orjson.loads(record.value)}[orjson.loads(record.value)["format"]]
            passes = tuple(
                Pass(int(each["at_ms"]), _numbers(each["through"]), each["up_to_ms"]) for each in value["passes"]
            )
            marks = tuple(Mark(int(each["at_ms"]), _numbers(each["at"])) for each in value["marks"])
            return cls(None if value["settings"] is None else dict(value["settings"]), passes, marks)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LockstepError(
                f"{record.what} is from another version of Lockstep",
                hint="use the version of Lockstep that wrote it, or delete the topic once `lockstep doctor` finds that"
                " topics have the settings that they should have",
            ) from error

    def compacted_since_ms(self, partition: int, offset: int) -> int | None:
        """The time of the first known compaction that had passed a record."""
        times = [each.at_ms for each in self.passes if each.through.get(partition, -1) > offset]
        return min(times, default=None)

    def compacted_up_to_ms(self, partitions: Collection[int]) -> int | None:
        """The time up to which everything in these partitions has been compacted; None if unknown."""
        times = [
            max(
                (each.up_to_ms for each in self.passes if each.up_to_ms is not None and partition in each.through),
                default=None,
            )
            for partition in partitions
        ]
        known = [time_ms for time_ms in times if time_ms is not None]
        return min(known) if known and len(known) == len(times) else None

    def marked_since_ms(self, partition: int, offset: int) -> int | None:
        """When the first mark behind a record was left; None if there is none."""
        times = [mark.at_ms for mark in self.marks if mark.at.get(partition, -1) > offset]
        return min(times, default=None)

    def ripe_marks(self, partitions: Collection[int], *, before_ms: int) -> dict[int, int]:
        """The newest mark in each of these partitions from before a time."""
        ripe = [mark.at for mark in self.marks if mark.at_ms < before_ms]
        return {partition: offset for at in ripe for partition, offset in at.items() if partition in partitions}

    def ripe_since_ms(self, partitions: Collection[int], *, before_ms: int) -> int | None:
        """When the oldest of these marks was left; None if there is none."""
        newest = {partition: mark.at_ms for mark in self.marks if mark.at_ms < before_ms for partition in mark.at}
        return min((at_ms for partition, at_ms in newest.items() if partition in partitions), default=None)

    def with_mark(self, mark: Mark, *, before_ms: int) -> Self:
        """With one more mark. Of marks from before a time, only the newest of each partition are kept. If there are too
        many, the new one is dropped: otherwise frequent runs would never have one that is old enough.
        """
        ripe = [each for each in self.marks if each.at_ms < before_ms]
        newest = {partition: each.at_ms for each in ripe for partition in each.at}
        young = [each for each in self.marks if each.at_ms >= before_ms]
        own = [
            {partition: offset for partition, offset in each.at.items() if newest[partition] == each.at_ms}
            for each in ripe
        ]
        kept = [Mark(each.at_ms, at) for each, at in zip(ripe, own, strict=True) if at]
        return replace(self, marks=(*kept, *[*young, mark][:_MARKS_MAX]))


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.items()}


class ForcedCompaction:
    """Compacts topics of a pipeline. A run that begins ends the work of another one."""

    def __init__(
        self,
        client: Mapping[str, str | int],
        pipeline: str,
        settings: TopicSettings,
        *,
        check: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``check`` is called now and then; what it raises ends the work, after all settings are put back."""
        self._client = client
        self._plan = erasures_topic_plan(pipeline, settings)
        self._topic = control_topic(pipeline, ERASURES)
        self._transactional_id = f"{pipeline}.__erase"
        self._cluster = TopicAdmin(client)
        self._check = check
        self._sleep = sleep
        self._producer: Producer | None = None

    def remembered(self, topic: str) -> TopicRecord:
        """What is remembered of a topic. Raises LockstepError and Unavailable."""
        return self.records().get(topic, TopicRecord())

    def restore(self) -> list[str]:
        """Put back the settings that a killed run has left. Returns the topics concerned. Raises Unavailable, and
        LockstepError if a topic may exist that this login can't see: its settings must not be forgotten.
        """
        left = [topic for topic, record in self.records().items() if record.settings is not None]
        existing = self._cluster.partition_counts(left, must_see=True)
        for topic in left:
            self.put_back(topic, exists=topic in existing)
        return left

    def _take_over(self) -> None:
        """Fence any other run, and put back what it has changed, since it no longer can."""
        self._begin()
        self.restore()

    def compact(self, topic: str, partitions: Collection[int], *, timeout_s: float, lag_ms: int = 0) -> Compacted:
        """Compact these partitions of a topic up to now.

        With ``lag_ms``, nothing younger is compacted: the compaction ends at the mark of an earlier call, at least that
        old. The first call has no mark to wait for, and returns ``NOTHING_RIPE`` at once.

        Raises LockstepError if the brokers refuse, or another run has begun. Raises Unavailable when they don't answer.
        """
        try:
            deadline = time.monotonic() + timeout_s
            outcome, through, up_to_ms = self._compacted(topic, partitions, deadline=deadline, lag_ms=lag_ms)
            if outcome is not Compacted.DONE:
                return outcome
            record = self.remembered(topic)
            done = Pass(time.time_ns() // 1_000_000, through, up_to_ms)
            self._remember(topic, replace(record, passes=(*record.passes, done)[-_KEPT_MAX:]))
        except _TakenOver as error:  # the other run puts the settings back
            raise LockstepError(
                "another `lockstep erase` of this pipeline has begun, and has taken over",
                hint="wait until it has ended, then run this one again",
            ) from error
        return outcome

    def _compacted(
        self, topic: str, partitions: Collection[int], *, deadline: float, lag_ms: int
    ) -> tuple[Compacted, dict[int, int], int | None]:
        """The outcome, the offset reached in each partition, and as of when, in milliseconds since 1970."""
        self._take_over()
        record = self.remembered(topic)
        if record.settings is None:
            self._remember(topic, replace(record, settings=self._cluster.own_config(topic, TEMPORARY)))
        try:
            self._cluster.change_config(topic, TEMPORARY)
            up_to_ms: int | None = time.time_ns() // 1_000_000
            if lag_ms:
                first, up_to_ms = self._marked(topic, partitions, lag_ms)
            else:
                first = self._roll(topic, partitions)
            waiting, rolled = set(first.items()), time.monotonic()
            while waiting and time.monotonic() < deadline:
                self._check()
                self._sleep(_LOOK_EVERY_S)
                if time.monotonic() - rolled > _ROLL_EVERY_S:
                    self._roll(topic, partitions)
                    rolled = time.monotonic()
                waiting = still_there(self._client, topic, waiting)
        except _TakenOver:
            raise
        except BaseException:
            self.put_back(topic, exists=True)
            raise
        self.put_back(topic, exists=True)
        if waiting:
            return Compacted.LATE, first, up_to_ms
        return Compacted.DONE if set(first) == set(partitions) else Compacted.NOTHING_RIPE, first, up_to_ms

    def _marked(self, topic: str, partitions: Collection[int], lag_ms: int) -> tuple[dict[int, int], int | None]:
        """Leave a mark. Returns the marks of earlier calls that are old enough, with the time of the oldest."""
        now_ms = time.time_ns() // 1_000_000
        remembered = self.remembered(topic)
        ripe = remembered.ripe_marks(partitions, before_ms=now_ms - lag_ms)
        since_ms = remembered.ripe_since_ms(partitions, before_ms=now_ms - lag_ms)
        mark = Mark(now_ms, self._roll(topic, partitions))
        for _ in range(_CLOSING_RECORDS):
            self._check()
            self._sleep(_ROLL_EVERY_S)
            self._roll(topic, partitions)
        self._remember(topic, self.remembered(topic).with_mark(mark, before_ms=now_ms - lag_ms))
        return ripe, since_ms

    def close(self) -> None:
        self._producer = None

    def records(self) -> dict[str, TopicRecord]:
        if not self._cluster.exists(self._topic):
            return {}
        records = read_compacted(self._client, self._topic)
        return {key.decode(): TopicRecord.from_record(record) for key, record in records.items()}

    def put_back(self, topic: str, *, exists: bool) -> None:
        record = self.remembered(topic)
        if record.settings is not None:
            if exists:
                self._cluster.change_config(topic, record.settings)
                self._await_settings(topic, record.settings)
            self._remember(topic, replace(record, settings=None))

    def _await_settings(self, topic: str, settings: Mapping[str, str | None]) -> None:
        """Wait until the brokers show these settings: the controller answers before they know of them. Otherwise the
        next run would take the temporary settings for the topic's own, and leave them for good. Raises Unavailable if
        the brokers take too long; the settings stay remembered then.
        """
        deadline = time.monotonic() + KAFKA_SHOWS_S
        while self._cluster.own_config(topic, settings) != settings:
            if time.monotonic() > deadline:
                raise Unavailable(f"Kafka's brokers don't show the settings of topic {topic} that were put back")
            time.sleep(_LOOK_EVERY_S)

    def _begin(self) -> None:
        """Fence any other run. Its transaction is aborted before this returns."""
        self._cluster.create(self._cluster.missing([self._plan]))
        if self._producer is None:
            self._producer = new_client(
                Producer,
                {
                    **self._client,
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": _TRANSACTION_MS,
                    "linger.ms": 0,
                },
            )
            self._patiently(self._producer.init_transactions)

    def _remember(self, topic: str, record: TopicRecord) -> None:
        self._begin()
        self._transaction(commits=True, records=[(self._topic, 0, topic.encode(), record.to_bytes())])

    def _roll(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Write an invisible record to each of these partitions. Returns their offsets."""
        # An empty value, not None: a compacted topic would take None for a deletion. The key is never a row's.
        records = [(topic, partition, b"\0", b"") for partition in sorted(partitions)]
        return self._transaction(commits=False, records=records)

    def _transaction(self, *, commits: bool, records: list[tuple[str, int, bytes, bytes]]) -> dict[int, int]:
        producer = self._producer
        assert producer is not None
        offsets: dict[int, int] = {}
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets[message.partition() or 0] = message.offset() or 0

        self._once(producer.begin_transaction)
        for topic, partition, key, value in records:
            self._once(
                lambda topic=topic, partition=partition, key=key, value=value: producer.produce(  # type: ignore[misc]
                    topic, key=key, value=value, partition=partition, on_delivery=delivered
                )
            )
        self._once(lambda: producer.flush(_ANSWER_S))
        if failures or len(offsets) < len(records):
            self._producer = None  # the next one aborts what this one has begun
            error = KafkaException(failures[0]) if failures else Unavailable("Kafka doesn't take a record in time")
            raise self._translated(error) from error
        self._patiently(producer.commit_transaction if commits else producer.abort_transaction)
        return offsets

    def _patiently(self, call: Callable[[float], None]) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                call(_ANSWER_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    self._producer = None
                    raise self._translated(error) from error
            else:
                return

    def _once(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (KafkaException, BufferError) as error:
            self._producer = None
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        if not isinstance(error, KafkaException):
            return error if isinstance(error, LockstepError) else Unavailable("Kafka takes no more records now")
        code = error.args[0].code()
        if code in _FENCED:
            return _TakenOver(reason(error))
        if code in _DENIED:
            return LockstepError(
                f"Kafka refuses: {reason(error)}",
                hint="it takes the right to write to the pipeline's topics, and with transactional ids that begin with"
                " its name: docs/kafka.md has the rights that are needed",
            )
        return Unavailable(f"Kafka doesn't answer: {reason(error)}")


class _TakenOver(Exception):
    """Another run has the transactional id."""
