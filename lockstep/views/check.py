"""``lockstep views check``: whether a query can be kept over the tables of a database, and what that would cost."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg

from cdc.model.append_only import stored_tables
from cdc.model.table import Table, TableName
from cdc.postgres.connection import connect
from cdc.postgres.statistics import share_since, table_statistics
from lockstep.captured_tables import captured_shapes
from lockstep.config import Config
from lockstep.init import connect_to, source_of, tables_of
from sinks.view_settings import ViewSettings
from views.estimate import Estimate, estimate
from views.failures import Refusal, Refused
from views.plan import ViewPlan
from views.sql.keys import shortest_key
from views.sql.over_views import NamedQuery, over_tables
from views.sql.reader import RetainedRows, read_view
from views.sql.statement import reads_events, statement

_APPLICATION: Final = "lockstep views check"


@dataclass(frozen=True, slots=True)
class Question:
    """A view's query. Without a ``key`` the shortest one is used. ``views`` are those that it may read."""

    sql: str
    key: tuple[str, ...] = ()
    retain: tuple[RetainedRows, ...] = ()
    views: Mapping[TableName, NamedQuery] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a query.

    ``plan`` is None if it can't be kept, and ``refusals`` say why. ``key`` is the given one, or the one that was found.
    ``estimate`` is None if tables lack statistics; ``not_analysed`` are those tables.
    """

    key: tuple[str, ...]
    refusals: tuple[Refusal, ...] = ()
    plan: ViewPlan | None = None
    estimate: Estimate | None = None
    not_analysed: tuple[TableName, ...] = ()


def named_queries(views: Mapping[str, ViewSettings]) -> dict[TableName, NamedQuery]:
    return {view.table: NamedQuery(view.sql, view.beyond_query) for view in views.values()}


def check_configured(config: Config, question: Question) -> Checked:
    """Check a query over the captured tables, which are known, and the views. Raises LockstepError."""
    question = replace(question, views=named_queries(config.views))
    with closing(connect(config.source, application=_APPLICATION)) as connection:
        return check(connection, question, captured_shapes(connection, config.as_pipeline()))


def check_database(dsn: str, question: Question) -> Checked:
    """Check a query over all tables with a key of the database that ``--dsn`` names. Raises LockstepError."""
    with closing(connect_to(source_of(dsn), application=_APPLICATION)) as connection:
        return check(connection, question, tables_of(connection).captured)


def check(connection: psycopg.Connection[Any], question: Question, tables: Mapping[TableName, Table]) -> Checked:
    """Check a query over these tables of the database. Changes nothing, and reads no row. Raises psycopg.Error if the
    server can't be asked."""
    connection.execute("set default_transaction_read_only = on")
    tables = stored_tables(tables)
    try:
        sql = over_tables(question.sql, question.views)
    except Refused as refused:
        return Checked(question.key, refused.refusals)
    key = question.key or shortest_key(sql, tables) or ()
    try:
        plan = read_view(sql, tables, key=key, retain=question.retain)
    except Refused as refused:
        return Checked(key, refused.refusals if key else tuple(map(_without_key, refused.refusals)))
    is_known_there = not reads_events(sql)
    if is_known_there and (refusal := _refused_by_postgres(connection, sql)) is not None:
        return Checked(key, (refusal,))
    known = table_statistics(connection, plan.tables)
    for rows in plan.retained:
        if rows.table in known:
            share = share_since(connection, rows.table, rows.column, hours=rows.hours)
            known[rows.table] = known[rows.table].of(share)
    not_analysed = tuple(table for table in plan.tables if table not in known)
    return Checked(key, (), plan, None if not_analysed else estimate(plan, known), not_analysed)


def _without_key(refusal: Refusal) -> Refusal:
    """Replaces the refusal that no key was named, since the check itself was to find one."""
    if refusal.clause != "key = []":
        return refusal
    return Refusal(
        "key",
        "no columns are known to identify the result's rows",
        "add the keys of the tables to the select list, or name the columns",
    )


def _refused_by_postgres(connection: psycopg.Connection[Any], sql: str) -> Refusal | None:
    """The server's error about the query, which it plans and doesn't run; None without one."""
    try:
        with connection.transaction():
            connection.execute("set transaction read only")
            connection.execute(f"explain (verbose false) {statement(sql)}".encode())
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        reason = f"PostgreSQL refuses it: {error.diag.message_primary or type(error).__name__}"
        return Refusal("sql", reason, error.diag.message_hint or "try it in psql")
    return None
