"""Topics and partitions on a real broker."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.newest_records import newest_records
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans, table_topic_plan
from cdc.kafka.topic_names import table_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from stack.stack import Endpoints
from tests.events import kafka_settings
from tests.history import state
from tests.threads import beside
from tests.topics import assign

pytestmark = pytest.mark.live

PARTITIONS = 7

# The values of Kafka's own test of its hash (UtilsTest.testMurmur2); keys go to the partition of their positive hash.
KNOWN_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def _publisher(settings: KafkaSettings, prefix: str) -> TransactionalPublisher:
    publisher = TransactionalPublisher(
        settings.client(),
        prefix,
        LargeRows(max_message_bytes=settings.topics.max_message_bytes),
        prefix=prefix,
    )
    publisher.start()
    return publisher


def test_a_key_goes_to_the_partition_that_javas_clients_choose(endpoints: Endpoints, prefix: str) -> None:
    settings = kafka_settings(endpoints.kafka_bootstrap, partitions=PARTITIONS)
    topic = table_topic(prefix, TableName("public", "orders"))
    TopicAdmin(settings.client()).create(
        [*control_topic_plans(prefix, settings.topics), table_topic_plan(topic, settings.topics)]
    )
    publisher = _publisher(settings, prefix)
    for key in KNOWN_HASHES:
        publisher.send(topic, key, b"{}")
    publisher.commit(state())
    publisher.close()
    consumer = Consumer({**settings.client(), "group.id": prefix, "isolation.level": "read_committed"})
    assign(consumer, [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    partitions: dict[bytes, int | None] = {}
    while len(partitions) < len(KNOWN_HASHES):
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        partitions[bytes(message.key() or b"")] = message.partition()
    consumer.close()
    assert partitions == {key: (hashed & 0x7FFF_FFFF) % PARTITIONS for key, hashed in KNOWN_HASHES.items()}


@pytest.mark.parametrize(
    "name", [TableName("My Schema", 'odd "é" 😀'), TableName("a.b", "c-d"), TableName("s", "t" * 230)], ids=str
)
def test_a_table_of_any_name_gets_its_topic(endpoints: Endpoints, prefix: str, name: TableName) -> None:
    settings = kafka_settings(endpoints.kafka_bootstrap)
    cluster = TopicAdmin(settings.client())
    plan = table_topic_plan(table_topic(prefix, name), settings.topics)
    cluster.create([plan])
    assert cluster.missing([plan]) == []


def test_a_topic_is_made_as_planned(endpoints: Endpoints, prefix: str) -> None:
    settings = kafka_settings(endpoints.kafka_bootstrap)
    cluster = TopicAdmin(settings.client())
    plans = [*control_topic_plans(prefix, settings.topics), table_topic_plan(f"{prefix}.public.t", settings.topics)]
    cluster.create(plans)
    assert cluster.differences(plans) == []


def test_two_names_that_kafka_takes_for_one_are_refused_with_the_reason(endpoints: Endpoints, prefix: str) -> None:
    settings = kafka_settings(endpoints.kafka_bootstrap)
    cluster = TopicAdmin(settings.client())
    name, other = TableName("a_b", "c"), TableName("a", "b_c")
    cluster.create([table_topic_plan(table_topic(prefix, name), settings.topics)])
    with pytest.raises(LockstepError, match="collides with existing topic") as caught:
        cluster.create([table_topic_plan(table_topic(prefix, other), settings.topics)])
    assert "'.' and '_' are the same" in (caught.value.hint or "")


@pytest.mark.soak
def test_the_stacks_brokers_write_the_markers_of_every_committed_transaction(endpoints: Endpoints) -> None:
    assert not TopicAdmin({"bootstrap.servers": endpoints.kafka_bootstrap}).loses_commit_markers()


@contextmanager
def _writing_without_a_pause(bootstrap: str, topic: str) -> Iterator[None]:
    """So much that a consumer always gets more, and never hears that it has reached the end."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    producer.produce(topic, key=b"k", value=b"first")
    producer.flush(30)

    def write(over: threading.Event) -> None:
        while not over.is_set():
            with suppress(BufferError):  # full: its content keeps the reader busy
                producer.produce(topic, key=b"k", value=b"later")
            producer.poll(0.0002)

    with beside(write):
        yield
    producer.flush(30)


def test_a_topic_is_read_to_its_end_as_of_now_while_somebody_writes_all_the_time(
    endpoints: Endpoints, prefix: str
) -> None:
    settings = kafka_settings(endpoints.kafka_bootstrap)
    plan = control_topic_plans(prefix, settings.topics)[0]
    TopicAdmin(settings.client()).create([plan])
    with _writing_without_a_pause(endpoints.kafka_bootstrap, plan.name):
        assert read_compacted(settings.client(), plan.name).keys() == {b"k"}
        assert [record.key for record in newest_records(settings.client(), [plan.name])] == [b"k"]


def test_a_topic_that_the_brokers_dont_list_is_not_read_as_an_empty_one(endpoints: Endpoints, prefix: str) -> None:
    reader = TopicReader(kafka_settings(endpoints.kafka_bootstrap).client())
    reads: list[Callable[[str], object]] = [reader.has_records, lambda topic: list(reader.live_keys(topic))]
    for read in reads:
        with pytest.raises(Unavailable, match=f"don't list topic {prefix}"):
            read(f"{prefix}.public.orders")


def test_a_topic_that_is_gone_ends_a_publishers_try(endpoints: Endpoints, prefix: str) -> None:
    settings = kafka_settings(endpoints.kafka_bootstrap)
    TopicAdmin(settings.client()).create(control_topic_plans(prefix, settings.topics))
    publisher = _publisher(settings, prefix)
    gone = f"{prefix}.public.orders"
    with pytest.raises(Unavailable, match="doesn't exist any more"):
        publisher.send(gone, b"{}", b"{}")
    with pytest.raises(Unavailable, match="don't list"):
        publisher.commit(state(), covering=[gone])
    publisher.close()
    assert TopicAdmin(settings.client()).all_partition_counts().keys().isdisjoint({gone})
