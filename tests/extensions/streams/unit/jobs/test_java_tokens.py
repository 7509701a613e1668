"""extensions.streams.jobs.java_tokens: how Java's client gets tokens."""

import pytest

from cdc.kafka.settings import KAFKA_PASSWORD_VARIABLE
from cdc.model.errors import ConfigurationError
from extensions.streams.jobs.kafka_source import kafka_options
from tests.configurations import oauthbearer


def test_javas_client_asks_a_server_of_openid_connect_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, 'gehe"im')
    oidc = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.scope": "rows", "https.ca.location": "/ca.pem"}
    with pytest.raises(ConfigurationError, match="needs an address, a user and a password"):
        kafka_options(oauthbearer(**oidc))
    options = kafka_options(
        oauthbearer(**oidc, **{"sasl.oauthbearer.token.endpoint.url": "https://login.example/token"})
    )
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert options["kafka.sasl.jaas.config"].endswith(
        ' required clientId="lockstep" clientSecret="gehe\\"im" scope="rows"'
        ' ssl.truststore.type="PEM" ssl.truststore.location="/ca.pem";'
    )
