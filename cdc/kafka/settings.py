"""Settings of the brokers and of the topics that are created there."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.kafka.printed_login import command_settings
from cdc.printed_secret import SecretCommand, password_command
from cdc.secret import read_secret
from cdc.settings import Settings

SEVEN_DAYS_MS: Final = 7 * 24 * 3600 * 1000
"""How long tombstones stay, and when compaction gets to a record at the latest: it removes by then what was erased."""

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
"""How librdkafka gets a token by itself, from a server of OpenID Connect. No secret is among them."""

OAUTHBEARER: Final = "OAUTHBEARER"


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
    max_message_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024


class KafkaSettings(Settings):
    """The brokers and how to reach them."""

    bootstrap_servers: str
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    username: str | None = None
    password_file: Path | None = Field(
        default=None, description=f"file that holds the SASL password; else ${KAFKA_PASSWORD_VARIABLE}"
    )
    password_command: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="instead of password_file: program and arguments that print the password, or OAUTHBEARER's token",
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
        known = _CONNECTION | _OIDC
        refused = sorted(name for name in given if name not in known)
        if refused:
            raise ValueError(f"can't be set here: {', '.join(refused)}; what can: {', '.join(sorted(known))}")
        return given

    @model_validator(mode="after")
    def _security_is_used(self) -> Self:
        """What the protocol doesn't use would have no effect, without a word: nobody may take a line for encrypted."""
        of_sasl = ["sasl_mechanism", "username", "password_file", "password_command"]
        unused = [] if self.security_protocol.startswith("sasl") else of_sasl
        unused += [] if self.security_protocol.endswith("ssl") else ["ca_file", "certificate_file", "key_file"]
        given = [name for name in unused if getattr(self, name) is not None]
        if given:
            raise ValueError(f"security_protocol {self.security_protocol!r} doesn't use {', '.join(given)}")
        return self

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        problems = []
        if self.password_file is not None and self.password_command is not None:
            problems.append("password_file and password_command exclude each other")
        oidc = sorted(_OIDC & self.librdkafka.keys())
        if self.sasl_mechanism != OAUTHBEARER and oidc:
            problems.append(f"librdkafka has {', '.join(oidc)}, which only sasl_mechanism {OAUTHBEARER!r} uses")
        if self.sasl_mechanism == OAUTHBEARER and (self.password_command is None) == (not self._is_oidc):
            problems.append(
                f"sasl_mechanism {OAUTHBEARER!r} needs one of both: password_command, which prints the token, or"
                ' librdkafka = { "sasl.oauthbearer.method" = "oidc" } and where the token is had'
            )
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
        """Those of ``librdkafka`` that Java's client has as well, under the same names and with the same values."""
        return {name: value for name, value in self.librdkafka.items() if name in _JAVAS_TOO}

    @property
    def command(self) -> SecretCommand[SecretStr] | None:
        """What prints the password, or the token."""
        if self.password_command is None:
            return None
        return password_command(self.password_command, setting="kafka.password_command")

    def password(self) -> SecretStr | None:
        """The password as it is now, if there is one.

        Raises ConfigurationError when its file can't be read, and as ``SecretCommand.read``.
        """
        if (command := self.command) is not None:
            return command.read().value
        return read_secret(variable=KAFKA_PASSWORD_VARIABLE, file=self.password_file)

    def client(self) -> dict[str, str | int]:
        """The configuration of a client that ``cdc.kafka.client.new_client`` makes. Holds the password: never print it.

        It is librdkafka's, but for a command, which is run whenever such a client needs it.
        Raises ConfigurationError when the password's file can't be read.
        """
        settings: dict[str, str | int] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            # Every lost connection is a line of librdkafka's; what matters reaches us as an error.
            "log_level": 0,
            # A restarted broker must be found again in time; the default backs off up to 10 s.
            "reconnect.backoff.max.ms": 1000,
        }
        command = self.command
        password = None if command is not None else self.password()
        user, secret = ("sasl.username", "sasl.password")
        if self._is_oidc:
            user, secret = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
        optional = {
            "sasl.mechanism": self.sasl_mechanism,
            user: self.username,
            secret: password.get_secret_value() if password else None,
            "ssl.ca.location": str(self.ca_file) if self.ca_file else None,
            "ssl.certificate.location": str(self.certificate_file) if self.certificate_file else None,
            "ssl.key.location": str(self.key_file) if self.key_file else None,
        }
        settings |= self.librdkafka | {name: value for name, value in optional.items() if value is not None}
        return settings if command is None else settings | command_settings(command)


def _is_private(endpoint: str) -> bool:
    """Whether nobody on a network reads what is sent there."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
