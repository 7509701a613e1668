"""Passwords and tokens that a command prints, and that change while servers are used."""

import json
import sys
import time
import uuid
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from opensearchpy import OpenSearch
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr
from redis import Redis
from sqlalchemy import URL

from cdc.model.errors import Unavailable
from cdc.postgres.connection import connect
from cdc.postgres.settings import SourceSettings
from sinks.access import Login
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import OpenSearchSink
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import RedisSink
from sinks.redis.tables import RedisTables
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from stack.stack import Endpoints
from tests.builders import batch, table, upsert
from tests.databases import Database
from tests.proxies import Answer, before

pytestmark = [pytest.mark.live, pytest.mark.soak]


_PRINTS = "import sys; t = open(sys.argv[1]).read(); print(t, file=sys.stderr); print(t); sys.exit(not t)"


def printing(file: Path) -> tuple[str, ...]:
    """A command that prints what a file has. It says on its standard error what must not be shown."""
    return (sys.executable, "-S", "-c", _PRINTS, str(file))


def document(token: str) -> str:
    """A token that says when it ends."""
    return json.dumps({"token": token, "expires_at": time.time() + 3600})


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


def test_a_redis_sink_goes_on_with_the_password_of_its_time(endpoints: Endpoints, tmp_path: Path) -> None:
    name, file = f"t{uuid.uuid4().hex[:12]}", tmp_path / "token"
    login = Login(user=name, password_command=printing(file))
    other_database = endpoints.redis_url.removesuffix("/0") + "/3"
    settings = RedisSettings(url=SecretStr(other_database), login=login)
    sink = RedisSink(RedisTables(name, settings, 1))
    with Redis.from_url(endpoints.redis_url) as server:

        def set_password(password: str) -> None:
            server.execute_command("ACL", "SETUSER", name, "on", "resetpass", f">{password}", "~*", "+@all")

        try:
            set_password("first")
            file.write_text(document("first"))
            sink.prepare([table()])
            set_password("second")
            assert sink.apply(batch(upsert({"id": 1, "note": "a"}, 1))).applied == 1, "on the connection of before"
            server.execute_command("CLIENT", "KILL", "USER", name)
            with pytest.raises(Unavailable):  # it is noticed
                sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
            with pytest.raises(
                Unavailable, match=r"that login\.password_command of this sink prints isn't taken"
            ) as told:
                sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
            assert "first" not in str(told.value)
            file.write_text("")
            with pytest.raises(Unavailable, match=r"login\.password_command of this sink failed with exit code 1"):
                sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
            file.write_text(document("second"))
            assert sink.apply(batch(upsert({"id": 1, "note": "b"}, 2))).applied == 1
            assert not server.keys(f"{name}:*"), "it never goes on without its login, and so in database 0"
        finally:
            sink.close()
            server.execute_command("ACL", "DELUSER", name)


@pytest.mark.parametrize(("user", "printed"), [("lockstep", str), (None, document)])
def test_an_opensearch_sink_goes_on_with_the_token_of_its_time(
    endpoints: Endpoints, tmp_path: Path, user: str | None, printed: Callable[[str], str]
) -> None:
    """Its requests are let in as the security plugin does: by a user's password, or by a bearer's token."""
    name, file, taken = f"t{uuid.uuid4().hex[:12]}", tmp_path / "token", {"first"}

    def change(request: BaseHTTPRequestHandler, sent: bytes, send_on: Callable[[bytes], Answer]) -> Answer:
        header = request.headers["authorization"] or ""
        token = header.removeprefix("Bearer ") if user is None else b64decode(header[6:]).decode().partition(":")[2]
        return send_on(sent) if token in taken else (401, "text/plain", b"Unauthorized")

    file.write_text(printed("first"))
    with before(endpoints.opensearch_url, change) as url:
        login = Login(user=user, password_command=printing(file))
        settings = OpenSearchSettings(urls=(url,), replicas=0, timeout_s=30, login=login)
        sink = OpenSearchSink(OpenSearchIndexes(name, settings, 1))
        try:
            sink.prepare([table()])
            taken.add("second")
            file.write_text(printed("second"))
            assert sink.apply(batch(upsert({"id": 1, "note": "a"}, 1))).applied == 1, "with the token of before"
            taken.remove("first")
            assert sink.apply(batch(upsert({"id": 1, "note": "b"}, 2))).applied == 1, "asked for again by itself"
            taken.clear()
            with pytest.raises(
                Unavailable, match=r"that login\.password_command of this sink prints isn't taken"
            ) as told:
                sink.apply(batch(upsert({"id": 1, "note": "c"}, 3)))
            assert "second" not in str(told.value)
            taken.add("second")
            assert sink.apply(batch(upsert({"id": 1, "note": "c"}, 3))).applied == 1
        finally:
            sink.close()
            with OpenSearch(endpoints.opensearch_url) as direct:
                direct.indices.delete(index=f"{name}.*")
