"""Settings of the brokers and of the topics that are created there."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from cdc.secret import read_secret
from cdc.settings import Settings

SEVEN_DAYS_MS = 7 * 24 * 3600 * 1000

KAFKA_PASSWORD_VARIABLE = "LOCKSTEP_KAFKA_PASSWORD"  # noqa: S105  the name of a variable, not a password


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
    topics: TopicSettings = TopicSettings()

    @model_validator(mode="after")
    def _security_is_used(self) -> Self:
        """What the protocol doesn't use would have no effect, without a word: nobody may take a line for encrypted."""
        unused = [] if self.security_protocol.startswith("sasl") else ["sasl_mechanism", "username", "password_file"]
        unused += [] if self.security_protocol.endswith("ssl") else ["ca_file", "certificate_file", "key_file"]
        given = [name for name in unused if getattr(self, name) is not None]
        if given:
            raise ValueError(f"security_protocol {self.security_protocol!r} doesn't use {', '.join(given)}")
        return self

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
        return settings | {name: value for name, value in optional.items() if value is not None}
