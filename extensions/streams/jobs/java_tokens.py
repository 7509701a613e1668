"""OAUTHBEARER for Java's Kafka client, with which Spark asks where topics end, and reads for some jobs. It gets tokens
from the same OpenID Connect server as librdkafka.
"""

import threading
from typing import Final

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError

_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The JVM property that lists the addresses from which the client may get tokens."""

_lock: Final = threading.Lock()


def token_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source for a login with tokens. They hold secrets: never print them. Also allows this
    process's JVM to get tokens from the address. Raises what ``KafkaSettings.password`` raises, and ConfigurationError
    without an address, a user or a password.
    """
    password = kafka.password()
    url = str(kafka.librdkafka.get("sasl.oauthbearer.token.endpoint.url", ""))
    if not url or kafka.username is None or password is None:
        raise ConfigurationError(
            "kafka.sasl_mechanism 'OAUTHBEARER' needs an address, a user and a password here",
            hint="set sasl.oauthbearer.token.endpoint.url in kafka.librdkafka, kafka.username, and"
            " kafka.password_file or $LOCKSTEP_KAFKA_PASSWORD",
        )
    given = {
        "clientId": kafka.username,
        "clientSecret": password.get_secret_value(),
        "scope": str(kafka.librdkafka.get("sasl.oauthbearer.scope", "")),
    }
    if authority := kafka.librdkafka.get("https.ca.location"):
        given |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority)}
    _allow(url)
    texts = "".join(f" {name}={quoted(value)}" for name, value in given.items() if value)
    return {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": _HANDLER,
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
        "kafka.sasl.jaas.config": f"{_MODULE} required{texts};",
    }


def quoted(text: str) -> str:
    """A text in Java's notation for a login, in quotes, with inner quotes and backslashes escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _allow(url: str) -> None:
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is None:  # Spark isn't running yet
        return
    system = jvm.java.lang.System
    with _lock:
        allowed = [each for each in (system.getProperty(ALLOWED_URLS) or "").split(",") if each]
        if url not in allowed:
            system.setProperty(ALLOWED_URLS, ",".join([*allowed, url]))
