"""Which of the client's own settings can be given."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from pydantic import ValidationError

from cdc.kafka.client import new_client
from cdc.kafka.settings import KAFKA_PASSWORD_VARIABLE, KafkaSettings
from cdc.settings import Tls
from tests.configurations import oauthbearer


def settings(**given: str | int) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers="kafka:9092", librdkafka=given)


def test_settings_of_the_connection_reach_the_client() -> None:
    given = {"client.rack": "eu-1a", "reconnect.backoff.max.ms": 500, "socket.keepalive.enable": "true"}
    assert given.items() <= settings(**given).client().items()


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "auto.offset.reset",
        "enable.idempotence",
        "enable.ssl.certificate.verification",
        "isolation.level",
        "partitioner",
        "sasl.oauthbearer.client.secret",
        "sasl.password",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
        "transactional.id",
    ],
)
def test_what_the_promise_or_the_trust_rests_on_cant_be_changed(name: str) -> None:
    with pytest.raises(ValidationError, match=f"can't be set here: {name}"):
        settings(**{name: "none"})


_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


def test_the_client_gets_a_token_by_itself_from_a_server_of_openid_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, "geheim")
    given = {"sasl.oauthbearer.method": "oidc", _ENDPOINT: "https://login.example/token"}
    client = oauthbearer(**given).client()
    expected = {
        **given,
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "lockstep",
        "sasl.oauthbearer.client.secret": "geheim",
    }
    assert expected.items() <= client.items()
    assert "sasl.password" not in client
    new_client(Producer, client)


@pytest.mark.parametrize(
    ("librdkafka", "told"),
    [
        ({}, "needs librdkafka"),
        ({"sasl.oauthbearer.method": "oidc", _ENDPOINT: "http://login.example/token"}, "has to begin with https"),
    ],
)
def test_a_token_has_one_way_to_come_and_no_secret_goes_out_in_plain_text(
    librdkafka: dict[str, str | int], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        oauthbearer(**librdkafka)


def test_what_only_oauthbearer_uses_is_refused_elsewhere() -> None:
    with pytest.raises(
        ValidationError, match=r"sasl\.oauthbearer\.method, which only sasl_mechanism 'OAUTHBEARER' uses"
    ):
        settings(**{"sasl.oauthbearer.method": "oidc"})
    with pytest.raises(ValidationError, match="password_file without sasl_mechanism"):
        KafkaSettings(bootstrap_servers="kafka:9092", password_file=Path("a"))


def test_nobody_takes_a_line_for_encrypted_that_isnt() -> None:
    with pytest.raises(ValidationError, match=r"ssl.cipher.suites, which only TLS uses: set kafka.tls = \{\}"):
        settings(**{"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"})
    with pytest.raises(ValidationError, match=r"no security_protocol: .* For ssl and sasl_ssl set kafka.tls = \{\}"):
        KafkaSettings.model_validate({"bootstrap_servers": "kafka:9093", "security_protocol": "ssl"})
    tls = {"librdkafka": {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "tls": Tls()}
    assert KafkaSettings.model_validate({"bootstrap_servers": "kafka:9093", **tls}).security_protocol == "ssl"
