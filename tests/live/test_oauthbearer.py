"""Kafka that accepts only OpenID Connect's tokens, which expire while they are used: capture, jobs and commands."""

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import urllib3
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from pyspark.sql import SparkSession

from cdc.kafka.settings import KAFKA_PASSWORD_VARIABLE, KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import Unavailable
from stack import ports as tcp
from stack.kafka import Kafka
from stack.process import Launch
from stack.server import Ports
from stack.stack import Endpoints
from tests.kafka_process import running_kafka
from tests.pipeline import Pipeline, wait_until
from tests.services import KAFKA_OVERRIDES

pytestmark = pytest.mark.live

LIFE_S = 8
"""Brokers end a connection whose token has expired."""

USER, SECRET = "lockstep", "s3cret"


class Issuer:
    """A server of OpenID Connect: it gives everybody with the secret a signed token of ``LIFE_S``."""

    def __init__(self, key: RSAPrivateKey) -> None:
        self.issued = 0
        issuer, expected = self, urllib3.make_headers(basic_auth=f"{USER}:{SECRET}")["authorization"]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                is_known = self.headers.get("authorization") == expected
                issuer.issued += is_known
                answer = {"access_token": _token(key), "token_type": "Bearer"} if is_known else {"error": "unknown"}
                body = json.dumps(answer).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self) -> dict[str, str | int]:
        return {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": self.url}


def _token(key: RSAPrivateKey) -> str:
    """A signed token, which states its own end."""

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    now = int(time.time())
    claims = {"iss": "issuer", "aud": "kafka", "sub": "lockstep", "iat": now, "exp": now + LIFE_S}
    text = b".".join(part(json.dumps(each).encode()) for each in ({"alg": "RS256", "kid": "k"}, claims))
    return (text + b"." + part(key.sign(text, padding.PKCS1v15(), hashes.SHA256()))).decode()


class _Validating(Kafka):
    """A broker that may read the issuer's keys from a file."""

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        launch = super().prepare(ports, directory)
        java, *rest = launch.command
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{directory / 'jwks.json'}"
        return replace(launch, command=[java, allowed, *rest])


@dataclass(frozen=True, slots=True)
class Brokers:
    """Brokers, and the issuer of the tokens that they accept."""

    address: str
    issuer: Issuer


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("kafka")
    key = rsa.generate_private_key(65537, 2048)
    numbers = key.public_key().public_numbers()
    parts = {
        name: base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8)).decode().rstrip("=")
        for name, number in (("n", numbers.n), ("e", numbers.e))
    }
    (directory / "jwks.json").write_text(json.dumps({"keys": [{"kty": "RSA", "alg": "RS256", "kid": "k", **parts}]}))
    taken: dict[str, int] = {}
    for name in ("main", "controller", "oauth"):
        taken[name] = tcp.pick(taken=taken.values())
    clients = [f"PLAINTEXT://{tcp.HOST}:{taken['main']}", f"OAUTH://{tcp.HOST}:{taken['oauth']}"]
    overrides = {
        **KAFKA_OVERRIDES,
        "listeners": ",".join([*clients, f"CONTROLLER://{tcp.HOST}:{taken['controller']}"]),
        "advertised.listeners": ",".join(clients),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,OAUTH:SASL_PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"{tcp.HOST}:{taken['controller']}",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.connections.max.reauth.ms": "3600000",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        ),
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory / 'jwks.json'}",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "issuer",
    }
    with running_kafka(_Validating(overrides, light=True), taken, directory):
        issuer = Issuer(key)
        yield Brokers(f"{tcp.HOST}:{taken['oauth']}", issuer)
        issuer.server.shutdown()
        issuer.server.server_close()


@pytest.mark.busy
@pytest.mark.soak
def test_a_pipeline_goes_on_while_tokens_end(
    brokers: Brokers, endpoints: Endpoints, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, SECRET)
    given = ", ".join(f'"{name}" = "{value}"' for name, value in brokers.issuer.settings().items())
    kafka = f"""
sasl_mechanism = "OAUTHBEARER"
username = "{USER}"
librdkafka = {{ {given} }}
"""
    name = f"t{uuid.uuid4().hex[:10]}"
    theirs = replace(endpoints, kafka_bootstrap=brokers.address)
    pipeline = Pipeline(theirs, tmp_path, name, sinks=True, more={"kafka": kafka})
    try:
        with pipeline.sql() as connection:
            connection.execute(f"insert into {name}.account (id, owner) select i, 'o' from generate_series(1, 50) i")
            connection.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 50) i")
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        applier = pipeline.apply(spark)
        before = brokers.issuer.issued
        pipeline.change_accounts("first")
        # Capture and the job ask for one per life each.
        wait_until(lambda: brokers.issuer.issued >= before + 4, what="further tokens")
        pipeline.change_accounts("second")
        pipeline.wait_published(capture)
        pipeline.wait_applied(applier)
        pipeline.assert_sinks_equal()
        assert capture.poll() is None
        assert "eyJ" not in capture.output(), "no token is told"
    finally:
        pipeline.close()


@pytest.mark.soak
def test_who_gets_no_token_is_told_so(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = KafkaSettings(
        bootstrap_servers=brokers.address,
        sasl_mechanism="OAUTHBEARER",
        username=USER,
        librdkafka=brokers.issuer.settings(),
    )
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, SECRET)
    assert TopicAdmin(kafka.client()).partition_counts(["t"]) == {}
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, "another")
    with pytest.raises(Unavailable, match="Kafka accepts no connection: Failed to acquire SASL OAUTHBEARER token"):
        TopicAdmin(kafka.client()).partition_counts(["t"])
