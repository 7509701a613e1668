"""The servers that live tests run against, started once for all processes of a run.

By default they start as `lockstep up` starts them, below the system's directory for temporary files, when the first
test needs them. Two variables change that:

* `LOCKSTEP_TEST_STACK=<directory>` uses a stack that is up there already and leaves it up: quick while developing
  (`python -m stack up --directory <directory>`).
* `LOCKSTEP_TEST_SERVERS=containers` starts the same servers through testcontainers, for machines with a Docker engine.
  Only its imports and types are checked: it was never run, for lack of an engine.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from stack import ports, versions
from stack.errors import StackError
from stack.kafka import SETTINGS as KAFKA_SETTINGS
from stack.opensearch import SETTINGS as OPENSEARCH_SETTINGS
from stack.postgres import SOURCE_SETTINGS, USER, WAREHOUSE_SETTINGS
from stack.stack import NAMES, Endpoints, Stack
from stack.valkey import SETTINGS as VALKEY_SETTINGS
from tests.topics import remove_left

KAFKA_OVERRIDES = {
    # The cleaner wakes up often enough that a test of compaction takes some seconds. It isn't more often, because it
    # looks at every partition of every compacted topic, which slows all tests.
    "log.cleaner.backoff.ms": "1000",
    # A killed broker may register again only when its last session is over, after nine seconds by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

# Confluent's number for the same broker: testcontainers' start script knows only this image's layout.
_CONFLUENT_KAFKA = "8.0.2"

_STACK = "LOCKSTEP_TEST_STACK"
_SERVERS = "LOCKSTEP_TEST_SERVERS"
_SHARED = pytest.StashKey[ExitStack]()


class Services(Protocol):
    """What a test may do to the servers: `Stack` or `Containers`."""

    def endpoints(self) -> Endpoints:
        """Where they are."""

    def start(self, name: str) -> None:
        """Start one again, on the same port with the same data."""

    def stop(self, name: str) -> None:
        """Stop one in order."""

    def kill(self, name: str) -> None:
        """End one as a crash would."""

    def freeze(self, name: str) -> None:
        """Hold all its processes where they are."""

    def thaw(self, name: str) -> None:
        """Let them go on."""


class Containers:
    def __init__(self) -> None:
        """Describe them; nothing is started yet."""
        # Imported here: only containers need a Docker client.
        from testcontainers.community.kafka import KafkaContainer
        from testcontainers.community.opensearch import OpenSearchContainer
        from testcontainers.community.postgres import PostgresContainer
        from testcontainers.community.valkey import ValkeyContainer

        # Fixed on the host: Docker would choose other ports when a container starts again.
        self._ports: dict[str, int] = {}
        for name in NAMES:
            self._ports[name] = ports.pick(taken=self._ports.values())
        kafka = KafkaContainer(f"confluentinc/cp-kafka:{_CONFLUENT_KAFKA}").with_kraft()
        for key, value in {**KAFKA_SETTINGS, **KAFKA_OVERRIDES}.items():
            # The container's own start script decides on the listeners.
            if not key.endswith("listener.name") and not key.endswith("listener.names"):
                kafka.with_env(f"KAFKA_{key.upper().replace('.', '_')}", value)
        opensearch = OpenSearchContainer(f"opensearchproject/opensearch:{versions.OPENSEARCH_3}")
        for key, value in OPENSEARCH_SETTINGS.items():
            opensearch.with_env(key, value)
        valkey = ValkeyContainer(f"valkey/valkey:{versions.VALKEY}")
        valkey.with_command(
            ["valkey-server", *(word for key, value in VALKEY_SETTINGS.items() for word in (f"--{key}", value))]
        )
        self._containers: dict[str, Any] = {
            "postgres": self._postgres(PostgresContainer, "app", SOURCE_SETTINGS),
            "warehouse": self._postgres(PostgresContainer, "warehouse", WAREHOUSE_SETTINGS),
            "kafka": kafka,
            "opensearch": opensearch,
            "valkey": valkey,
        }
        for name, container in self._containers.items():
            container.with_bind_ports(container.port, self._ports[name])

    def up(self) -> None:
        for container in self._containers.values():
            container.start()

    def down(self) -> None:
        for container in self._containers.values():
            container.stop()

    def endpoints(self) -> Endpoints:
        addresses = {
            name: f"{container.get_container_host_ip()}:{self._ports[name]}"
            for name, container in self._containers.items()
        }

        def dsn(name: str, database: str) -> str:
            host, _, port = addresses[name].rpartition(":")
            return f"host={host} port={port} dbname={database} user={USER}"

        return Endpoints(
            source_dsn=dsn("postgres", "app"),
            warehouse_dsn=dsn("warehouse", "warehouse"),
            warehouse_url=f"postgresql+psycopg://{USER}@{addresses['warehouse']}/warehouse",
            kafka_bootstrap=addresses["kafka"],
            opensearch_url=f"http://{addresses['opensearch']}",
            redis_url=f"redis://{addresses['valkey']}/0",
        )

    def start(self, name: str) -> None:
        self._containers[name].get_wrapped_container().start()

    def stop(self, name: str) -> None:
        self._containers[name].get_wrapped_container().stop()

    def kill(self, name: str) -> None:
        self._containers[name].get_wrapped_container().kill()

    def freeze(self, name: str) -> None:
        self._containers[name].get_wrapped_container().pause()

    def thaw(self, name: str) -> None:
        self._containers[name].get_wrapped_container().unpause()

    @staticmethod
    def _postgres(container_class: Any, database: str, settings: dict[str, str]) -> Any:
        options = " ".join(f"-c {key}={value}" for key, value in {**settings, "fsync": "off"}.items())
        # No password: the server trusts everybody who reaches it, as the local stack does.
        container = container_class(f"postgres:{versions.POSTGRES_SERVER}", username=USER, dbname=database)
        return container.with_env("POSTGRES_HOST_AUTH_METHOD", "trust").with_command(f"postgres {options}")


def pytest_configure(config: pytest.Config) -> None:
    """Give a run's workers one directory, so that they share servers; the first to need them starts them."""
    if not getattr(config.option, "numprocesses", None) or {_STACK, _SERVERS} & os.environ.keys():
        return
    directory = config.stash[_SHARED] = ExitStack()
    os.environ[_STACK] = str(directory.enter_context(shared_servers()))
    directory.callback(os.environ.pop, _STACK)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop them, even after failures."""
    if directory := config.stash.get(_SHARED, None):
        directory.close()


@contextmanager
def shared_servers() -> Iterator[Path]:
    """A directory for servers that several processes share. Started servers are stopped at its end."""
    with temporary_directory() as directory:
        try:
            yield directory
        finally:
            started = _stack(directory)
            if started.exists:
                started.remove()


@pytest.fixture(scope="session")
def stack() -> Iterator[Services]:
    """All servers, ready. Stopped and removed at the end, unless other processes use them too."""
    if existing := os.environ.get(_STACK):
        stack = _stack(Path(existing))
        _up(stack)
        yield stack
    elif os.environ.get(_SERVERS) == "containers":
        containers = Containers()
        try:
            containers.up()
            yield containers
        finally:
            containers.down()
    else:
        with shared_servers() as directory:
            stack = _stack(directory)
            _up(stack)
            yield stack


def _stack(directory: Path) -> Stack:
    return Stack(directory, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)


def _up(stack: Stack) -> None:
    """Start the servers; try once more if a start fails. Some starts failed within seconds, and their message was lost.
    It bypasses pytest's capture now, so that the log keeps it."""
    try:
        stack.up()
    except StackError as error:
        print(f"a start of the test servers failed and is tried again: {error}", file=sys.__stderr__, flush=True)
        time.sleep(5)
        stack.up()


_brokers: list[str] = []


@pytest.fixture(scope="session")
def endpoints(stack: Services) -> Endpoints:
    endpoints = stack.endpoints()
    _brokers.append(endpoints.kafka_bootstrap)
    return endpoints


@pytest.fixture(scope="module", autouse=True)
def topics_of_a_file_go_with_it() -> Iterator[None]:
    """Removes them: the brokers are shared by all files."""
    yield
    for bootstrap in _brokers:
        remove_left(bootstrap)


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory for one stack. Others may pass through it: for root's tests, PostgreSQL runs as another user."""
    path = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
