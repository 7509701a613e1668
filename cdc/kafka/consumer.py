"""A consumer that uses no group: the caller says where to read, and how far."""

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.kafka.client import new_client

CLOSE_S: Final = 5.0
_LEADERS_S: Final = 2.0


def open_consumer(
    client: Mapping[str, Any],
    topics: Collection[str],
    *,
    fetch_wait_ms: int = 20,
    committed: bool = True,
    lost_is_error: bool = False,
) -> Consumer:
    """Reads what is ``committed`` of these topics, else all, and reports where a partition ends at present.

    That end moves while somebody writes, and steady writing keeps the client from reporting it, so a reader fixes its
    own end first. ``fetch_wait_ms`` is how long the broker holds a request without records. A longer wait means fewer
    requests, and the end is reported that much later.

    ``lost_is_error``: an offset that the topic no longer has makes the next poll fail. Otherwise reading continues
    where the topic begins. Raises as ``new_client``.
    """
    consumer: Consumer = new_client(
        Consumer,
        {
            **client,
            "group.id": "lockstep-control",  # never committed: positions are explicit
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "error" if lost_is_error else "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": fetch_wait_ms,
        },
    )
    find_leaders(consumer, topics)
    return consumer


def find_leaders(consumer: Consumer, topics: Iterable[str]) -> None:
    """Let a consumer find the leaders of these topics' partitions before it is assigned some.

    Without this, a consumer assigned a partition with an unknown leader waits for its next regular look, half a second
    to a second later. A request for an offset makes it look at once, within milliseconds. If that fails, it finds the
    leaders later as usual: nothing is raised. The request waits behind one that a broker holds.
    """
    with suppress(KafkaException):
        consumer.offsets_for_times([TopicPartition(topic, 0, 0) for topic in topics], timeout=_LEADERS_S)


def close_consumer(consumer: Consumer) -> None:
    """Close it, waiting only some seconds. librdkafka may wait for ever for one of its threads, for instance after a
    partition was out of range. The remainder then ends with the process. Nothing depends on it: these consumers have
    committed nothing."""
    closing = threading.Thread(target=consumer.close, name="close-consumer", daemon=True)
    closing.start()
    closing.join(CLOSE_S)
