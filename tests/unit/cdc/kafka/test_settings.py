"""Which of the client's own settings can be given."""

import pytest
from pydantic import ValidationError

from cdc.kafka.settings import KafkaSettings
from jobs.spark.source import kafka_options


def settings(**given: str | int) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers="kafka:9092", librdkafka=given)


def test_settings_of_the_connection_reach_both_clients_in_their_words() -> None:
    given = {"client.rack": "eu-1a", "reconnect.backoff.max.ms": 500, "socket.keepalive.enable": "true"}
    kafka = settings(**given)
    assert given.items() <= kafka.client().items()
    options = kafka_options(kafka)
    assert options["kafka.client.rack"] == "eu-1a"
    assert options["kafka.reconnect.backoff.max.ms"] == "500"
    assert "kafka.socket.keepalive.enable" not in options, "Java's client has no such setting"


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "auto.offset.reset",
        "enable.idempotence",
        "enable.ssl.certificate.verification",
        "isolation.level",
        "partitioner",
        "sasl.password",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
        "transactional.id",
    ],
)
def test_what_the_promise_or_the_trust_rests_on_cant_be_changed(name: str) -> None:
    with pytest.raises(ValidationError, match=f"can't be set here: {name}"):
        settings(**{name: "none"})
