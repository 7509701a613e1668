"""Clients of Kafka that can't be made: whoever asks for one gets an error with a hint."""

import time
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from cdc.kafka.client import batch_bytes, new_client
from cdc.kafka.consumer import open_consumer
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.transactions import Transactions
from cdc.model.errors import ConfigurationError, Unavailable
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.executor.log_reader import LogReader

Client = Mapping[str, str | int]

WITHOUT_ITS_FILE: Client = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "ssl",
    "ssl.ca.location": "/nowhere/ca.pem",
    "log_level": 0,
}


def _publisher(client: Client) -> object:
    return Transactions(client, "p", LargeRows(max_message_bytes=1 << 20))


def _consumer(client: Client) -> object:
    return open_consumer(client, ["p"])


def _dead_letter(client: Client) -> object:
    return DeadLetterTopic(client, "p").send([(b"{}", None)])


@pytest.mark.parametrize("client_of", [TopicAdmin, _consumer, _publisher, _dead_letter, LogReader])
def test_a_file_that_is_not_there_is_an_error_of_the_configuration(client_of: Callable[[Client], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location") as raised:
        client_of(WITHOUT_ITS_FILE)
    assert "ca_file" in (raised.value.hint or "")


def test_what_the_client_prints_by_itself_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    errors: list[object] = []
    settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 3, "error_cb": errors.append}
    client = new_client(Producer, settings)
    deadline = time.monotonic() + 300
    while not errors and time.monotonic() < deadline:
        client.poll(0.05)
    assert errors
    assert capfd.readouterr() == ("", "")


def test_a_machine_without_room_for_another_client_may_have_it_later() -> None:
    def full(_: object) -> object:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread"))

    with pytest.raises(Unavailable, match="Failed to create thread"):
        new_client(full, WITHOUT_ITS_FILE)


def test_a_batch_is_no_larger_than_what_each_of_its_topics_takes() -> None:
    assert batch_bytes(16 * 1024 * 1024) == batch_bytes(16 * 1024 * 1024, 2 * 1024 * 1024) < 1024 * 1024
    assert 99_000 < batch_bytes(400_000, 100_000) < 100_000
    assert batch_bytes(1) == 1
