"""cdc.kafka.consumer"""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdc.kafka.consumer import close_consumer, find_leaders


def test_a_consumer_is_closed() -> None:
    closed = threading.Event()
    close_consumer(cast("Any", SimpleNamespace(close=closed.set)))
    assert closed.is_set()


def test_a_consumer_that_never_ends_its_threads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.kafka.consumer.CLOSE_S", 0.05)
    ends, began = threading.Event(), threading.Event()

    def close() -> None:
        began.set()
        ends.wait(300)

    close_consumer(cast("Any", SimpleNamespace(close=close)))
    assert began.is_set()
    ends.set()


def test_leaders_are_found_by_asking_for_an_offset_of_each_topic() -> None:
    asked: list[tuple[str, int]] = []

    def offsets_for_times(partitions: list[TopicPartition], timeout: float) -> None:
        assert timeout > 0
        asked.extend((partition.topic, partition.partition) for partition in partitions)

    find_leaders(cast("Any", SimpleNamespace(offsets_for_times=offsets_for_times)), ["a", "b"])
    assert asked == [("a", 0), ("b", 0)]


def test_what_brokers_dont_tell_yet_is_no_error() -> None:
    def offsets_for_times(partitions: list[TopicPartition], timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    find_leaders(cast("Any", SimpleNamespace(offsets_for_times=offsets_for_times)), ["a"])
