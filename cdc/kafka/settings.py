"""Settings of the brokers and of the topics that are created there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.secret import read_secret
from cdc.settings import Settings, Tls

SEVEN_DAYS_MS: Final = 7 * 24 * 3600 * 1000
"""How long tombstones stay, and the longest delay of compaction, which removes by then what was erased."""

KAFKA_PASSWORD_VARIABLE = "LOCKSTEP_KAFKA_PASSWORD"  # noqa: S105  the name of a variable, not a password


_JAVAS_TOO: Final = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "socket.connection.setup.timeout.ms",
    }
)


_CONNECTION: Final = _JAVAS_TOO | frozenset(
    {
        "broker.address.family",
        "broker.address.ttl",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.sigalgs.list",
    }
)
"""librdkafka settings about how brokers are reached, not about what is read, written or trusted."""


_OIDC: Final = frozenset(
    {
        "https.ca.location",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.grant.type",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
    }
)
"""How librdkafka gets tokens itself, from a server of OpenID Connect. No secret is among them."""

OAUTHBEARER: Final = "OAUTHBEARER"


class TopicSettings(Settings):
    """How the topics are created. Topics that exist are never changed; ``doctor`` shows where they differ."""

    partitions: Annotated[int, Field(ge=1)] = Field(
        default=4, description="per table; fixed for the life of a topic, since another number moves keys"
    )
    replication_factor: Annotated[int, Field(ge=1)] = 3
    delete_retention_ms: Annotated[int, Field(ge=0)] = Field(
        default=SEVEN_DAYS_MS, description="how long a sink may be away before a tombstone it missed may be gone"
    )
    min_compaction_lag_ms: Annotated[int, Field(ge=0)] = 0
    max_message_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024

    @property
    def min_insync_replicas(self) -> int:
        """The majority: a commit survives the loss of the others, and one of three may be away."""
        return self.replication_factor // 2 + 1


class KafkaSettings(Settings):
    """The brokers and how to reach them."""

    bootstrap_servers: str
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    username: str | None = None
    password_file: Path | None = Field(
        default=None, description=f"file that holds the SASL password; else ${KAFKA_PASSWORD_VARIABLE}"
    )
    tls: Tls | None = Field(default=None, description="set, and be it empty, the brokers are reached by TLS")
    librdkafka: dict[str, str | int] = Field(
        default={},
        description="more settings of the client that belong to the connection: client.id, socket.keepalive.enable",
    )
    topics: TopicSettings = TopicSettings()

    @field_validator("librdkafka")
    @classmethod
    def _only_of_the_connection(cls, given: dict[str, str | int]) -> dict[str, str | int]:
        """We alone set what a client reads, writes and trusts: our guarantees depend on it."""
        known = _CONNECTION | _OIDC
        refused = sorted(name for name in given if name not in known)
        if refused:
            raise ValueError(f"can't be set here: {', '.join(refused)}; allowed: {', '.join(sorted(known))}")
        return given

    @property
    def security_protocol(self) -> str:
        """Kafka's name for how the brokers are reached."""
        return ("sasl_" if self.sasl_mechanism else "") + ("plaintext" if self.tls is None else "ssl")

    @model_validator(mode="before")
    @classmethod
    def _protocol_is_said_by_tls(cls, given: object) -> object:
        """Refused, since merely removing the line would make rows and passwords go in plain text."""
        if isinstance(given, Mapping) and "security_protocol" in given:
            raise ValueError(
                "there is no security_protocol: it follows from tls and sasl_mechanism. For ssl and sasl_ssl set"
                " kafka.tls = {}, or kafka.tls with ca_file, certificate_file and key_file in it"
            )
        return given

    @model_validator(mode="after")
    def _login_is_used(self) -> Self:
        """Without a mechanism a login would silently have no effect."""
        given = [name for name in ("username", "password_file") if getattr(self, name) is not None]
        if given and self.sasl_mechanism is None:
            raise ValueError(f"{', '.join(given)} without sasl_mechanism: set it, or remove the login")
        return self

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        problems = []
        oidc = sorted(_OIDC & self.librdkafka.keys())
        if self.sasl_mechanism != OAUTHBEARER and oidc:
            problems.append(f"librdkafka has {', '.join(oidc)}, which only sasl_mechanism {OAUTHBEARER!r} uses")
        if self.sasl_mechanism == OAUTHBEARER and not self._is_oidc:
            problems.append(
                f'sasl_mechanism {OAUTHBEARER!r} needs librdkafka = {{ "sasl.oauthbearer.method" = "oidc" }}, and the'
                " address of the server that gives tokens"
            )
        of_tls = sorted(name for name in self.librdkafka if name.startswith("ssl."))
        if self.tls is None and of_tls:
            problems.append(f"librdkafka has {', '.join(of_tls)}, which only TLS uses: set kafka.tls = {{}} for it")
        endpoint = str(self.librdkafka.get("sasl.oauthbearer.token.endpoint.url", ""))
        if endpoint and not _is_private(endpoint):
            problems.append("sasl.oauthbearer.token.endpoint.url gets a secret: it has to begin with https://")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def _is_oidc(self) -> bool:
        return self.librdkafka.get("sasl.oauthbearer.method") == "oidc"

    def java_client(self) -> dict[str, str | int]:
        """The settings in ``librdkafka`` that Java's client has as well, with the same names and values."""
        return {name: value for name, value in self.librdkafka.items() if name in _JAVAS_TOO}

    def password(self) -> SecretStr | None:
        """The present password, if there is one. Raises ConfigurationError if its file can't be read."""
        return read_secret(variable=KAFKA_PASSWORD_VARIABLE, file=self.password_file)

    def client(self) -> dict[str, str | int]:
        """The configuration of a librdkafka client. Holds the password: never print it. Raises ConfigurationError if
        the password's file can't be read."""
        settings: dict[str, str | int] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            # librdkafka logs every lost connection; what matters reaches us as an error.
            "log_level": 0,
            # A restarted broker must be found again in time; the default backs off up to 10 s.
            "reconnect.backoff.max.ms": 1000,
        }
        password, tls = self.password(), self.tls or Tls()
        user, secret = ("sasl.username", "sasl.password")
        if self._is_oidc:
            user, secret = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
        optional = {
            "sasl.mechanism": self.sasl_mechanism,
            user: self.username,
            secret: password.get_secret_value() if password else None,
        }
        for name, file in (
            ("ssl.ca.location", tls.ca_file),
            ("ssl.certificate.location", tls.certificate_file),
            ("ssl.key.location", tls.key_file),
        ):
            optional[name] = None if file is None else str(file)
        return settings | self.librdkafka | {name: value for name, value in optional.items() if value is not None}


def _is_private(endpoint: str) -> bool:
    """Whether what is sent there can't be read on a network."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
