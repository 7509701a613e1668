"""Options of Spark's Kafka source, which stream queries read."""

import json
from typing import Final

from cdc.kafka.settings import OAUTHBEARER, KafkaSettings
from cdc.model.errors import ConfigurationError
from cdc.model.timeouts import OFFSETS_S
from cdc.settings import Tls
from extensions.streams.jobs.java_tokens import quoted, token_options
from jobs.offsets import Offsets
from jobs.spark.source import read_pem

_ANSWER_S: Final = 10
"""How long one client waits for an answer."""

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def starting_offsets(start: Offsets) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(start.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic)


def kafka_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source for these settings. They hold secrets: never print them. Certificates are passed
    as text, so that executors on other machines need no file. Raises ConfigurationError for a private key that Java
    can't read.
    """
    answer_ms = str(_ANSWER_S * 1000)
    options = {
        # When a broker dies, Kafka's client keeps asking it until its timeout. Only a new client, which Spark makes,
        # asks another broker. With the default timeout, no sink would get anything for a minute.
        "kafka.default.api.timeout.ms": answer_ms,
        "kafka.request.timeout.ms": answer_ms,
        "fetchOffset.numRetries": str(int(OFFSETS_S) // _ANSWER_S),
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.security.protocol": kafka.security_protocol.upper(),
        # Open and aborted transactions of capture must never reach a sink.
        "kafka.isolation.level": "read_committed",
        # The cached consumer leaves a fetch waiting on its connection, and the next batch's requests queue behind it.
        # The default of 500 ms is most of a batch's latency. 10 ms cost 13 ms per partition in a task, 1 ms about 5.
        "kafka.fetch.max.wait.ms": "1",
        # Nobody uses the client's own metrics, and each poll checks whether it is time to send them.
        "kafka.enable.metrics.push": "false",
        # Backlogs come in large fetches.
        "kafka.max.poll.records": "5000",
    }
    options |= {f"kafka.{name}": str(value) for name, value in kafka.java_client().items()}
    if kafka.sasl_mechanism is not None:
        options |= _sasl_options(kafka)
    if kafka.tls is not None:
        options |= _tls_options(kafka.tls)
    return options


def _sasl_options(kafka: KafkaSettings) -> dict[str, str]:
    if kafka.sasl_mechanism == OAUTHBEARER:
        return token_options(kafka)
    password = kafka.password()
    assert kafka.sasl_mechanism is not None, "else there is no login"
    if kafka.username is None or password is None:
        raise ConfigurationError(
            f"kafka.sasl_mechanism {kafka.sasl_mechanism!r} needs a user name and a password",
            hint="set kafka.username and kafka.password_file in lockstep.toml",
        )
    return {
        "kafka.sasl.mechanism": kafka.sasl_mechanism,
        "kafka.sasl.jaas.config": jaas_config(kafka.sasl_mechanism, kafka.username, password.get_secret_value()),
    }


def jaas_config(mechanism: str, username: str, password: str) -> str:
    return f"{_LOGIN_MODULES[mechanism]} required username={quoted(username)} password={quoted(password)};"


def _tls_options(tls: Tls) -> dict[str, str]:
    options: dict[str, str] = {}
    if tls.ca_file is not None:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = read_pem(tls.ca_file)
    if tls.certificate_file is not None and tls.key_file is not None:
        key = read_pem(tls.key_file)
        if "-----BEGIN PRIVATE KEY-----" not in key:
            raise ConfigurationError(
                f"the key file {tls.key_file} is not an unencrypted PKCS #8 key, the only form that Java reads",
                hint=f"convert it: openssl pkcs8 -topk8 -nocrypt -in {tls.key_file} -out kafka-key.pem",
            )
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = read_pem(tls.certificate_file)
        options["kafka.ssl.keystore.key"] = key
    return options
