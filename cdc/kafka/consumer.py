"""A consumer that belongs to no group's bookkeeping: whoever uses it says where to read, and how far."""

from collections.abc import Mapping

from confluent_kafka import Consumer

from cdc.kafka.client import new_client


def open_consumer(client: Mapping[str, str | int], *, fetch_wait_ms: int = 20) -> Consumer:
    """Reads what is committed, and tells where a partition ends as of now.

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
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": fetch_wait_ms,
        },
    )
