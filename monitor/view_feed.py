"""The topic of a view, read in whole steps: rows, and the step records that say when they are of one moment.

Between two steps the rows are of no moment: some are of the step before, some of the next. The topic may be compacted
while it is read, and then lacks rows of a moment that newer ones have replaced. So the first step that counts is one at
or after the end that the topic had when the reading began, if the pass took less time than versions are retained.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.kafka.consumer import close_consumer, open_consumer
from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import VIEW_COMPACTION_LAG_MS, TopicAdmin, reason
from cdc.kafka.topic_names import VIEWS, control_topic, view_topic
from cdc.model.errors import ForeignRecord, Unavailable
from cdc.protocol.view_steps import ViewStep, step_key

_PASS_S: Final = VIEW_COMPACTION_LAG_MS / 2000
"""A pass over the topic that took longer is followed by another one. A reader that paused for so long begins anew."""

_QUIET_S: Final = 10.0
"""A consumer that gets nothing for so long is replaced: it may never get anything from a restarted broker."""

_FETCH_WAIT_MS: Final = 500
_ROWS_MAX: Final = 5_000
"""How many rows may wait for their step. More are passed on before it."""


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """A row of the result by its key, both JSON; ``value`` is None if the row was deleted."""

    offset: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows in order. With a ``step``, these and all before them are the result as of its LSN."""

    records: Sequence[ViewRecord]
    step: ViewStep | None


class StepCutter:
    """Rows and step records as they come -> slices. Pure. ``floor`` is the offset below which no step counts."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._records: list[ViewRecord] = []
        self._steps: list[ViewStep] = []
        self._passed = 0
        self.reached = 0
        """All rows below this offset were added."""

    def add(self, record: ViewRecord) -> None:
        """Add the next row."""
        self._records.append(record)
        self.reach(record.offset + 1)

    def reach(self, offset: int) -> None:
        """There are no more rows below this offset."""
        self.reached = max(self.reached, offset)

    def add_step(self, step: ViewStep) -> None:
        """Add the next step record. An incomplete one says nothing."""
        if step.is_complete:
            self._steps.append(step)

    def portion(self) -> Portion | None:
        """What can be passed on now: up to the newest step whose rows are all there, or rows beyond the limit."""
        covered = [step for step in self._steps if step.end <= self.reached]
        self._steps = self._steps[len(covered) :]
        step = next((step for step in reversed(covered) if step.end >= max(self.floor, self._passed)), None)
        if step is None and len(self._records) < _ROWS_MAX:
            return None
        end = self.reached if step is None else step.end
        records = [record for record in self._records if record.offset < end]
        self._records = self._records[len(records) :]
        self._passed = end
        return Portion(records, step)


class ViewFeed:
    """One generation's topic, from its beginning on. ``stopping`` ends it within a moment."""

    def __init__(
        self,
        client: Mapping[str, str | int],
        pipeline: str,
        view: str,
        generation: int,
        *,
        stopping: Callable[[], bool],
    ) -> None:
        """Raises Unavailable, also if there is no such topic yet."""
        self._client = client
        self._topic = view_topic(pipeline, view, generation)
        self._steps_topic = control_topic(pipeline, VIEWS)
        self._key = step_key(view, generation)
        self._stopping = stopping
        self._cluster = TopicAdmin(client)
        topics = {self._topic, self._steps_topic}
        if not topics <= self._cluster.partition_counts(topics).keys():
            raise Unavailable(f"topic {self._topic} doesn't exist yet", hint="the view's job creates it")
        self.topic_id = self._cluster.topic_ids([self._topic])[self._topic]
        """Kafka's own id: another one means other offsets."""

    def portions(self) -> Generator[Portion, None, None]:
        """The slices as they come. Raises Unavailable if brokers don't answer, or the reading must begin anew."""
        cutter = StepCutter(self._end())
        began_s = time.monotonic()
        following = {self._topic: 0, self._steps_topic: 0}
        while not self._stopping():
            if self._cluster.topic_ids([self._topic])[self._topic] != self.topic_id:
                raise Unavailable(f"topic {self._topic} was created anew")
            for message in self._until_quiet(following):
                self._take(cutter, message, following)
                if cutter.reached >= cutter.floor and began_s:
                    if time.monotonic() - began_s > _PASS_S:
                        cutter.floor, began_s = self._end(), time.monotonic()
                        continue
                    began_s = 0.0
                while (portion := cutter.portion()) is not None:
                    yield portion

    def _end(self) -> int:
        """Where the present rows end: each of the writer's transactions has such a record."""
        stored = read_compacted(self._client, self._steps_topic).get(self._key)
        return 0 if stored is None else ViewStep.from_bytes(stored.value, stored.what).end

    def _take(self, cutter: StepCutter, message: Message, following: dict[str, int]) -> None:
        topic, offset = message.topic() or "", message.offset() or 0
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise Unavailable(f"Kafka doesn't answer: {reason(KafkaException(error))}")
            if topic == self._topic:
                cutter.reach(offset)
            return
        if offset < following[topic]:
            raise Unavailable(f"topic {topic} begins again at {offset}")
        following[topic] = offset + 1
        key, value = message.key(), message.value()
        if not isinstance(key, bytes) or not (value is None or isinstance(value, bytes)):
            return
        if topic == self._topic:
            cutter.add(ViewRecord(offset, key, value))
        elif key == self._key and value is not None:
            try:
                cutter.add_step(ViewStep.from_bytes(value, f"the record at offset {offset} of topic {topic}"))
            except ForeignRecord:
                return

    def _until_quiet(self, following: Mapping[str, int]) -> Iterator[Message]:
        consumer: Consumer = open_consumer(self._client, following, fetch_wait_ms=_FETCH_WAIT_MS)
        try:
            consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in following.items()])
            heard_s = polled_s = time.monotonic()
            while not self._stopping() and time.monotonic() - heard_s < _QUIET_S:
                message = consumer.poll(0.2)
                now_s = time.monotonic()
                if now_s - polled_s > _PASS_S:
                    raise Unavailable("the reading was held up for longer than versions of rows are kept")
                polled_s = now_s
                if message is not None:
                    heard_s = now_s
                    yield message
        except KafkaException as error:
            raise Unavailable(f"Kafka doesn't answer: {reason(error)}") from error
        finally:
            close_consumer(consumer)
