"""Compaction that is forced on a real broker: what is gone then, what is put back, and what is remembered."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cdc.kafka.settings import TopicSettings
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan
from extensions.erase.forced_compaction import TEMPORARY, Compacted, ForcedCompaction
from extensions.erase.key_records import key_records
from stack.stack import Endpoints
from tests.events import kafka_settings
from tests.pipeline import wait_until
from tests.topics import assign

pytestmark = pytest.mark.live

SETTINGS = TopicSettings(replication_factor=1)
TIMEOUT_S = 90.0
OWN = {"segment.ms": "86400000", "min.cleanable.dirty.ratio": None}


class Topic:
    """A compacted topic with two partitions, and who writes to it as capture does."""

    def __init__(self, endpoints: Endpoints, **config: str) -> None:
        self.client = kafka_settings(endpoints.kafka_bootstrap).client()
        self.pipeline = f"fc{uuid.uuid4().hex[:10]}"
        self.name = f"{self.pipeline}.public.t"
        self.cluster = TopicAdmin(self.client)
        settings = {"cleanup.policy": "compact", "segment.ms": "86400000", "max.compaction.lag.ms": "604800000"}
        self.cluster.create([TopicPlan(self.name, 2, 1, settings | config)])
        self._producer = Producer({**self.client, "transactional.id": self.pipeline})
        self._producer.init_transactions(30)

    def write(self, *records: tuple[bytes, bytes | None], commits: bool = True) -> None:
        self._producer.begin_transaction()
        for key, value in records:
            self._producer.produce(self.name, key=key, value=value, partition=1)
        self._producer.flush()
        (self._producer.commit_transaction if commits else self._producer.abort_transaction)(30)

    def forced(self, **how: Any) -> ForcedCompaction:
        return ForcedCompaction(self.client, self.pipeline, SETTINGS, **how)

    def everything(self) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of each record in the log, committed or not."""
        consumer = Consumer(
            {**self.client, "group.id": "test", "isolation.level": "read_uncommitted", "enable.partition.eof": True}
        )
        try:
            assign(consumer, [TopicPartition(self.name, 1, 0)])
            found = []
            while (message := consumer.poll(30)) is not None and message.error() is None:
                found.append((message.key(), message.value()))
            return found
        finally:
            consumer.close()

    def config(self) -> dict[str, str | None]:
        return self.cluster.own_config(self.name, TEMPORARY)


@pytest.fixture
def topic(endpoints: Endpoints) -> Callable[..., Topic]:
    return lambda **config: Topic(endpoints, **config)


@pytest.mark.soak
def test_older_records_of_a_key_are_gone_those_of_aborted_transactions_too(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.write((b"k", b"secret 1"), (b"other", b"stays"))
    made.write((b"k", b"secret aborted"), commits=False)
    made.write((b"k", b"secret 2"), (b"k", b"deletion"), (b"k", None))
    assert made.forced().compact(made.name, [1], timeout_s=TIMEOUT_S) is Compacted.DONE
    # What it has written itself is gone too, but for what is in the newest segment.
    assert [record for record in made.everything() if record[0] != b"\0"] == [(b"other", b"stays"), (b"k", None)]
    assert made.config() == OWN
    (left,) = key_records(made.client, made.name, b"k".__eq__)
    assert left.is_tombstone
    since_ms = made.forced().remembered(made.name).compacted_since_ms(left.partition, left.offset)
    assert since_ms is not None
    assert abs(since_ms - time.time() * 1000) < 60_000


@pytest.mark.soak
def test_readers_of_what_is_committed_see_none_of_it(topic: Callable[..., Topic]) -> None:
    made = topic()
    made.write((b"k", b"1"))
    made.write((b"k", b"2"))
    assert made.forced().compact(made.name, [1], timeout_s=TIMEOUT_S) is Compacted.DONE
    made.write((b"l", b"3"))
    consumer = Consumer({**made.client, "group.id": "test", "enable.partition.eof": True})
    assign(consumer, [TopicPartition(made.name, 1, 0)])
    seen = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        seen.append((message.key(), message.value()))
    consumer.close()
    assert seen == [(b"k", b"2"), (b"l", b"3")]


def test_a_tombstone_goes_with_the_first_compaction_after_its_time(topic: Callable[..., Topic]) -> None:
    made = topic(**{"delete.retention.ms": "1"})
    made.write((b"k", b"secret"), (b"k", None))
    for _ in range(2):
        assert made.forced().compact(made.name, [1], timeout_s=TIMEOUT_S) is Compacted.DONE
    assert [record for record in made.everything() if record[0] != b"\0"] == []


@pytest.mark.soak
def test_where_records_have_to_stay_for_a_while_a_later_one_finds_out_that_they_are_gone(
    topic: Callable[..., Topic],
) -> None:
    lag_ms = 2_000
    made = topic(**{"min.compaction.lag.ms": str(lag_ms)})
    made.write((b"k", b"secret"), (b"k", None))

    def outcome() -> Compacted:
        return made.forced().compact(made.name, [1], timeout_s=TIMEOUT_S, lag_ms=lag_ms)

    assert outcome() is Compacted.NOTHING_RIPE
    marked_by_ms = time.time() * 1000
    assert made.config() == OWN
    wait_until(lambda: outcome() is Compacted.DONE, what="it was compacted")
    up_to_ms = made.forced().remembered(made.name).compacted_up_to_ms([1])
    assert up_to_ms is not None
    assert marked_by_ms - 60_000 < up_to_ms
    assert [record for record in made.everything() if record[0] == b"k"] == [(b"k", None)]
    (left,) = key_records(made.client, made.name, b"k".__eq__)
    assert made.forced().remembered(made.name).compacted_since_ms(left.partition, left.offset) is not None
    assert made.config() == OWN


_KILLED = """
import sys
from extensions.erase.forced_compaction import ForcedCompaction
from cdc.kafka.settings import KafkaSettings, TopicSettings
client = KafkaSettings(bootstrap_servers=sys.argv[1]).client()
topics = TopicSettings(replication_factor=1)
ForcedCompaction(client, sys.argv[2], topics).compact(sys.argv[3], [1], timeout_s=300)
"""


@pytest.mark.soak
def test_what_a_killed_one_has_changed_is_put_back_by_the_next(
    topic: Callable[..., Topic], endpoints: Endpoints
) -> None:
    # So short a lag that nothing is compacted while it runs.
    made = topic(**{"min.compaction.lag.ms": "3600000"})
    made.write((b"k", b"1"), (b"k", None))
    arguments = [sys.executable, "-c", _KILLED, endpoints.kafka_bootstrap, made.pipeline, made.name]
    with subprocess.Popen(arguments, start_new_session=True) as process:
        wait_until(lambda: made.config() == dict(TEMPORARY), what="its settings are changed")
        os.kill(process.pid, signal.SIGKILL)
    assert made.forced().restore() == [made.name]
    assert made.config() == OWN
    assert made.forced().restore() == []
