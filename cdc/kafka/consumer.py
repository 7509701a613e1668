"""A consumer that belongs to no group's bookkeeping: whoever uses it says where to read, and how far."""

import threading
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer

from cdc.kafka.client import new_client

_CLOSE_S: Final = 5.0


def open_consumer(client: Mapping[str, Any], *, fetch_wait_ms: int = 20, committed: bool = True) -> Consumer:
    """Reads what is ``committed``, else all, and tells where a partition ends as of now.

    The end of a partition moves on while somebody writes, and steady writing keeps the client from reporting it.
    So a reader fixes its own end first. ``fetch_wait_ms`` is how long the broker holds a request without records.
    A longer wait means fewer requests, and the end is reported that much later.

    Raises as ``new_client``.
    """
    return new_client(
        Consumer,
        {
            **client,
            "group.id": "lockstep-control",  # never committed: positions are explicit
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": fetch_wait_ms,
        },
    )


def close_consumer(consumer: Consumer) -> None:
    """Close it, and wait no longer than some seconds.

    librdkafka may wait for ever for a thread of its own, as after a partition was out of range. What is left then ends
    with the process. Nothing depends on it: these consumers have committed nothing.
    """
    closing = threading.Thread(target=consumer.close, name="close-consumer", daemon=True)
    closing.start()
    closing.join(_CLOSE_S)
