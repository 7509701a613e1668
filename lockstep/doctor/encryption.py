"""Whether rows and passwords cross a network as they are. Pure, but for the source, whose connection tells."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError
from cdc.postgres.preflight.finding import Finding, warning
from cdc.webhook import Webhook
from jobs.streams.settings import row_webhook
from lockstep.config import Config
from monitor.alerts.channels import alert_webhook
from sinks.access import same_host
from sinks.delta.settings import DeltaSettings
from sinks.opensearch.settings import OpenSearchSettings
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings
from sinks.warehouse.settings import WarehouseSettings

_SSLMODE_DEFAULT: Final = "prefer"
"""libpq's own: it tries TLS, and goes on without where the server, or whoever answers in its place, has none."""

_ENCRYPTED_MODES: Final = ("require", "verify-ca", "verify-full")

_AS_IT_IS: Final = ("PLAIN", "OAUTHBEARER")
"""Mechanisms that send the password itself, or a token."""

_WHY: Final = "whoever is on the way reads the rows, and can change them"
_WHY_ALERTS: Final = "whoever is on the way reads what alerts say and the headers' values, and can keep alerts back"
_LIBPQ_FIX: Final = "add sslmode=verify-full, and sslrootcert= with the server's authority, to {where}"


def source_encryption(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Whether this connection of ours to the source is encrypted, and would be if somebody interfered."""
    parameters = connection.info.get_parameters()
    mode = parameters.get("sslmode", _SSLMODE_DEFAULT)
    if _is_local(connection.info.hostaddr or connection.info.host) or mode in _ENCRYPTED_MODES:
        return []
    return [_optional("source", mode, encrypted=connection.pgconn.ssl_in_use, where="source.dsn")]


def encryption_findings(config: Config, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """The same of Kafka, the sinks, and the webhooks of stream queries and of alerts, by their settings."""
    findings = _kafka(config.kafka)
    for name, settings in config.sinks.items():
        findings += _sink(name, settings, environment)
    for name, query in config.stream_queries.items():
        if query.webhook is not None:
            findings += _webhook(f"stream query {name}", row_webhook(name, query.webhook), why=_WHY)
    if config.alerts.webhook is not None:
        findings += _webhook("alerts", alert_webhook(config.alerts.webhook), why=_WHY_ALERTS)
    return findings


def _webhook(subject: str, webhook: Webhook, *, why: str) -> list[Finding]:
    try:
        address = webhook.address().get_secret_value()
    except LockstepError:
        return []  # its own check says what is wrong with it
    return _plain(subject, [address], scheme="http", better="let the webhook's address begin with https", why=why)


def _kafka(kafka: KafkaSettings) -> list[Finding]:
    hosts = [address.strip().rpartition(":")[0] for address in kafka.bootstrap_servers.split(",")]
    if kafka.security_protocol.endswith("ssl") or all(map(_is_local, hosts)):
        return []
    what = "the connection isn't encrypted"
    if kafka.security_protocol == "sasl_plaintext":
        what += ", although it has a password" + (
            ", which is sent as it is" if kafka.sasl_mechanism in _AS_IT_IS else ""
        )
    better = "sasl_ssl" if kafka.security_protocol.startswith("sasl") else "ssl"
    return [warning("Kafka", what, _WHY, f'set kafka.security_protocol = "{better}", and a listener for it')]


def _sink(name: str, settings: SinkSettings, environment: Mapping[str, str]) -> list[Finding]:
    subject = f"sink {name}"
    match settings:
        case OpenSearchSettings():
            return _plain(subject, settings.urls, scheme="http", better="let each address begin with https")
        case RedisSettings():
            url = settings.url.get_secret_value()
            scheme = url.partition(":")[0]
            urls = [f"{scheme}://{address}" for address in settings.sentinels] or [url]
            return _plain(subject, urls, scheme="redis", better="let the address begin with rediss")
        case DeltaSettings():
            addresses = settings.storage_options.values()
            return _plain(subject, addresses, scheme="http", better="let the endpoint begin with https")
        case WarehouseSettings():
            return _warehouse(subject, settings, environment)


def _plain(subject: str, addresses: Iterable[str], *, scheme: str, better: str, why: str = _WHY) -> list[Finding]:
    """A finding where one of the addresses is of another machine, and has no TLS."""
    parts = [urlsplit(address) for address in addresses if address.lower().startswith(f"{scheme}://")]
    if all(_is_local(part.hostname or "") for part in parts):
        return []
    return [warning(subject, "the connection isn't encrypted", why, better)]


def _warehouse(subject: str, settings: WarehouseSettings, environment: Mapping[str, str]) -> list[Finding]:
    if settings.is_file or settings.tls is not None:
        return []
    try:
        parts = urlsplit(settings.url.get_secret_value())
    except ValueError:
        return []  # its own check says what is wrong with it
    given = parse_qs(parts.query)
    hosts = [host for hosts in given.get("host", [parts.hostname or ""]) for host in hosts.split(",")]
    mode = given.get("sslmode", [environment.get("PGSSLMODE", _SSLMODE_DEFAULT)])[0]
    if mode in _ENCRYPTED_MODES or all(map(_is_local, hosts)):
        return []
    return [_optional(subject, mode, encrypted=None, where="the address, or set tls of this sink")]


def _optional(subject: str, mode: str, *, encrypted: bool | None, where: str) -> Finding:
    """``encrypted`` is None where nobody has looked."""
    if encrypted or (encrypted is None and mode != "disable"):
        what = f"the connection may do without encryption (sslmode {mode})"
    else:
        what = f"the connection isn't encrypted (sslmode {mode})"
    return warning(subject, what, _WHY, _LIBPQ_FIX.format(where=where))


def _is_local(host: str) -> bool:
    """This machine, by name, number or socket; no host at all is libpq's socket."""
    return host.startswith(("/", "@", "127.")) or same_host(host or "localhost") == "localhost"
