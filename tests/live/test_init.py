"""What `lockstep init` writes for a database, and that it is a configuration."""

import shutil
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.model.table import TableName
from cdc.postgres.dsn import parse_dsn
from lockstep.config import load
from lockstep.init import write_config
from tests.databases import Database

pytestmark = pytest.mark.live


def test_it_lists_the_tables_that_can_be_captured_and_says_why_others_cannot(
    database: Database, tmp_path: Path
) -> None:
    database.execute(
        "create table keyed (id int primary key)",
        'create table "Odd name" (id int primary key)',
        "create table keyless (id int)",
        "create unlogged table fast (id int primary key)",
        "create table parted (id int primary key) partition by range (id)",
        "create table part partition of parted default",
        "create view seen as select 1",
    )
    path = tmp_path / "lockstep.toml"
    write_config(dsn=database.dsn, path=path, name="shop", schemas=())
    config = load(path)
    assert set(config.source.table_names) == {TableName("public", name) for name in ("keyed", "Odd name", "parted")}
    text = path.read_text()
    assert "public.keyless (no primary key" in text
    assert "public.fast (unlogged" in text
    assert "public.part (a partition" in text
    assert "seen" not in text


def test_no_name_of_a_table_writes_configuration(database: Database, tmp_path: Path) -> None:
    forged = 'x" ]\n[spark.conf]\n"spark.jars.packages" = "evil:evil:1"\n#'
    for kind in ("table", "unlogged table"):
        database.connection.execute(
            sql.SQL("create {} {} (id int primary key)").format(sql.SQL(kind), sql.Identifier(f"{kind} {forged}"))
        )
    path = tmp_path / "lockstep.toml"
    write_config(dsn=database.dsn, path=path, name="shop", schemas=())
    config = load(path)
    assert config.spark.conf == {}
    assert config.source.table_names == (TableName("public", f"table {forged}"),)
    assert all(line.startswith(("#", "    ")) for line in path.read_text().splitlines() if "evil" in line)


def test_who_does_not_own_the_tables_gets_the_sql_for_their_owner(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    role = database.role()
    said = write_config(
        dsn=make_conninfo(database.dsn, user=role), path=tmp_path / "lockstep.toml", name="shop", schemas=()
    )
    (messages,) = [line for line in said if "pg_logical_emit_message" in line]
    database.execute(f"create role lockstep_{role}", messages.replace('"lockstep"', f'"lockstep_{role}"'))
    with database.pinned(user=role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select pg_logical_emit_message(true, 'lockstep.repair', '')")
    database.execute(
        f"drop owned by lockstep_{role}",
        f"drop role lockstep_{role}",
    )


def test_files_of_the_connection_string_stay_those_of_where_the_command_was_run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table t (id int primary key)")
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "there" / "lockstep.toml"
    shutil.copy(str(parse_dsn(database.dsn)["passfile"]), "pgpass")
    write_config(dsn=make_conninfo(database.dsn, passfile="pgpass"), path=path, name="shop", schemas=())
    assert parse_dsn(load(path).source.dsn)["passfile"] == str(tmp_path / "here" / "pgpass")
