"""OAUTHBEARER for Java's client of Kafka, with which Spark asks where topics end, and reads for some jobs.

That client takes a token from an address alone. What a command prints it gets from one that this process answers, on
this machine and for whoever has its secret.
"""

import base64
import hmac
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from pydantic import SecretStr

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.printed_secret import SecretCommand

_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The property of a JVM without whose leave the client takes tokens from nowhere."""

_USER: Final = "lockstep"


class TokenServer:
    """Answers with what a command prints. It ends with the process."""

    def __init__(self, command: SecretCommand[SecretStr]) -> None:
        self.secret = secrets.token_urlsafe(32)
        expected = f"Basic {base64.b64encode(f'{_USER}:{self.secret}'.encode()).decode()}"

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                if not hmac.compare_digest(self.headers.get("authorization") or "", expected):
                    self._answer(401, {"error": "invalid_client"})
                    return
                try:
                    printed = command.read()
                except LockstepError as error:
                    self._answer(503, {"error": "temporarily_unavailable", "error_description": error.message})
                else:
                    self._answer(200, {"access_token": printed.value.get_secret_value(), "token_type": "Bearer"})

            def _answer(self, status: int, content: dict[str, str]) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}/token"
        threading.Thread(target=server.serve_forever, name="kafka-tokens", daemon=True).start()


_servers: Final[dict[tuple[str, ...], TokenServer]] = {}
_lock: Final = threading.Lock()


def _server_of(command: SecretCommand[SecretStr]) -> TokenServer:
    """One per command and process: each query of Spark's asks for its options anew."""
    with _lock:
        if command.command not in _servers:
            _servers[command.command] = TokenServer(command)
        return _servers[command.command]


def token_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source for a login with tokens. They hold secrets: never print them.

    Lets the JVM of this process take tokens from the address among them. Raises as ``KafkaSettings.password``, and
    ConfigurationError without a user or a password where tokens are had from a server of OpenID Connect.
    """
    command = kafka.command
    if command is not None:
        command.read()  # an error of it is the caller's, and not one that Java's client only waits for
        server = _server_of(command)
        url, user, secret = server.url, _USER, server.secret
        further = {}
    else:
        password = kafka.password()
        url = str(kafka.librdkafka.get("sasl.oauthbearer.token.endpoint.url", ""))
        if not url or kafka.username is None or password is None:
            raise ConfigurationError(
                "kafka.sasl_mechanism 'OAUTHBEARER' with OpenID Connect needs an address, a user and a password here",
                hint="set sasl.oauthbearer.token.endpoint.url in kafka.librdkafka, kafka.username, and"
                " kafka.password_file or $LOCKSTEP_KAFKA_PASSWORD",
            )
        user, secret = kafka.username, password.get_secret_value()
        further = {"scope": str(kafka.librdkafka.get("sasl.oauthbearer.scope", ""))}
        if authority := kafka.librdkafka.get("https.ca.location"):
            further |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority)}
    _allow(url)
    given = {"clientId": user, "clientSecret": secret, **further}
    texts = "".join(f" {name}={quoted(value)}" for name, value in given.items() if value)
    return {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": _HANDLER,
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
        "kafka.sasl.jaas.config": f"{_MODULE} required{texts};",
    }


def quoted(text: str) -> str:
    """A text in Java's notation for a login; quotes and backslashes inside the quotes are escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _allow(url: str) -> None:
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is None:  # nobody asks yet
        return
    system = jvm.java.lang.System
    with _lock:
        allowed = [each for each in (system.getProperty(ALLOWED_URLS) or "").split(",") if each]
        if url not in allowed:
            system.setProperty(ALLOWED_URLS, ",".join([*allowed, url]))
