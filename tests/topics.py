"""What a read-committed consumer sees of topics, and topics that are compacted at once."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from cdc.capture.questions import Event
from cdc.kafka.consumer import find_leaders
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.tag import TAG_HEADER

_PATIENCE_S = 300.0

_left: list[tuple[str, str]] = []


def remove_later(client: Mapping[str, str | int], pipeline: str) -> None:
    """Have a pipeline's topics removed after the tests of this file. Left topics slow everything that follows: listing
    topics would return thousands."""
    _left.append((str(client["bootstrap.servers"]), f"{pipeline}."))


def remove_left(bootstrap: str | None) -> None:
    """Remove what is left on these brokers. Other brokers that tests used are gone with their topics."""
    prefixes = tuple(prefix for brokers, prefix in _left if brokers == bootstrap)
    _left.clear()
    if prefixes:
        cluster = TopicAdmin({"bootstrap.servers": str(bootstrap)})
        cluster.remove([topic for topic in cluster.all_partition_counts() if topic.startswith(prefixes)])


def event_of(message: Message) -> Event:
    """A record as capture makes it; a tombstone has its tag beside it."""
    tag = dict(message.headers() or []).get(TAG_HEADER)
    return (message.topic(), message.key(), message.value(), tag)


def assign(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    """Make a consumer read these partitions at once, since it knows their leaders."""
    find_leaders(consumer, {at.topic for at in partitions})
    consumer.assign(list(partitions))


def read_committed(
    client: Mapping[str, str | int], topics: Collection[str], *, of: Callable[[Message], Any] = event_of
) -> dict[tuple[str, int], list[Any]]:
    """Every record of the topics up to their present ends: partition -> its events in order. ``of`` makes something
    else of a record."""
    counts = TopicAdmin(dict(client)).partition_counts(topics)
    partitions = [(topic, partition) for topic in topics for partition in range(counts[topic])]
    ends = TopicAdmin(dict(client)).end_offsets(partitions)
    consumer = Consumer(
        {
            **client,
            "group.id": "test",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    events: dict[tuple[str, int], list[Any]] = {at: [] for at in partitions}
    try:
        assign(consumer, [TopicPartition(topic, partition, 0) for topic, partition in partitions])
        deadline = time.monotonic() + _PATIENCE_S
        while not all(
            at.offset >= ends[at.topic, at.partition] or ends[at.topic, at.partition] == 0
            for at in consumer.position(consumer.assignment())
        ):
            assert time.monotonic() < deadline, f"topics aren't read to their end in {_PATIENCE_S:.0f} s"
            first = consumer.poll(0.05)
            for message in [] if first is None else [first, *consumer.consume(1000, 0)]:
                assert message.error() is None, message.error()
                events[message.topic(), message.partition()].append(of(message))
    finally:
        consumer.close()
    return events


def configure(client: Mapping[str, str | int], topics: Collection[str], settings: Mapping[str, str]) -> None:
    """Change settings of topics, and wait until the broker answers with them: it applies them a moment later."""
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in settings.items()
            ],
        )
        for topic in topics
    ]
    admin = AdminClient(dict(client))
    for future in admin.incremental_alter_configs(resources).values():
        future.result(_PATIENCE_S)
    deadline = time.monotonic() + _PATIENCE_S
    while not all(
        entries[name].value == value
        for future in admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in topics]).values()
        for entries in [future.result(_PATIENCE_S)]
        for name, value in settings.items()
    ):
        assert time.monotonic() < deadline, "the broker doesn't take up a topic's settings"
        time.sleep(0.02)


def compact_soon(client: Mapping[str, str | int], *topics: str) -> None:
    """Let the broker compact topics as soon as it can, including deletes. A partition's next record rolls a segment."""
    settings = {
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "0",
        "min.compaction.lag.ms": "0",
    }
    configure(client, topics, settings)
