"""The way to the server: its settings, refusals, and poolers and load balancers in between."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.finding import Finding, Severity
from cdc.model.table import TableName
from cdc.postgres.connection import connect
from cdc.postgres.preflight import check_source
from cdc.postgres.preflight.endpoint import endpoint_findings, refusal
from cdc.postgres.preflight.server import server_findings
from cdc.postgres.settings import SourceSettings
from stack import process as processes
from stack.postgres import SOURCE_SETTINGS, Postgres
from stack.stack import Endpoints
from tests.databases import Database, create_login, until
from tests.proxies import Address, other_process, proxy
from tests.services import temporary_directory

pytestmark = pytest.mark.live

T = TableName("public", "t")


def wrong_server(database: Database, *, user: str | None = None) -> list[Finding]:
    with closing(database.pinned(user=user)) as connection:
        return [finding for finding in server_findings(connection) if finding.severity is not Severity.OK]


def settings(dsn: str, **changed: object) -> SourceSettings:
    return SourceSettings(
        dsn=make_conninfo(dsn, sslmode="disable", gssencmode="disable", **changed), tables=("public.t",)
    )


def address(dsn: str) -> Address:
    parts = conninfo_to_dict(dsn)
    return str(parts["host"]), int(str(parts["port"]))


def reached(source: SourceSettings) -> list[Finding]:
    with connect(source, application="test") as connection:
        return endpoint_findings(connection, source)


# Settings.


@pytest.fixture
def alone(database: Database) -> Iterator[Database]:
    """Restores the server's own settings afterwards."""
    yield database
    for name in ("max_slot_wal_keep_size", "idle_replication_slot_timeout"):
        if database.value("select count(*) from pg_settings where name = %s", name):
            database.execute(f"alter system reset {name}")
    database.execute("select pg_reload_conf()")
    until(lambda: not wrong_server(database))


def test_a_server_of_the_stack_has_nothing_wrong(database: Database) -> None:
    assert wrong_server(database) == []


# It changes the whole server, which others use at the same time.
@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "value", "since"), [("max_slot_wal_keep_size", "50GB", 0), ("idle_replication_slot_timeout", "2d", 180000)]
)
@pytest.mark.soak
def test_settings_that_cost_the_slot_are_found(alone: Database, name: str, value: str, since: int) -> None:
    if alone.connection.info.server_version < since:
        pytest.skip("not in this version")
    alone.execute(f"alter system set {name} = '{value}'", "select pg_reload_conf()")
    (finding,) = until(lambda: wrong_server(alone))
    assert (finding.subject, finding.severity, finding.what) == (name, Severity.WARNING, f"is {value}")
    alone.execute(*(line.split("  --")[0] for line in finding.fix.splitlines()))
    until(lambda: not wrong_server(alone))


# In between.


def test_a_pooler_is_found(database: Database) -> None:
    with (
        proxy([address(database.dsn)], other_process) as port,
        connect(settings(database.dsn, port=port), application="test") as connection,
    ):
        findings = [finding for finding in server_findings(connection) if finding.severity is not Severity.OK]
    assert [(finding.severity, finding.what) for finding in findings] == [
        (Severity.WARNING, "a pooler or proxy is between us and PostgreSQL")
    ]


@pytest.mark.soak
def test_settings_that_a_pooler_drops_are_found(database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True, options="-c TimeZone=Europe/Berlin") as connection:
        (finding,) = [finding for finding in server_findings(connection) if finding.severity is Severity.ERROR]
    assert "TimeZone = Europe/Berlin" in finding.what


def test_a_load_balancer_over_several_servers_is_found(database: Database, endpoints: Endpoints) -> None:
    targets = [address(endpoints.source_dsn), address(endpoints.warehouse_dsn)]
    role = database.role()
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse, proxy(targets) as port:
        create_login(warehouse, role, endpoints.source_dsn)
        try:
            (finding,) = reached(settings(endpoints.source_dsn, port=port, dbname="postgres", user=role))
        finally:
            warehouse.execute(f"drop role {role}")
    assert (finding.severity, finding.what.split(":")[0]) == (Severity.ERROR, "connections reach different servers")


@contextmanager
def own_server(change: Callable[[Path], object]) -> Iterator[SourceSettings]:
    """A server of a test's own; ``change`` gets its data directory before it starts."""
    with temporary_directory() as directory:
        server = Postgres("own", database="postgres", settings=SOURCE_SETTINGS, passfiles=directory, durable=False)
        ports = server.ports({}, ())
        launch = server.prepare(ports, directory)
        change(Path(launch.command[launch.command.index("-D") + 1]))
        process, tail = processes.spawn(launch)
        assert process is not None, tail.last(20)
        try:
            until(lambda: server.is_ready(ports, tail))
            yield settings(server.address(ports))
        finally:
            processes.end(process, stop_signal=server.stop_signal, grace_seconds=20.0)


@pytest.fixture
def standby() -> Iterator[SourceSettings]:
    """A server that waits for WAL from a primary, and answers queries meanwhile."""
    with own_server(lambda data: (data / "standby.signal").touch()) as source:
        yield source


@pytest.mark.soak
def test_a_standby_is_found(standby: SourceSettings) -> None:
    with connect(standby, application="test") as connection:
        findings = check_source(
            connection, tables=[T], publication="p", slot="s", create_publication="create publication p for table t;"
        )
    assert "the server is a standby" in [finding.what for finding in findings if finding.severity is Severity.ERROR]


@pytest.mark.soak
def test_a_standby_is_refused_before_anything_is_created(
    standby: SourceSettings, endpoints: Endpoints, tmp_path: Path
) -> None:
    config = tmp_path / "lockstep.toml"
    config.write_text(
        f"[pipeline]\nname = '{tmp_path.name}'\n[kafka]\nbootstrap_servers = '{endpoints.kafka_bootstrap}'\n"
        f"topics = {{ replication_factor = 1 }}\n"
        f"[source]\ndsn = '{standby.dsn}'\ntables = ['public.t']\n"
    )
    for command in (["capture"], ["capture", "--standby"], ["recover", "--yes"]):
        done = subprocess.run(
            [sys.executable, "-m", "lockstep", *command, "--config", str(config)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1, done.stderr
        assert "the server is a standby: slot, snapshot and heartbeat need the primary" in done.stderr
        assert "point source.dsn at the primary" in done.stderr
    topics = TopicAdmin({"bootstrap.servers": endpoints.kafka_bootstrap}).all_partition_counts()
    assert not [topic for topic in topics if topic.startswith(f"{tmp_path.name}.")]


# Refusals: the server's own message, and the SQL that mends it.


def refused(source: SourceSettings, *, can_succeed_later: bool = False) -> Finding:
    with pytest.raises(LockstepError) as caught:
        connect(source, application="test").close()
    assert isinstance(caught.value, Unavailable) is can_succeed_later
    return refusal(caught.value.message, source, subject="source")


def test_a_server_that_does_not_answer_is_said(database: Database) -> None:
    with proxy([address(database.dsn)]) as port:
        pass
    assert "host and port" in refused(settings(database.dsn, port=port), can_succeed_later=True).fix
