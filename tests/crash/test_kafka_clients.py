"""Open clients find a restarted broker again; by themselves they may never learn of the present leaders."""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans
from cdc.kafka.topic_names import PROGRESS, STATE, control_topic
from cdc.model.errors import Unavailable
from monitor.tail import new_messages
from tests.events import kafka_settings
from tests.pipeline import wait_until

pytestmark = [pytest.mark.live, pytest.mark.alone, pytest.mark.crash]

CLIENTS = 4
"""Of each kind: a client that asks at a bad moment is lost, another isn't."""

_numbers = itertools.count(1)
Ask = Callable[[], object]


@pytest.fixture
def asks(stack: Any) -> Iterator[list[Ask]]:
    settings = kafka_settings(stack.endpoints().kafka_bootstrap, partitions=1)
    client = settings.client()
    prefixes = [f"clients{os.getpid()}_{next(_numbers)}" for _ in range(CLIENTS)]
    for prefix in prefixes:
        TopicAdmin(client).create(control_topic_plans(prefix, settings.topics))
    readers = [ProgressReader(client, prefix, ()) for prefix in prefixes]
    yield [
        *(_end_of(TopicAdmin(client), control_topic(prefix, PROGRESS)) for prefix in prefixes),
        *(reader.new_records for reader in readers),
        *(_message_of(client, control_topic(prefix, STATE)) for prefix in prefixes),
    ]
    for reader in readers:
        reader.close()


def _end_of(cluster: TopicAdmin, topic: str) -> Ask:
    return lambda: (cluster.end_offsets([(topic, 0)]), cluster.committed_ends([(topic, 0)]))


def _message_of(client: Mapping[str, str | int], topic: str) -> Ask:
    """One client writes a message, and the one that follows the topic gets it."""
    deadline = [0.0]
    following = new_messages(client, {(topic, 0): 0}, stopping=lambda: time.monotonic() > deadline[0])
    written = itertools.count(1)

    def ask() -> None:
        producer = Producer({**client, "message.timeout.ms": 10_000})
        key = str(next(written)).encode()
        producer.produce(topic, b"{}", key)
        if producer.flush(10):
            raise Unavailable("the message wasn't written")
        deadline[0] = time.monotonic() + 30
        assert key in iter(lambda: next(following).key(), None)

    return ask


def _answers(ask: Ask) -> bool:
    try:
        ask()
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.soak)])
def test_every_open_client_answers_again_after_a_restart_of_its_broker(asks: list[Ask], stack: Any, end: str) -> None:
    assert all(_answers(ask) for ask in asks)
    getattr(stack, end)("kafka")
    stack.start("kafka")
    for ask in asks:
        wait_until(lambda ask=ask: _answers(ask), what="the client answers")
