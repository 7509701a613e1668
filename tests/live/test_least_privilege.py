"""A live pipeline with exactly the rights that the SQL of the package and the docs gives its roles."""

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from cdc.model.table import TableName
from cdc.postgres.slot import emit_functions
from migrations.source import messages_sql, publication_sql, role_sql
from stack.stack import Endpoints
from tests.databases import Database
from tests.pipeline import Pipeline

pytestmark = pytest.mark.live

_PAGES = Path(__file__).parents[2] / "docs"


def warehouse_sql(role: str, database: str) -> str:
    page = (_PAGES / "sinks" / "warehouse.md").read_text()
    found = re.search(r"```sql\n(create role .*?)```", page, re.DOTALL)
    assert found is not None
    return re.sub(r"\blockstep\b", role, re.sub(r"\bwarehouse\b", database, found[1]))


def close_to_everybody(database: Database) -> None:
    """Revoke what PostgreSQL gives to every role in a new database."""
    database.execute(f"revoke all on database {database.name} from public", "revoke all on schema public from public")


@pytest.fixture
def warehouse(endpoints: Endpoints) -> Iterator[Database]:
    created = Database(endpoints.warehouse_dsn)
    try:
        yield created
    finally:
        created.drop()


@pytest.fixture
def pipeline(database: Database, warehouse: Database, endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    """Its roles have their own names, and an administrator made them and the publication."""
    name = f"t{uuid.uuid4().hex[:10]}"
    close_to_everybody(database)
    close_to_everybody(warehouse)
    warehouse.execute(*warehouse_sql(name, warehouse.name).split(";\n"))
    warehouse.let_in(name)
    url = make_url(endpoints.warehouse_url).set(database=warehouse.name, username=name)
    own = replace(
        endpoints,
        source_dsn=database.dsn,
        warehouse_dsn=make_conninfo(warehouse.dsn, user=name),
        warehouse_url=url.render_as_string(hide_password=False),
    )
    pipeline = Pipeline(own, tmp_path, name, sinks=True, dsn_options=f"user={name}")
    tables = [TableName(name, "account"), TableName(name, "entry")]
    database.execute(
        role_sql(name, database.name, tables),
        publication_sql(pipeline.config.publication, tables, version=database.connection.info.server_version),
        messages_sql(name, emit_functions(database.connection)),
    )
    database.let_in(name)
    yield pipeline
    pipeline.close()
    for made in (database, warehouse):
        made.execute(f"drop owned by {name}", f"drop role {name}")


@pytest.mark.busy
def test_a_pipeline_lives_with_the_rights_that_it_is_to_be_given(
    pipeline: Pipeline, database: Database, spark: SparkSession
) -> None:
    database.execute(
        f"insert into {pipeline.name}.account (id, owner) select i, 'o' from generate_series(1, 50) i",
        f"insert into {pipeline.name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 50) i",
    )
    who = "select usesysid::regrole::text from pg_stat_replication where application_name like 'lockstep%'"
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    assert database.connection.execute(who).fetchall().count((pipeline.name,)) == 1

    pipeline.change_accounts("streamed")
    pipeline.run("snapshot", "table", f"{pipeline.name}.entry")
    pipeline.change_accounts("beside the copy")
    pipeline.wait_published(capture)
    assert pipeline.apply(spark, once=True).finish() == 0
    pipeline.assert_sinks_equal()
