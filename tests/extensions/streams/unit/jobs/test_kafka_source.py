"""Options of Spark's Kafka source."""

from pathlib import Path

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError
from cdc.settings import Tls
from extensions.streams.jobs.kafka_source import jaas_config, kafka_options, starting_offsets

KEY = (
    "-----BEGIN PRIVATE " + "KEY-----\nAAAA\n-----END PRIVATE " + "KEY-----\n"
)  # in pieces: scanners take it for a real one
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n"


def test_only_committed_records_are_read() -> None:
    options = kafka_options(KafkaSettings(bootstrap_servers="broker:9092"))
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafka.security.protocol"] == "PLAINTEXT"
    assert not any("sasl" in name or "ssl" in name for name in options)


def test_settings_of_the_connection_reach_javas_client_in_its_words() -> None:
    given = {"client.rack": "eu-1a", "reconnect.backoff.max.ms": 500, "socket.keepalive.enable": "true"}
    options = kafka_options(KafkaSettings(bootstrap_servers="kafka:9092", librdkafka=given))
    assert options["kafka.client.rack"] == "eu-1a"
    assert options["kafka.reconnect.backoff.max.ms"] == "500"
    assert "kafka.socket.keepalive.enable" not in options, "Java's client has no such setting"


def test_a_dead_broker_is_left_before_its_minute_is_over() -> None:
    options = kafka_options(KafkaSettings(bootstrap_servers="broker:9092"))
    # The client refuses to wait less for all of an answer than for one request of it.
    assert int(options["kafka.request.timeout.ms"]) <= int(options["kafka.default.api.timeout.ms"]) < 60_000
    assert int(options["kafka.default.api.timeout.ms"]) * int(options["fetchOffset.numRetries"]) >= 60_000


def test_a_login_becomes_a_jaas_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    options = kafka_options(
        KafkaSettings(
            bootstrap_servers="broker:9092",
            tls=Tls(),
            sasl_mechanism="SCRAM-SHA-512",
            username="sinks",
            password_file=tmp_path / "password",
        )
    )
    assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="sinks" password="s3cret";'
    )


def test_quotes_and_backslashes_of_a_password_are_escaped() -> None:
    assert jaas_config("PLAIN", "u", 'a"b\\c').endswith('password="a\\"b\\\\c";')


def test_a_login_without_a_password_is_a_configuration_error() -> None:
    settings = KafkaSettings(bootstrap_servers="broker:9092", sasl_mechanism="PLAIN", username="sinks")
    with pytest.raises(ConfigurationError, match="needs a user name and a password"):
        kafka_options(settings)


def ssl_settings(directory: Path, key: str) -> KafkaSettings:
    for name, text in (("ca.pem", CERTIFICATE), ("client.pem", CERTIFICATE), ("client.key", key)):
        (directory / name).write_text(text)
    return KafkaSettings(
        bootstrap_servers="broker:9093",
        tls=Tls(
            ca_file=directory / "ca.pem",
            certificate_file=directory / "client.pem",
            key_file=directory / "client.key",
        ),
    )


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    options = kafka_options(ssl_settings(tmp_path, KEY))
    assert options["kafka.ssl.truststore.type"] == options["kafka.ssl.keystore.type"] == "PEM"
    assert options["kafka.ssl.truststore.certificates"] == CERTIFICATE
    assert options["kafka.ssl.keystore.certificate.chain"] == CERTIFICATE
    assert options["kafka.ssl.keystore.key"] == KEY


def test_a_key_that_java_cannot_read_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="openssl pkcs8 -topk8"):
        kafka_options(ssl_settings(tmp_path, KEY.replace("PRIVATE KEY", "RSA PRIVATE KEY")))


def test_a_missing_certificate_file_is_a_configuration_error(tmp_path: Path) -> None:
    settings = ssl_settings(tmp_path, KEY)
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(ConfigurationError, match="can't be read"):
        kafka_options(settings)


def test_sparks_notation_names_every_partition() -> None:
    offsets = {("shop.public.orders", 1): 6, ("shop.public.orders", 0): 5}
    assert starting_offsets(offsets) == '{"shop.public.orders": {"0": 5, "1": 6}}'
