"""Settings of the brokers and of the topics that are created there."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.secret import read_secret
from cdc.settings import Settings

SEVEN_DAYS_MS = 7 * 24 * 3600 * 1000

KAFKA_PASSWORD_VARIABLE = "LOCKSTEP_KAFKA_PASSWORD"  # noqa: S105  the name of a variable, not a password


_CONNECTION: Final = frozenset(
    {
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.sigalgs.list",
    }
)
"""Settings of librdkafka's that say how brokers are reached, and nothing of what is read, written or trusted."""


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


class TopicSettings(Settings):
    """How the topics are created. Topics that exist are never changed; ``doctor`` shows where they differ."""

    partitions: Annotated[int, Field(ge=1)] = Field(
        default=4, description="per table; fixed for the life of a topic, since another number moves keys"
    )
    replication_factor: Annotated[int, Field(ge=1)] = 3
    min_insync_replicas: Annotated[int, Field(ge=1)] = 2
    delete_retention_ms: Annotated[int, Field(ge=0)] = Field(
        default=SEVEN_DAYS_MS, description="how long a sink may be away before a tombstone it missed may be gone"
    )
    min_compaction_lag_ms: Annotated[int, Field(ge=0)] = 0
    max_compaction_lag_ms: Annotated[int, Field(ge=1)] = SEVEN_DAYS_MS
    segment_ms: Annotated[int, Field(ge=1)] = 24 * 3600 * 1000
    max_message_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024


class KafkaSettings(Settings):
    """The brokers and how to reach them."""

    bootstrap_servers: str
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password_file: Path | None = Field(
        default=None, description=f"file that holds the SASL password; else ${KAFKA_PASSWORD_VARIABLE}"
    )
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    librdkafka: dict[str, str | int] = Field(
        default={},
        description="more settings of the client that belong to the connection: client.id, socket.keepalive.enable",
    )
    topics: TopicSettings = TopicSettings()

    @field_validator("librdkafka")
    @classmethod
    def _only_of_the_connection(cls, given: dict[str, str | int]) -> dict[str, str | int]:
        """What a client reads, writes and trusts is ours to set: the promise rests on it."""
        refused = sorted(name for name in given if name not in _CONNECTION)
        if refused:
            raise ValueError(f"can't be set here: {', '.join(refused)}; what can: {', '.join(sorted(_CONNECTION))}")
        return given

    @model_validator(mode="after")
    def _security_is_used(self) -> Self:
        """What the protocol doesn't use would have no effect, without a word: nobody may take a line for encrypted."""
        unused = [] if self.security_protocol.startswith("sasl") else ["sasl_mechanism", "username", "password_file"]
        unused += [] if self.security_protocol.endswith("ssl") else ["ca_file", "certificate_file", "key_file"]
        given = [name for name in unused if getattr(self, name) is not None]
        if given:
            raise ValueError(f"security_protocol {self.security_protocol!r} doesn't use {', '.join(given)}")
        return self

    def java_client(self) -> dict[str, str | int]:
        """Those of ``librdkafka`` that Java's client has as well, under the same names and with the same values."""
        return {name: value for name, value in self.librdkafka.items() if name in _JAVAS_TOO}

    def password(self) -> SecretStr | None:
        """The password, if there is one. Raises ConfigurationError when its file can't be read."""
        return read_secret(variable=KAFKA_PASSWORD_VARIABLE, file=self.password_file)

    def client(self) -> dict[str, str | int]:
        """librdkafka's configuration. Holds the password: never print it. Raises as ``password``."""
        settings: dict[str, str | int] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            # Every lost connection is a line of librdkafka's; what matters reaches us as an error.
            "log_level": 0,
            # A restarted broker must be found again in time; the default backs off up to 10 s.
            "reconnect.backoff.max.ms": 1000,
        }
        password = self.password()
        optional = {
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.username,
            "sasl.password": password.get_secret_value() if password else None,
            "ssl.ca.location": str(self.ca_file) if self.ca_file else None,
            "ssl.certificate.location": str(self.certificate_file) if self.certificate_file else None,
            "ssl.key.location": str(self.key_file) if self.key_file else None,
        }
        return settings | self.librdkafka | {name: value for name, value in optional.items() if value is not None}
