"""What no lag report says: certificates, disks, whether a capture stands by. Asked in a thread of its own."""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import psycopg

from cdc.model.errors import LockstepError
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect
from cdc.postgres.dsn import parse_dsn
from cdc.postgres.replication import APPLICATION
from monitor.alerts.certificates import file_expires_ms, server_expires_ms
from monitor.alerts.conditions import Facts
from sinks.access import Tls
from sinks.opensearch.settings import OpenSearchSettings
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings

_LOOK_S: Final = 60.0
_CERTIFICATES_S: Final = 3600.0

Expiry = Callable[[], int | None]


class FactsCollector:
    """Asks once a minute, until it is closed. A certificate that was read is asked for again after an hour."""

    def __init__(
        self,
        pipeline: Pipeline,
        sinks: Mapping[str, SinkSettings],
        directories: Collection[Path],
        *,
        with_standby: bool,
    ) -> None:
        """``directories`` are those that Lockstep writes to on this machine."""
        self._pipeline = pipeline
        self._sinks = sinks
        self._directories = directories
        self._with_standby = with_standby
        self._since_ms = time.time_ns() // 1_000_000
        self._latest = Facts(None, None, None, self._since_ms)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="alert-facts", daemon=True)
        self._thread.start()

    def latest(self) -> Facts:
        """The newest that is known. Waits for nothing."""
        return self._latest

    def close(self) -> None:
        """End the thread. One that hangs in a server's answer ends with the process."""
        self._closed.set()
        self._thread.join(2.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        asked_s, certificates = float("-inf"), dict[str, int | None]()
        while not self._closed.is_set():
            whose = certificates_of(self._pipeline, self._sinks)
            if time.monotonic() - asked_s > _CERTIFICATES_S:
                asked_s = time.monotonic()
            else:
                whose = {
                    name: ask for name, ask in whose.items() if name in certificates and certificates[name] is None
                }
            certificates = after(certificates, expiries(whose))
            has_standby = has_capture_standby(self._pipeline) if self._with_standby else None
            self._latest = Facts(dict(certificates), disks_of(self._directories), has_standby, self._since_ms)
            self._closed.wait(_LOOK_S)


def disks_of(directories: Collection[Path]) -> dict[str, tuple[int, int] | None]:
    """Directory -> free bytes that we may use, and all; None where that can't be asked. Of one disk one is enough."""
    disks: dict[int, tuple[str, tuple[int, int]]] = {}
    unknown: dict[str, tuple[int, int] | None] = {}
    for directory in directories:
        try:
            there = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
            usage, device = shutil.disk_usage(there), there.stat().st_dev
        except (OSError, StopIteration):
            unknown[str(directory)] = None
            continue
        disks.setdefault(device, (str(directory), (usage.free, usage.total)))
    return unknown | dict(disks.values())


def has_capture_standby(pipeline: Pipeline) -> bool | None:
    """Whether a capture waits beside another one; None where the source doesn't say."""
    try:
        with connect(pipeline.source, application="lockstep alerts") as connection:
            row = connection.execute(
                "select exists (select from pg_stat_activity where application_name = %s"
                " and datname = current_database())",
                (f"{APPLICATION} standby",),
            ).fetchone()
    except (LockstepError, psycopg.Error):
        return None
    return None if row is None else bool(row[0])


def expiries(certificates: Mapping[str, Expiry]) -> dict[str, int | None]:
    """Whose certificate expires when; None where it can't be read. Who has none is left out."""
    found = dict[str, int | None]()
    for whose, ask in certificates.items():
        try:
            expires_ms = ask()
        except (OSError, ValueError):  # whoever uses it says what is wrong with it
            found[whose] = None
            continue
        if expires_ms is not None:
            found[whose] = expires_ms
    return found


def after(known: Mapping[str, int | None], asked: Mapping[str, int | None]) -> dict[str, int | None]:
    """What is known once these were asked, all among them that weren't known. Who can't be read now stays as he was."""
    kept = {whose: expires_ms for whose, expires_ms in known.items() if expires_ms is not None}
    return {**asked, **kept, **{whose: expires_ms for whose, expires_ms in asked.items() if expires_ms is not None}}


def certificates_of(pipeline: Pipeline, sinks: Mapping[str, SinkSettings]) -> dict[str, Expiry]:
    """Whose certificates there are by the settings, and how each is asked when it expires."""
    return dict([*_of_source(pipeline), *_of_kafka(pipeline), *_of_sinks(sinks)])


def _file(path: Path | str | None) -> Iterator[tuple[str, Expiry]]:
    if path:
        yield str(path), partial(file_expires_ms, Path(path))


def _of_source(pipeline: Pipeline) -> Iterator[tuple[str, Expiry]]:
    parts = parse_dsn(pipeline.source.dsn)
    for name in ("sslcert", "sslrootcert"):
        if parts.get(name) != "system":
            yield from _file(parts.get(name))
    hosts, ports = str(parts.get("host") or "").split(","), str(parts.get("port") or "5432").split(",")
    if parts.get("sslmode") != "disable":
        for index, host in enumerate(hosts):
            if host and not host.startswith(("/", "@")):
                port = int(ports[index] if len(ports) == len(hosts) else ports[0])
                yield f"source {host}:{port}", partial(server_expires_ms, host, port, is_postgres=True)


def _of_kafka(pipeline: Pipeline) -> Iterator[tuple[str, Expiry]]:
    kafka = pipeline.kafka
    for path in (kafka.certificate_file, kafka.ca_file):
        yield from _file(path)
    if kafka.security_protocol.endswith("ssl"):
        for server in kafka.bootstrap_servers.split(","):
            parts = urlsplit(f"//{server.strip()}")
            if parts.hostname and parts.port:
                yield f"kafka {server.strip()}", partial(server_expires_ms, parts.hostname, parts.port)


def _of_sinks(sinks: Mapping[str, SinkSettings]) -> Iterator[tuple[str, Expiry]]:
    for name, settings in sinks.items():
        tls = getattr(settings, "tls", None)
        if isinstance(tls, Tls):
            yield from _file(tls.certificate_file)
            yield from _file(tls.ca_file)
        urls: tuple[str, ...] = ()
        if isinstance(settings, OpenSearchSettings):
            urls = settings.urls
        elif isinstance(settings, RedisSettings):
            urls = (settings.url.get_secret_value(),)
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme in ("https", "rediss") and parts.hostname:
                port = parts.port or (443 if parts.scheme == "https" else 6379)
                yield f"{name} {parts.hostname}:{port}", partial(server_expires_ms, parts.hostname, port)
