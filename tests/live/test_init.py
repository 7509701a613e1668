"""What `lockstep init` writes for a database, and that it is a valid configuration."""

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.model.finding import Severity
from cdc.model.table import TableName
from lockstep.config import load
from lockstep.doctor.examine import examine
from lockstep.init import write_config
from sinks.wrappers.projection import parse_column
from stack.stack import Endpoints
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
    write_config(dsn=database.dsn, path=path, name="shop")
    config = load(path)
    assert set(config.source.table_names) == {TableName("public", name) for name in ("keyed", "Odd name", "parted")}
    text = path.read_text()
    assert "public.keyless (no primary key" in text
    assert "public.fast (unlogged" in text
    assert "# not captured: 1 partition of public.parted, whose rows come with it" in text
    assert "seen" not in text


def test_who_does_not_own_the_tables_gets_the_sql_for_their_owner(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute(
        "create table t (id int primary key)",
        "create table parted (id int primary key) partition by range (id)",
        "create table part partition of parted default",
    )
    role = database.role()
    said = write_config(dsn=make_conninfo(database.dsn, user=role), path=tmp_path / "lockstep.toml", name="shop")
    begin = next(number for number, line in enumerate(said) if "doesn't own the tables" in line)
    database.execute(*(line for line in said[begin + 1 : -1] if not line.startswith("and a superuser")))
    with database.pinned(user=role) as connection:
        connection.execute("select from public.part")
    # Capture connects with the connection string's role, which has all it needs now.
    text = (tmp_path / "lockstep.toml").read_text().replace("127.0.0.1:9092", endpoints.kafka_bootstrap)
    (tmp_path / "lockstep.toml").write_text(text.replace("= 3  ", "= 1  ").replace("= 2  ", "= 1  "))
    config = load(tmp_path / "lockstep.toml")
    assert [finding.what for finding in examine(config) if finding.severity is not Severity.OK] == []
    other = database.role()
    with database.pinned(user=other) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select pg_logical_emit_message(true, 'lockstep.repair', '')")


def test_a_role_that_may_not_replicate_is_told_so(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    role = database.role(login="login")
    dsn = make_conninfo(database.dsn, user=role)
    said = write_config(dsn=dsn, path=tmp_path / "lockstep.toml", name="shop")
    assert f'alter role "{role}" replication;' in said


def test_the_examples_are_of_the_database_and_secrets_are_pointed_out(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table customer (no int primary key, mail text, phone varchar(9), age int, pin text)",
        'alter table customer add column "card_number 💳" text',
        "create table visits (at timestamptz)",
        "create table parted (id int primary key) partition by hash (id)",
        *(f"create table parted_{n} partition of parted for values with (modulus 3, remainder {n})" for n in range(3)),
    )
    path = tmp_path / "lockstep.toml"
    said = write_config(
        dsn=database.dsn,
        path=path,
        name="shop",
        sinks=(
            "search=http://search:9200",
            "cache=redis://cache:6379/0",
            "lake=s3://bucket/lake",
            "dwh=duckdb:////srv/d.db",
        ),
    )
    text = path.read_text()
    assert "public.orders" not in text
    assert '# where = { "public.customer" = "age > 0" }' in text
    assert '# [source.options."public.visits"]' in text
    assert "# not captured: 3 partitions of public.parted, whose rows come with it" in text
    secrets = 'public.customer.pin, public.customer."card_number 💳"'
    assert f"these look like secrets; each sink in the file excludes them: {secrets}" in said
    config = load(path)
    assert {name: sink.type for name, sink in config.sinks.items()} == {
        "search": "opensearch",
        "cache": "redis",
        "lake": "delta",
        "dwh": "warehouse",
    }
    assert config.sinks["search"].exclude == ("public.customer.pin", 'public.customer."card_number 💳"')


@pytest.mark.parametrize("name", ["emoji 🎉", 'quote"d', "back\\slash", "line\nend", "\u202eturned"])
def test_a_table_and_a_database_of_any_name_write_a_valid_file(database: Database, tmp_path: Path, name: str) -> None:
    database.connection.execute(
        sql.SQL("create table {} (id int primary key, {} text)").format(
            sql.Identifier(name), sql.Identifier(f"{name} token")
        )
    )
    path = tmp_path / "lockstep.toml"
    write_config(dsn=database.dsn, path=path, sinks=("cache=redis://cache:6379",))
    assert load(path).source.table_names == (TableName("public", name),)
    (hidden,) = load(path).sinks["cache"].exclude
    assert parse_column(hidden) == (TableName("public", name), f"{name} token")
