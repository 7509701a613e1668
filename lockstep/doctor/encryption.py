"""Whether rows and passwords cross a network unencrypted. Pure, except for the source, whose connection is asked."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, warning
from lockstep.config import Config
from sinks.access import same_host
from sinks.registry import SinkSettings, kind_of

_SSLMODE_DEFAULT: Final = "prefer"
"""libpq's default: it tries TLS, and goes on without if the server, or whoever answers in its place, has none."""

_VERIFIED_MODES: Final = ("verify-ca", "verify-full")

_AS_IT_IS: Final = ("PLAIN", "OAUTHBEARER")
"""Mechanisms that send the password itself, or a token."""

WHY: Final = "anybody on the network path can read the rows, and change them"
_LIBPQ_FIX: Final = "add sslmode=verify-full, and sslrootcert= with the server's authority, to {where}"


def source_encryption(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Whether our connection to the source is encrypted, and stays so if somebody interferes."""
    parameters = connection.info.get_parameters()
    mode = parameters.get("sslmode", _SSLMODE_DEFAULT)
    if _is_local(connection.info.hostaddr or connection.info.host) or mode in _VERIFIED_MODES:
        return []
    return [_optional("source", mode, encrypted=connection.pgconn.ssl_in_use, where="source.dsn")]


def encryption_findings(config: Config, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """The same of Kafka and the sinks, by their settings."""
    findings = _kafka(config.kafka)
    for name, settings in config.sinks.items():
        findings += _sink(name, settings, environment)
    return findings


def _kafka(kafka: KafkaSettings) -> list[Finding]:
    hosts = [address.strip().rpartition(":")[0] for address in kafka.bootstrap_servers.split(",")]
    if kafka.tls is not None or all(map(_is_local, hosts)):
        return []
    what = "the connection isn't encrypted"
    if kafka.sasl_mechanism is not None:
        what += ", although it has a password" + (
            ", which is sent as it is" if kafka.sasl_mechanism in _AS_IT_IS else ""
        )
    return [warning("Kafka", what, WHY, "set kafka.tls = {}, and a listener for it")]


def _sink(name: str, settings: SinkSettings, environment: Mapping[str, str]) -> list[Finding]:
    subject = f"sink {name}"
    try:
        parts = kind_of(settings).libpq(settings)
    except LockstepError:
        return []  # its own check reports its address
    if parts:
        return _libpq(subject, parts, environment)
    return plain_findings(subject, settings.plain_addresses(), better=settings.TLS_ADDRESS)


def plain_findings(subject: str, addresses: Iterable[str], *, better: str, why: str = WHY) -> list[Finding]:
    """A finding if one of these addresses, which have no TLS, belongs to another machine."""
    parts = map(urlsplit, addresses)
    if all(_is_local(part.hostname or "") for part in parts):
        return []
    return [warning(subject, "the connection isn't encrypted", why, better)]


def _libpq(subject: str, parts: Mapping[str, Any], environment: Mapping[str, str]) -> list[Finding]:
    hosts = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
    mode = parts.get("sslmode") or environment.get("PGSSLMODE", _SSLMODE_DEFAULT)
    if mode in _VERIFIED_MODES or all(map(_is_local, hosts)):
        return []
    return [_optional(subject, mode, encrypted=None, where="the address, or set tls of this sink")]


def _optional(subject: str, mode: str, *, encrypted: bool | None, where: str) -> Finding:
    """``encrypted`` is None if nobody has looked."""
    if mode == "require":
        what = "the connection is encrypted, but the server's certificate isn't checked (sslmode require)"
    elif encrypted or (encrypted is None and mode != "disable"):
        what = f"the connection may do without encryption (sslmode {mode})"
    else:
        what = f"the connection isn't encrypted (sslmode {mode})"
    return warning(subject, what, WHY, _LIBPQ_FIX.format(where=where))


def _is_local(host: str) -> bool:
    """Whether it is this machine, by name, number or socket; no host at all is libpq's socket."""
    return host.startswith(("/", "@", "127.")) or same_host(host or "localhost") == "localhost"
