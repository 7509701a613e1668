"""PgBouncer in front of the warehouse and the source: a sink and capture don't work through it, and say so."""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from sqlalchemy import URL

from cdc.model.errors import LockstepError, Unavailable
from lockstep.cli.main import exit_code
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from stack import ports
from stack.stack import Endpoints
from tests.builders import table
from tests.databases import password_of, until
from tests.programs import needs

pytestmark = pytest.mark.live

HOST = "127.0.0.1"


@pytest.fixture
def pooler(endpoints: Endpoints, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[URL]:
    """A PgBouncer in front of the warehouse's server, with the parameter's pooling."""
    program = needs("pgbouncer")
    server = conninfo_to_dict(endpoints.warehouse_dsn)
    password = password_of(endpoints.warehouse_dsn)
    port = ports.pick(None, taken=())
    (tmp_path / "users").write_text(f'"{server["user"]}" "{password}"\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"""
[databases]
* = host={HOST} port={server["port"]}
[pgbouncer]
listen_addr = {HOST}
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {tmp_path / "users"}
pool_mode = {request.param}
ignore_startup_parameters = extra_float_digits,options
"""
    )
    for path in (tmp_path, tmp_path / "users", tmp_path / "pgbouncer.ini"):
        path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == tmp_path.stat().st_uid and len(folder.parts) > 2:
            folder.chmod(0o755)
    command = [program, str(tmp_path / "pgbouncer.ini")]
    log = tmp_path / "log"
    with log.open("wb") as output:
        # It refuses to run as root.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, user="nobody" if tmp_path.stat().st_uid == 0 else None
        )
    url = URL.create(
        "postgresql+psycopg", str(server["user"]), password, host=HOST, port=port, database=str(server["dbname"])
    )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False)).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        until(answers)
        yield url
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("pooler", ["transaction", "session"], indirect=True)
@pytest.mark.soak
def test_a_warehouse_behind_a_pooler_is_refused(pooler: URL) -> None:
    settings = WarehouseSettings(url=SecretStr(pooler.render_as_string(hide_password=False)))
    sink = WarehouseSink(WarehouseTables(f"t{uuid.uuid4().hex[:12]}", settings, 1))
    try:
        with pytest.raises(LockstepError, match="a pooler is between") as caught:
            sink.prepare([table()])
    finally:
        sink.close()
    assert not isinstance(caught.value, Unavailable), "asking again wouldn't help"
    assert f"{pooler.port}" in caught.value.message
    assert "address of PostgreSQL itself" in (caught.value.hint or "")


@pytest.mark.parametrize("pooler", ["transaction"], indirect=True)
def test_doctor_says_what_a_pooler_keeps_from_a_sink_and_from_capture(
    pooler: URL, endpoints: Endpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text(str(pooler.password))
    address = f"{HOST}:{pooler.port}"
    path = tmp_path / "lockstep.toml"
    path.write_text(f"""
[pipeline]
name = "t{uuid.uuid4().hex[:12]}"
[source]
dsn = "host={HOST} port={pooler.port} user={pooler.username} dbname={pooler.database}"
password_file = "secret"
tables = ["public.t"]
[kafka]
bootstrap_servers = "{endpoints.kafka_bootstrap}"
[sinks.warehouse]
type = "warehouse"
url = "postgresql+psycopg://{address}/{pooler.database}"
login = {{ user = "{pooler.username}", password_file = "secret" }}
""")
    assert exit_code(["doctor", "--config", str(path)]) == 1
    said = capsys.readouterr().out
    assert f"a pooler is between this sink and the warehouse at {address}" in said
    assert "let url of this sink be the address of PostgreSQL itself" in said
    assert "that is a pooler's answer, not PostgreSQL's" in said
    assert "point source.dsn at PostgreSQL itself, not at a pooler" in said
    assert str(pooler.password) not in said
