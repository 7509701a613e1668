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
markers of a transaction may come after that without a word. Of a topic that was deleted it is silent for half a
minute."""


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


class Refused:
    """Topics that can't be read, each with the reason, where that is no error of all. They may be deleted meanwhile."""

    def __init__(self, gone: Callable[[Collection[str]], Collection[str]]) -> None:
        """``gone`` says which of these topics don't exist any more."""
        self.reasons: dict[str, str] = {}
        self.gone = gone


class _Unread:
    """Partitions that aren't read to their ends, where each goes on, and since when nothing new has come of them."""

    def __init__(self, limits: Mapping[Partition, tuple[int, int]], refused: Refused | None) -> None:
        self._following = {at: start for at, (start, end) in limits.items() if start < end}
        self.ends = {at: limits[at][1] for at in self._following}
        self._refused = refused
        self.heard = self.asked = time.monotonic()

    def ask(self, consumer: Consumer) -> None:
        """Tell the client from where to read."""
        consumer.assign([TopicPartition(*at, self._following[at]) for at in sorted(self.ends)])
        self.asked = time.monotonic()

    def take(self, message: Message) -> bool:
        """Whether it is one of the records. Raises KafkaException for a partition that can't be read."""
        at, offset, error = (message.topic() or "", message.partition() or 0), message.offset() or 0, message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if self._refused is None or at[0] not in {topic for topic, _ in self.ends}:
                raise KafkaException(error)
            self.leave([at[0]], error.str())
        if at not in self.ends:
            return False  # one that was read goes on to tell of what is written
        self.asked, end = time.monotonic(), self.ends[at]
        following = offset + (error is None)
        if following > self._following[at]:  # the same end again isn't an answer: it comes for every question
            self._following[at], self.heard = following, self.asked
        # A broker that has just come back may tell of an earlier end: what follows comes when it knows of it.
        if following >= end:
            del self.ends[at]
        return error is None and offset < end

    def leave(self, topics: Collection[str], why: str = "") -> None:
        """Read no more of these topics; with a reason they are refused."""
        if why and self._refused is not None:
            self._refused.reasons.update(dict.fromkeys(topics, why))
        self.ends = {at: end for at, end in self.ends.items() if at[0] not in topics}

    def check_heard(self) -> None:
        """Raises Unavailable when nothing has come for long."""
        if not self.ends or time.monotonic() - self.heard <= KAFKA_SILENT_S:
            return
        nothing = f"nothing came for {KAFKA_SILENT_S:.0f} s"
        if self._refused is None:
            raise Unavailable(f"the end of topic {min(self.ends)[0]} wasn't reached: {nothing}")
        self.leave([topic for topic, _ in self.ends], nothing)


def message_lists(
    consumer: Consumer,
    limits: Mapping[Partition, tuple[int, int]],
    *,
    while_waiting: Callable[[], None] = lambda: None,
    wait_s: float = WAIT_S,
    refused: Refused | None = None,
) -> Generator[list[Message], None, None]:
    """All records of these partitions from the first of both offsets on, below the second. Those of one are in order.

    They come in lists of what is there by then, which are empty where nothing comes in ``wait_s``. The ends are given:
    while somebody writes all the time, the client never reports one.

    Raises Unavailable when nothing comes for long, and KafkaException for a partition that can't be read, unless
    ``refused`` takes that.
    """
    unread = _Unread(limits, refused)
    unread.ask(consumer)
    while unread.ends:
        # One poll, then what came with it: asked for many records, the client waits until it has so many.
        first = consumer.poll(wait_s)
        came = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
        while_waiting()
        records = [message for message in came if unread.take(message)]
        if time.monotonic() - unread.asked > _ASK_AGAIN_S:
            if refused is not None:
                unread.leave(refused.gone({topic for topic, _ in unread.ends}))
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
    refused: Refused | None = None,
) -> Iterator[Message]:
    """The same one by one."""
    for portion in message_lists(consumer, limits, while_waiting=while_waiting, refused=refused):
        yield from portion
