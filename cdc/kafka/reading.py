"""Reads partitions from one offset to another: a topic's content at one moment, even while others write."""

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.kafka.consumer import close_consumer, open_consumer
from cdc.kafka.topic_admin import reason
from cdc.model.errors import Unavailable
from cdc.model.timeouts import KAFKA_SILENT_S

Partition = tuple[str, int]

WAIT_S: Final = 0.2
_AT_ONCE: Final = 5000
_ASK_AGAIN_S: Final = 1.0
"""After so long without an answer the client is assigned its position again. It reports an end once, and a
transaction's markers may follow silently. Assigning loses an answer that is under way: so if a partition hasn't
answered, the client gets twice the time. On many connections, a record of 16 MB takes longer than a second."""


@contextmanager
def reading(
    client: Mapping[str, Any], topics: Collection[str], *, what: str = "", **options: Any
) -> Iterator[Consumer]:
    """A consumer from ``open_consumer``, closed afterwards. If the client refuses, raises Unavailable, with ``what`` as
    the thing that can't be read."""
    consumer = open_consumer(client, topics, **options)
    try:
        yield consumer
    except KafkaException as error:
        raise Unavailable(f"{what or 'topic ' + ', '.join(topics)} can't be read: {reason(error)}") from error
    finally:
        close_consumer(consumer)


class _Unread:
    """Partitions that aren't read to their ends, the next offset of each, and since when nothing new has come."""

    def __init__(self, limits: Mapping[Partition, tuple[int, int]]) -> None:
        self._following = {at: start for at, (start, end) in limits.items() if start < end}
        self.ends = {at: limits[at][1] for at in self._following}
        self.heard = self.asked = time.monotonic()
        self._patience_s = _ASK_AGAIN_S
        self._unanswered: set[Partition] = set()

    @property
    def is_late(self) -> bool:
        """Whether the answer takes so long that it must be requested again."""
        return time.monotonic() - self.asked > self._patience_s

    def ask(self, consumer: Consumer) -> None:
        """Assign the next offsets to the client."""
        if self._unanswered:
            self._patience_s *= 2
        self._unanswered = set(self.ends)
        consumer.assign([TopicPartition(*at, self._following[at]) for at in sorted(self.ends)])
        self.asked = time.monotonic()

    def take(self, message: Message) -> bool:
        """Whether it is one of the records. Raises KafkaException for a partition that can't be read."""
        at, offset, error = (message.topic() or "", message.partition() or 0), message.offset() or 0, message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if at not in self.ends:
            return False  # a partition that was read continues to report new records
        self.asked, end = time.monotonic(), self.ends[at]
        self._unanswered.discard(at)
        following = offset + (error is None)
        if following > self._following[at]:  # the same end again isn't an answer: it comes for every request
            self._following[at], self.heard = following, self.asked
        # A broker that has just come back may report an earlier end; what follows comes once it knows of it.
        if following >= end:
            del self.ends[at]
        return error is None and offset < end

    def check_heard(self) -> None:
        """Raises Unavailable if nothing has come for long."""
        if self.ends and time.monotonic() - self.heard > KAFKA_SILENT_S:
            raise Unavailable(
                f"the end of topic {min(self.ends)[0]} wasn't reached: nothing came for {KAFKA_SILENT_S:.0f} s"
            )


def message_lists(
    consumer: Consumer,
    limits: Mapping[Partition, tuple[int, int]],
    *,
    while_waiting: Callable[[], None] = lambda: None,
    wait_s: float = WAIT_S,
) -> Generator[list[Message], None, None]:
    """All records of these partitions from the first offset on, below the second. Those of one partition are in order.

    They come in lists of what has arrived, empty if nothing comes in ``wait_s``. The ends are given, since the client
    never reports one while somebody writes all the time. Raises Unavailable if nothing comes for long, and
    KafkaException for a partition that can't be read.
    """
    unread = _Unread(limits)
    unread.ask(consumer)
    while unread.ends:
        # One poll, then what came with it: a request for many records would wait until there are so many.
        first = consumer.poll(wait_s)
        came = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
        while_waiting()
        records = [message for message in came if unread.take(message)]
        if unread.is_late:
            unread.ask(consumer)
        unread.check_heard()
        yielded = time.monotonic()
        yield records
        away_s = time.monotonic() - yielded  # a busy reader isn't a silent broker
        unread.heard, unread.asked = unread.heard + away_s, unread.asked + away_s


def messages(
    consumer: Consumer,
    limits: Mapping[Partition, tuple[int, int]],
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    for portion in message_lists(consumer, limits, while_waiting=while_waiting):
        yield from portion
