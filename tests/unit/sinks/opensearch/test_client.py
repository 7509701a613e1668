"""sinks.opensearch.client: how it connects; what it makes of answers is in tests/contract"""

import sys

import pytest
from pydantic import SecretStr

from cdc.model.errors import ConfigurationError, Unavailable
from sinks.access import Login
from sinks.opensearch.client import OpenSearchClient
from sinks.opensearch.settings import OpenSearchSettings


def test_certificates_are_checked() -> None:
    settings = OpenSearchSettings(urls=("https://h:9200",), login=Login(user="u", password=SecretStr("p")))
    client = OpenSearchClient(settings)
    connection = client.transport().get_connection()
    pool = connection.pool
    assert (pool.cert_reqs, pool.assert_hostname) == ("CERT_REQUIRED", None)
    assert connection.headers["authorization"] == "Basic dTpw"
    client.close()


def test_a_connection_is_given_up_sooner_than_a_slow_request() -> None:
    client = OpenSearchClient(OpenSearchSettings(timeout_s=60))
    timeout = client.transport().get_connection().timeout
    assert (timeout.connect_timeout, timeout.read_timeout) == (5, 60)
    client.close()


def test_without_the_library_that_signs_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    client = OpenSearchClient(OpenSearchSettings(aws_region="eu-central-1"))
    with pytest.raises(ConfigurationError, match="needs botocore") as caught:
        client.transport()
    assert "lockstep[aws]" in (caught.value.hint or "")


def test_keys_that_cant_be_renewed_are_no_cluster_that_doesnt_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def sign(*_: object) -> dict[str, str]:
        raise Unavailable("the AWS keys of this sink can't be renewed", hint="where they are looked for")

    monkeypatch.setattr("sinks.opensearch.client.Signing", lambda _: sign)
    client = OpenSearchClient(OpenSearchSettings(aws_region="eu-central-1"))
    with pytest.raises(Unavailable, match="keys of this sink can't be renewed") as caught:
        client.call("GET", "/")
    assert caught.value.hint
    client.close()
