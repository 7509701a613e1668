"""Reads partitions from one offset to another: what a topic holds as of a moment, however long somebody writes on."""

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
"""After so long without an answer the client is told once more from where to read. It reports an end once, and the
markers of a transaction may come after that without a word. An answer that is under way is lost by that: where one of a
partition hasn't come, the client gets twice the time. A record of 16 MB takes longer than a second on many a line."""


@contextmanager
def reading(
    client: Mapping[str, Any], topics: Collection[str], *, what: str = "", **options: Any
) -> Iterator[Consumer]:
    """A consumer as ``open_consumer`` makes it, for as long as it is needed.

    Raises Unavailable with ``what`` can't be read, where the client refuses.
    """
    consumer = open_consumer(client, topics, **options)
    try:
        yield consumer
    except KafkaException as error:
        raise Unavailable(f"{what or 'topic ' + ', '.join(topics)} can't be read: {reason(error)}") from error
    finally:
        close_consumer(consumer)


class _Unread:
    """Partitions that aren't read to their ends, where each goes on, and since when nothing new has come of them."""

    def __init__(self, limits: Mapping[Partition, tuple[int, int]]) -> None:
        self._following = {at: start for at, (start, end) in limits.items() if start < end}
        self.ends = {at: limits[at][1] for at in self._following}
        self.heard = self.asked = time.monotonic()
        self._patience_s = _ASK_AGAIN_S
        self._unanswered: set[Partition] = set()

    @property
    def is_late(self) -> bool:
        """Whether the answer takes so long that it is to be asked again."""
        return time.monotonic() - self.asked > self._patience_s

    def ask(self, consumer: Consumer) -> None:
        """Tell the client from where to read."""
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
            return False  # one that was read goes on to tell of what is written
        self.asked, end = time.monotonic(), self.ends[at]
        self._unanswered.discard(at)
        following = offset + (error is None)
        if following > self._following[at]:  # the same end again isn't an answer: it comes for every question
            self._following[at], self.heard = following, self.asked
        # A broker that has just come back may tell of an earlier end: what follows comes when it knows of it.
        if following >= end:
            del self.ends[at]
        return error is None and offset < end

    def check_heard(self) -> None:
        """Raises Unavailable when nothing has come for long."""
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
    """All records of these partitions from the first of both offsets on, below the second. Those of one are in order.

    They come in lists of what is there by then, which are empty where nothing comes in ``wait_s``. The ends are given:
    while somebody writes all the time, the client never reports one.

    Raises Unavailable when nothing comes for long, and KafkaException for a partition that can't be read.
    """
    unread = _Unread(limits)
    unread.ask(consumer)
    while unread.ends:
        # One poll, then what came with it: asked for many records, the client waits until it has so many.
        first = consumer.poll(wait_s)
        came = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
        while_waiting()
        records = [message for message in came if unread.take(message)]
        if unread.is_late:
            unread.ask(consumer)
        unread.check_heard()
        yielded = time.monotonic()
        yield records
        away_s = time.monotonic() - yielded  # a reader that has other things to do isn't a broker that is silent
        unread.heard, unread.asked = unread.heard + away_s, unread.asked + away_s


def messages(
    consumer: Consumer,
    limits: Mapping[Partition, tuple[int, int]],
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[Message]:
    """The same one by one."""
    for portion in message_lists(consumer, limits, while_waiting=while_waiting):
        yield from portion
