"""extensions.streams.jobs.posting, where nothing gets through."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.settings import Tls
from cdc.webhook import WebhookSettings
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posted import Posted
from extensions.streams.jobs.posting import RowPoster
from extensions.streams.jobs.records import posted_name
from extensions.streams.settings import StreamQuerySettings
from jobs.generations.lease import GenerationLease
from jobs.settings import SparkSettings
from sinks.memory import open_memory
from sinks.redis.settings import RedisSettings
from tests.databases import until
from tests.generations import prepared_store


@pytest.fixture
def without_tls() -> Iterator[int]:
    """The port of a server that has no TLS, and says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(100)
                        connection.sendall(b"no TLS here")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def plan_of(kafka: KafkaSettings) -> StreamQueryPlan:
    return StreamQueryPlan(
        name="recent",
        query=StreamQuerySettings(key=("id",), sql="x", webhook=WebhookSettings(url="http://127.0.0.1:1/")),
        settings=RedisSettings(),
        streams={},
        pipeline="shop",
        kafka=kafka,
        spark=SparkSettings(checkpoint_directory="checkpoints"),
        once=True,
    )


def test_why_kafka_keeps_rows_back_is_stored_beside_the_result(without_tls: int) -> None:
    store, said = prepared_store(1), list[str]()
    plan = plan_of(KafkaSettings(bootstrap_servers=f"127.0.0.1:{without_tls}", tls=Tls()))
    poster = RowPoster(
        plan,
        GenerationLease(open_memory(store), 1),
        generations=lambda: [1],
        said=lambda reason, _: said.append(reason),
    )
    with contextlib.closing(poster):
        until(lambda: posted_name(1) in store.records and said)
    at = Posted.parse(store.records[posted_name(1)])
    assert at.reason.startswith("Kafka accepts no connection: ")
    assert at.since_ms is not None
    assert said[0].startswith(at.reason)
