"""jobs.spark.java_tokens: how Java's client gets tokens."""

import json
import re
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import urllib3

from cdc.kafka.settings import KAFKA_PASSWORD_VARIABLE, KafkaSettings
from cdc.model.errors import ConfigurationError, Unavailable
from jobs.spark.source import kafka_options


def settings(file: Path | None = None, **librdkafka: str | int) -> KafkaSettings:
    program = "import sys; t = open(sys.argv[1]).read(); print(t); sys.exit(not t)"
    return KafkaSettings(
        bootstrap_servers="kafka:9092",
        security_protocol="sasl_ssl",
        sasl_mechanism="OAUTHBEARER",
        username="lockstep",
        password_command=None if file is None else (sys.executable, "-S", "-c", program, str(file)),
        librdkafka=librdkafka,
    )


def asked(options: dict[str, str], *, secret: str | None = None) -> tuple[int, dict[str, str]]:
    """What the address says to Java's client."""
    given = re.search(r'clientId="(.*)" clientSecret="(.*)"', options["kafka.sasl.jaas.config"])
    assert given is not None
    headers = urllib3.make_headers(basic_auth=f"{given[1]}:{secret or given[2]}")
    url = options["kafka.sasl.oauthbearer.token.endpoint.url"]
    try:
        with urlopen(Request(url, b"grant_type=client_credentials", headers)) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, json.load(refused)


def test_javas_client_gets_the_token_that_a_command_prints(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    options = kafka_options(settings(file))
    assert options["kafka.sasl.mechanism"] == "OAUTHBEARER"
    assert asked(options) == (200, {"access_token": "first", "token_type": "Bearer"})
    file.write_text("second")
    assert asked(options)[1]["access_token"] == "second"
    assert asked(kafka_options(settings(file))) == asked(options), "one address for all queries"
    assert asked(options, secret="guessed") == (401, {"error": "invalid_client"})
    file.write_text("")
    assert asked(options)[0] == 503


def test_a_command_that_fails_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    with pytest.raises(Unavailable, match=r"kafka\.password_command failed"):
        kafka_options(settings(tmp_path / "token"))


def test_javas_client_asks_a_server_of_openid_connect_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, 'gehe"im')
    oidc = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.scope": "rows", "https.ca.location": "/ca.pem"}
    with pytest.raises(ConfigurationError, match="needs an address, a user and a password"):
        kafka_options(settings(**oidc))
    options = kafka_options(settings(**oidc, **{"sasl.oauthbearer.token.endpoint.url": "https://login.example/token"}))
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert options["kafka.sasl.jaas.config"].endswith(
        ' required clientId="lockstep" clientSecret="gehe\\"im" scope="rows"'
        ' ssl.truststore.type="PEM" ssl.truststore.location="/ca.pem";'
    )
