"""Facts that no lag report has: certificates, disks, whether a capture stands by. Collected once a minute."""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import psycopg

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.log_message import LogMessage
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect
from cdc.postgres.dsn import parse_dsn
from cdc.postgres.slot import has_standby
from monitor.certificates import Validity, file_validity, server_validity
from monitor.conditions import Facts
from sinks.registry import SinkSettings, kind_of

logger = logging.getLogger("lockstep.alerts")

FACTS_EVERY_S: Final = 60.0
_CERTIFICATES_S: Final = 3600.0
_POSTGRES_PORT: Final = "5432"
_Answer = TypeVar("_Answer")

Expiry = Callable[[], Validity | None]


class FactsLook:
    """A ``monitor.watching.Watch``. Reads each certificate again after an hour. If reading one fact raises, that fact
    is unknown, and the others go on."""

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
        self._said = set[str]()
        self._asked_s = float("-inf")
        self._certificates: Mapping[str, Validity | None] = {}

    def look(self) -> Facts:
        whose = self._answer("certificates", lambda: certificates_of(self._pipeline, self._sinks))
        if whose is not None:
            asked = whose
            if time.monotonic() - self._asked_s > _CERTIFICATES_S:
                self._asked_s = time.monotonic()
            else:
                unread = {name for name, validity in self._certificates.items() if validity is None}
                asked = {name: ask for name, ask in whose.items() if name in unread}
            self._certificates = after(self._certificates, expiries(asked))
        return Facts(
            None if whose is None else dict(self._certificates),
            self._answer("disks", lambda: disks_of(self._directories)),
            self._answer("standby", lambda: has_capture_standby(self._pipeline)) if self._with_standby else None,
        )

    def close(self) -> None: ...

    def _answer(self, what: str, ask: Callable[[], _Answer]) -> _Answer | None:
        """The answer; None if asking raises, which is logged once. Nothing escapes: nobody restarts this thread."""
        try:
            answer = ask()
        except Exception as error:
            if what not in self._said:
                self._said.add(what)
                logger.warning(LogMessage("alerts can't ask", {"what": what}, type(error).__name__))
            return None
        self._said.discard(what)
        return answer


def disks_of(directories: Collection[Path]) -> dict[str, tuple[int, int] | None]:
    """Directory -> free bytes for our user, and all bytes; None if unknown. One directory per disk."""
    disks: dict[int, tuple[str, tuple[int, int]]] = {}
    unknown: dict[str, tuple[int, int] | None] = {}
    for directory in directories:
        try:
            there = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
            usage, device = shutil.disk_usage(there), there.stat().st_dev
        except Exception:  # a directory that can't be read, a disk that fails
            unknown[str(directory)] = None
            continue
        disks.setdefault(device, (str(directory), (usage.free, usage.total)))
    return unknown | dict(disks.values())


def has_capture_standby(pipeline: Pipeline) -> bool | None:
    """Whether a capture of the pipeline waits for its turn; None if the source doesn't say."""
    try:
        with connect(pipeline.source, application="lockstep alerts") as connection:
            return has_standby(connection, pipeline.slot)
    except (LockstepError, psycopg.Error):
        return None


def expiries(certificates: Mapping[str, Expiry]) -> dict[str, Validity | None]:
    """Owner -> validity of its certificate; None if it can't be read. Owners without a certificate are left out."""
    found = dict[str, Validity | None]()
    for whose, ask in certificates.items():
        try:
            validity = ask()
        except Exception:  # whoever uses it reports what is wrong with it
            found[whose] = None
            continue
        if validity is not None:
            found[whose] = validity
    return found


def after(known: Mapping[str, Validity | None], asked: Mapping[str, Validity | None]) -> dict[str, Validity | None]:
    """What is known after these were asked, all unknown ones included. What can't be read now stays as it was."""
    kept = {whose: validity for whose, validity in known.items() if validity is not None}
    return {**asked, **kept, **{whose: validity for whose, validity in asked.items() if validity is not None}}


def certificates_of(pipeline: Pipeline, sinks: Mapping[str, SinkSettings]) -> dict[str, Expiry]:
    """The owners of certificates by the settings, each with the function that reads the validity."""
    return dict([*_of_postgres("source", parse_dsn(pipeline.source.dsn)), *_of_kafka(pipeline), *_of_sinks(sinks)])


def _file(path: Path | str | None) -> Iterator[tuple[str, Expiry]]:
    if path:
        yield str(path), partial(file_validity, Path(path))


def _of_postgres(whose: str, parts: Mapping[str, Any]) -> Iterator[tuple[str, Expiry]]:
    """``parts`` are libpq's parameters."""
    for name in ("sslcert", "sslrootcert"):
        if parts.get(name) != "system":
            yield from _file(parts.get(name))
    hosts = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
    ports = str(parts.get("port") or "").split(",")
    if parts.get("sslmode") != "disable":
        for index, host in enumerate(hosts):
            if host and not host.startswith(("/", "@")):
                port = (ports[index] if index < len(ports) > 1 else ports[0]) or _POSTGRES_PORT
                yield f"{whose} {host}:{port}", partial(_of_postgres_server, host, port)


def _of_postgres_server(host: str, port: str) -> Validity | None:
    return server_validity(host, int(port), is_postgres=True)


def _of_kafka(pipeline: Pipeline) -> Iterator[tuple[str, Expiry]]:
    kafka = pipeline.kafka
    if kafka.tls is not None:
        for path in kafka.tls.certificate_files():
            yield from _file(path)
        for server in kafka.bootstrap_servers.split(","):
            parts = urlsplit(f"//{server.strip()}")
            if parts.hostname and parts.port:
                yield f"kafka {server.strip()}", partial(server_validity, parts.hostname, parts.port)


def _of_sinks(sinks: Mapping[str, SinkSettings]) -> Iterator[tuple[str, Expiry]]:
    for name, settings in sinks.items():
        for path in settings.certificate_files():
            yield from _file(path)
        with contextlib.suppress(ConfigurationError):  # its job reports what is wrong with its address
            if parts := kind_of(settings).libpq(settings):
                yield from _of_postgres(name, parts)
        for host, port in settings.tls_servers():
            if host:
                yield f"{name} {host}:{port}", partial(server_validity, host, port)
