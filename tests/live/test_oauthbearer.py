"""Kafka that lets in tokens alone, which end while they are used: capture, tables' first copies, jobs and commands."""

import base64
import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from pyspark.sql import SparkSession

from cdc.kafka.settings import KAFKA_PASSWORD_VARIABLE, KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import Unavailable
from cdc.printed_secret import password_command
from jobs.spark.java_tokens import TokenServer
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
"""Brokers end a connection whose token has ended."""

_ISSUES = """
import base64, json, pathlib, sys, time
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
key_file, runs, life_s = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
with runs.open("a") as file:
    file.write("x")
def part(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=")
now = int(time.time())
claims = {"iss": "issuer", "aud": "kafka", "sub": "lockstep", "iat": now, "exp": now + life_s}
text = b".".join(part(json.dumps(each).encode()) for each in ({"alg": "RS256", "kid": "k"}, claims))
key = serialization.load_pem_private_key(key_file.read_bytes(), None)
print((text + b"." + part(key.sign(text, padding.PKCS1v15(), hashes.SHA256()))).decode())
"""
"""A signed token, which says when it ends by itself."""


class _Validating(Kafka):
    """A broker that may read the keys of whoever issues tokens from a file."""

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        launch = super().prepare(ports, directory)
        java, *rest = launch.command
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{directory / 'jwks.json'}"
        return replace(launch, command=[java, allowed, *rest])


@dataclass(frozen=True, slots=True)
class Brokers:
    """Brokers, and the key of whoever issues the tokens that they take."""

    address: str
    key: Path

    def issuing(self, runs: Path, life_s: int, *, key: Path | None = None) -> list[str]:
        """A command that prints a token, and notes that it has run."""
        return [sys.executable, "-c", _ISSUES, str(key or self.key), str(runs), str(life_s)]


def make_key(file: Path) -> RSAPrivateKey:
    key = rsa.generate_private_key(65537, 2048)
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return key


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("kafka")
    numbers = make_key(directory / "issuer.key").public_key().public_numbers()
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
        yield Brokers(f"{tcp.HOST}:{taken['oauth']}", directory / "issuer.key")


@pytest.mark.busy
@pytest.mark.soak
def test_a_pipeline_goes_on_while_tokens_end(
    brokers: Brokers, endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    runs = tmp_path / "runs"
    kafka = f"""
security_protocol = "sasl_plaintext"
sasl_mechanism = "OAUTHBEARER"
password_command = {json.dumps(brokers.issuing(runs, LIFE_S))}
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
        before = runs.stat().st_size
        pipeline.change_accounts("first")
        # Capture and the job ask for one per life each.
        wait_until(lambda: runs.stat().st_size >= before + 4, what="further tokens")
        pipeline.change_accounts("second")
        pipeline.wait_published(capture)
        pipeline.wait_applied(applier)
        pipeline.assert_sinks_equal()
        assert capture.poll() is None
        assert "eyJ" not in capture.told(), "no token is told"
    finally:
        pipeline.close()


@pytest.mark.soak
def test_the_client_gets_its_token_from_a_server_of_openid_connect(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = TokenServer(password_command(brokers.issuing(tmp_path / "runs", 600), setting="issuer"))
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, issuer.secret)
    kafka = KafkaSettings(
        bootstrap_servers=brokers.address,
        security_protocol="sasl_plaintext",
        sasl_mechanism="OAUTHBEARER",
        username="lockstep",
        librdkafka={"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": issuer.url},
    )
    assert TopicAdmin(kafka.client()).partition_counts(["t"]) == {}
    monkeypatch.setenv(KAFKA_PASSWORD_VARIABLE, "another")
    with pytest.raises(Unavailable, match="Kafka lets nobody in: Failed to acquire SASL OAUTHBEARER token"):
        TopicAdmin(kafka.client()).partition_counts(["t"])
