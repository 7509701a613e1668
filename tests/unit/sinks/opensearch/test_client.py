"""sinks.opensearch.client: how it connects; what it makes of answers is in tests/contract"""

import pytest
from pydantic import SecretStr

from sinks.access import Login, Tls
from sinks.opensearch.client import OpenSearchClient
from sinks.opensearch.settings import OpenSearchSettings


@pytest.mark.parametrize(
    ("verify", "requirement", "hostname"), [(True, "CERT_REQUIRED", None), (False, "CERT_NONE", False)]
)
def test_certificates_are_checked_unless_that_is_switched_off(verify: bool, requirement: str, hostname: object) -> None:
    settings = OpenSearchSettings(
        urls=("https://h:9200",), tls=Tls(verify=verify), login=Login(user="u", password=SecretStr("p"))
    )
    client = OpenSearchClient(settings)
    connection = client.transport().get_connection()
    pool = connection.pool
    assert (pool.cert_reqs, pool.assert_hostname) == (requirement, hostname)
    assert connection.headers["authorization"] == "Basic dTpw"
    client.close()


def test_a_connection_is_given_up_sooner_than_a_slow_request() -> None:
    client = OpenSearchClient(OpenSearchSettings(timeout_s=60))
    timeout = client.transport().get_connection().timeout
    assert (timeout.connect_timeout, timeout.read_timeout) == (5, 60)
    client.close()
