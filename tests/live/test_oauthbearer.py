"""Kafka that lets in tokens alone, which end while they are used: capture, tables' first copies, jobs and commands."""

import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import Unavailable
from stack import ports as tcp
from stack.kafka import Kafka
from stack.stack import Endpoints
from tests.kafka_process import running_kafka
from tests.pipeline import Pipeline, wait_until
from tests.services import KAFKA_OVERRIDES

pytestmark = pytest.mark.live

LIFE_S = 5
"""Brokers end a connection whose token has ended."""

_ISSUES = """
import base64, json, pathlib, sys, time
file, life_s = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with file.open("a") as runs:
    runs.write("x")
def part(content):
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
now = time.time()
print(part({"alg": "none"}) + "." + part({"sub": "lockstep", "iat": now, "exp": now + life_s}) + ".")
"""
"""A token without a signature, which the broker's own validator for tests takes: what is tried is how tokens come."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("kafka")
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
            "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
            "OAuthBearerUnsecuredValidatorCallbackHandler"
        ),
    }
    with running_kafka(Kafka(overrides, light=True), taken, directory):
        yield f"{tcp.HOST}:{taken['oauth']}"


def issuing(runs: Path, life_s: int) -> list[str]:
    """A command that prints a token, and notes that it has run."""
    return [sys.executable, "-S", "-c", _ISSUES, str(runs), str(life_s)]


@pytest.mark.busy
def test_a_pipeline_goes_on_while_tokens_end(
    brokers: str, endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    runs = tmp_path / "runs"
    kafka = f"""
security_protocol = "sasl_plaintext"
sasl_mechanism = "OAUTHBEARER"
password_command = {json.dumps(issuing(runs, LIFE_S))}
"""
    name = f"t{uuid.uuid4().hex[:10]}"
    theirs = replace(endpoints, kafka_bootstrap=brokers)
    pipeline = Pipeline(theirs, tmp_path, name, sinks=True, more={"kafka": kafka})
    try:
        with pipeline.sql() as connection:
            connection.execute(f"insert into {name}.account (id, owner) select i, 'o' from generate_series(1, 50) i")
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        applier = pipeline.apply(spark)
        before = runs.stat().st_size
        for number in range(3):
            pipeline.change_accounts(f"text {number}")
            # Capture and the job ask for one per life each.
            wait_until(lambda: runs.stat().st_size >= before + 2 * (number + 1), what="further tokens")  # noqa: B023
        pipeline.wait_published(capture)
        pipeline.wait_applied(applier)
        pipeline.assert_sinks_equal()
        assert capture.poll() is None
        assert "starting over" not in capture.told()
        assert "eyJ" not in capture.told(), "no token is told"
    finally:
        pipeline.close()


def test_a_token_that_isnt_taken_is_told_and_waited_for(brokers: str, tmp_path: Path) -> None:
    def client(*command: str) -> dict[str, str | int]:
        return KafkaSettings(
            bootstrap_servers=brokers,
            security_protocol="sasl_plaintext",
            sasl_mechanism="OAUTHBEARER",
            password_command=command,
        ).client()

    assert TopicAdmin(client(*issuing(tmp_path / "runs", 600))).partition_counts(["t"]) == {}
    with pytest.raises(Unavailable, match="Kafka lets nobody in") as caught:
        TopicAdmin(client("printf", "s3cret")).partition_counts(["t"])
    assert "what its command prints" in (caught.value.hint or "")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(Unavailable, match="printed what has expired"):
        TopicAdmin(client(*issuing(tmp_path / "runs", -10)))
    with pytest.raises(Unavailable, match=r"the command of kafka\.password_command failed with exit code 1"):
        TopicAdmin(client("false"))
