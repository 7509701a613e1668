"""A view's query as PostgreSQL can run it."""

import pytest

from cdc.model.table import TableName
from tests.view_queries import TABLES
from views.retention import Retained
from views.sql.reader import RetainedRows, TopRows, read_view
from views.sql.statement import reads_events, statement, whole_statement
from views.values import Kind

NIGHT_MS = 1_772_409_600_000
"""The midnight at which 2026-03-02 begins."""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id from a", 'select id from "public".a'),
        ("select id from a ; -- the end;", 'select id from "public".a'),
        ("select id from a -- no end", 'select id from "public".a'),
        ("select a.id from a join s.b on a.id = b.id", 'select a.id from "public".a join s.b on a.id = b.id'),
        ('select x.id from "Odd ""name" x', 'select x.id from "public"."Odd ""name" x'),
        ("with a as (select id from a) select id from a", 'with a as (select id from "public".a) select id from a'),
        ("select 'from a' as t from (select id from a) q", "select 'from a' as t from (select id from \"public\".a) q"),
        ("select 1 from a union select id from b", 'select 1 from "public".a union select id from "public".b'),
        ("select é.id from a é", 'select é.id from "public".a é'),
    ],
)  # fmt: skip
def test_a_table_without_a_schema_gets_public_and_what_follows_the_query_is_left_out(sql: str, expected: str) -> None:
    assert statement(sql) == expected


def test_top_is_a_rank_in_the_order_that_a_view_has() -> None:
    sql, top = "select id, t from a where t is not null", TopRows(("t",), "id desc", 3)
    plan = read_view(sql, TABLES, key=("t", "id"), top=top)
    ranked = (
        'select q.*, row_number() over (partition by "t" order by id desc, "t" collate "C", "id")'
        ' as lockstep_rank from (select id, t from "public".a where t is not null\n) as q'
    )
    whole = f'select "id", "t" from ({ranked}) as ranked where lockstep_rank <= 3'
    assert whole_statement(plan, sql, top) == whole
    assert whole_statement(plan, sql, None) == 'select id, t from "public".a where t is not null'


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id from a", 'select id from {of} as "a"'),
        ("select x.id from Public.A as x, a", 'select x.id from {of} as x, {of} as "a"'),
        ("with a as (select id from a) select id from a", 'with a as (select id from {of} as "a") select id from a'),
        (
            "select b.id from b left join a y on y.id = b.id",
            'select b.id from "public".b left join {of} y on y.id = b.id',
        ),
        ("select id from s.a union select id from a", 'select id from s.a union select id from {of} as "a"'),
    ],
)
def test_a_table_with_a_condition_has_those_rows_alone_wherever_it_stands(sql: str, expected: str) -> None:
    of = '(select * from "public"."a" where id > 3)'
    assert statement(sql, {TableName("public", "a"): "id > 3"}) == expected.replace("{of}", of)


def test_the_whole_statement_reads_the_rows_that_count_at_the_views_time() -> None:
    retain = [RetainedRows(TableName("public", "a"), "d", 36)]
    plan = read_view("select id from a", TABLES, key=("id",), retain=retain)
    rows = """select * from "public"."a" where "d" is null or "d" > timestamp '2026-02-28 12:00:00'"""
    assert whole_statement(plan, "select id from a", None, time_ms=NIGHT_MS) == f'select id from ({rows}) as "a"'


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (Kind.TIMESTAMPTZ, "timestamptz '2026-02-28 12:00:00+00'"),
        (Kind.TIMESTAMP, "timestamp '2026-02-28 12:00:00'"),
        (Kind.DATE, "timestamp '2026-02-28 12:00:00'"),
    ],
)
def test_the_condition_means_the_same_in_every_session(kind: Kind, condition: str) -> None:
    retained = Retained(TableName("public", "a"), "a b", 36, kind)
    assert retained.condition(NIGHT_MS) == f'"a b" is null or "a b" > {condition}'


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("select a.id from log, a", False),
        ("select l._event as event from log l", True),
        ("select count(*) from log where _OPERATION = 'insert'", True),
        ("select id as _event from a", False),
    ],
)
def test_a_column_that_only_the_log_has_is_known(sql: str, reads: bool) -> None:
    assert reads_events(sql) is reads
