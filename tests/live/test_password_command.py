"""Passwords and tokens that a command prints, and that change while servers are used."""

import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr
from sqlalchemy import URL

from cdc.model.errors import Unavailable
from cdc.postgres.connection import connect
from cdc.postgres.settings import SourceSettings
from sinks.access import Login
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from stack.stack import Endpoints
from tests.builders import batch, table, upsert
from tests.databases import Database

pytestmark = [pytest.mark.live, pytest.mark.soak]


_PRINTS = "import sys; t = open(sys.argv[1]).read(); print(t, file=sys.stderr); print(t); sys.exit(not t)"


def printing(file: Path) -> tuple[str, ...]:
    """A command that prints what a file has. It says on its standard error what must not be shown."""
    return (sys.executable, "-S", "-c", _PRINTS, str(file))


@dataclass(frozen=True, slots=True)
class Vault:
    """Where a command finds a role's password. The server and it change at different moments."""

    database: Database
    role: str
    file: Path

    @property
    def command(self) -> tuple[str, ...]:
        return printing(self.file)

    def dsn(self) -> str:
        """Without the file of passwords that lets tests in."""
        parts = conninfo_to_dict(self.database.dsn) | {"user": self.role, "passfile": "/dev/null"}
        return make_conninfo("", **parts)

    def set_password(self, password: str) -> None:
        """At the server alone."""
        alter = sql.SQL("alter role {} password {}").format(sql.Identifier(self.role), sql.Literal(password))
        self.database.connection.execute(alter)

    def rotate(self, password: str) -> None:
        """At both."""
        self.set_password(password)
        self.file.write_text(password)

    def end_connections(self) -> None:
        ended = self.database.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (self.role,)
        ).fetchall()
        assert (True,) in ended


@pytest.fixture
def vault(database: Database, tmp_path: Path) -> Vault:
    vault = Vault(database, database.role(login="login superuser replication"), tmp_path / "vault")
    vault.rotate("first pässword")
    return vault


def test_each_connection_to_the_source_has_the_password_of_its_time(vault: Vault) -> None:
    source = SourceSettings(dsn=vault.dsn(), password_command=vault.command, tables=("public.t",))
    with connect(source, application="test") as before:
        vault.set_password("second")
        with pytest.raises(
            Unavailable, match=r"the password that source\.password_command prints isn't taken"
        ) as caught:
            connect(source, application="test")
        assert "first" not in str(caught.value)
        vault.rotate("second")
        connect(source, application="test", replication=True).close()
        before.execute("select 1")
    vault.file.write_text("")
    with pytest.raises(Unavailable, match=r"source\.password_command failed with exit code 1"):
        connect(source, application="test")


def test_a_warehouse_sink_goes_on_with_the_password_of_its_time(vault: Vault, endpoints: Endpoints) -> None:
    parts = conninfo_to_dict(vault.dsn())
    url = URL.create(
        "postgresql+psycopg",
        vault.role,
        host=str(parts["host"]),
        port=int(str(parts["port"])),
        database=vault.database.name,
        query={"passfile": "/dev/null"},
    )
    settings = WarehouseSettings(
        url=SecretStr(url.render_as_string(hide_password=False)), login=Login(password_command=vault.command)
    )
    sink = WarehouseSink(WarehouseTables(f"t{uuid.uuid4().hex[:12]}", settings, 1))

    def apply(tag: int) -> None:
        sink.apply(batch(*(upsert({"id": n, "note": f"{tag}"}, tag) for n in range(10))))

    try:
        sink.prepare([table()])
        apply(1)
        vault.set_password("second")
        apply(2)  # on the connection of before
        vault.end_connections()
        with pytest.raises(Unavailable):  # it is noticed
            apply(3)
        with pytest.raises(Unavailable, match=r"the password that login\.password_command of this sink prints") as told:
            apply(3)
        assert "first" not in str(told.value)
        vault.rotate("second")
        apply(3)
        assert {row.row["note"] for row in sink.scan(table())} == {"3"}
    finally:
        sink.close()
