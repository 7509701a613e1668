"""A role that may create functions in a searched schema can't make us run them, and changes no text."""

import psycopg
import pytest
from psycopg import sql

from cdc.model.finding import Severity
from lockstep.doctor.examine import examine
from tests.captured import StartCapture
from tests.databases import Database

pytestmark = pytest.mark.live

# By their arguments they fit our calls better than the intended functions, or as well.
_TRAPS = (
    "concat_ws(text, smallint, xid) returns text",
    "format_type(oid, integer) returns text",
    "pg_get_expr(pg_node_tree, oid) returns text",
    "quote_ident(name) returns text",
    "to_regclass(text) returns regclass",
    "pg_get_indexdef(oid) returns text",
    "has_table_privilege(oid, text) returns boolean",
    "pg_current_wal_insert_lsn() returns pg_lsn",
)


def test_functions_and_operators_of_others_are_not_run(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create type mood as enum ('calm', 'wild')",
        "create table other (id int primary key)",
        "create table t (id int primary key, m mood, r regclass, v text)",
        "insert into t values (1, 'calm', 'other', 'x'), (2, 'wild', 'pg_class', 'y')",
        *(
            f"create function public.{trap} language plpgsql as 'begin raise exception ''trap''; end'"
            for trap in _TRAPS
        ),
        "create operator public.= (function = pg_catalog.int4ne, leftarg = int4, rightarg = int4)",
    )
    name = sql.Identifier(database.connection.info.dbname)
    database.connection.execute(sql.SQL("alter database {} set search_path = public, pg_catalog").format(name))
    captured = capture("public.t")
    _execute(
        database,
        "insert into public.t values (3, 'calm', 'public.other', 'z')",
        "update public.t set v = 'w' where id operator(pg_catalog.=) 2",
        "alter table public.t add more public.mood default 'wild'",
        "delete from public.t where id operator(pg_catalog.=) 1",
    )
    captured.assert_equal()
    texts = {event.parsed["after"]["r"] for event in captured.events("public.t") if event.parsed.get("after")}
    assert texts == {"public.other", "pg_class"}
    types = {column.type_name for record in captured.schemas("public.t") for column in record.table.columns}
    assert types == {"integer", "mood", "regclass", "text"}
    captured.stop()
    found = [finding for finding in examine(captured.config) if finding.severity is Severity.ERROR]
    assert found == []


def _execute(database: Database, *statements: str) -> None:
    """In a session whose own path isn't the trap."""
    with psycopg.connect(database.dsn, autocommit=True, options="-c search_path=pg_catalog") as connection:
        for statement in statements:
            connection.execute(statement.encode())
