"""PostgreSQL judges views: after every transaction a view has the rows of its query, value by value, byte by byte."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import LiteralString

import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from cdc.event_format.column_types import SESSION_SETTINGS, json_encoder
from cdc.model.event import JsonValue
from cdc.model.table import Column, Table, TableName
from cdc.postgres.catalogue import load_tables
from tests.databases import Database
from tests.examples import examples
from tests.view_queries import TABLES, KeptView, Question, RowWrite, histories, questions
from views.failures import EvaluationError
from views.numerics import add, decimal_of, divide, multiply, remainder, subtract, text_of
from views.state.memory import MemoryState

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def judge(shared_database: Database) -> Iterator[psycopg.Connection]:
    options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items() if name != "search_path")
    with psycopg.connect(shared_database.dsn, autocommit=True, options=options) as connection:
        for table in TABLES.values():
            columns = ", ".join(f"{column.name} {column.type_name}" for column in table.columns)
            connection.execute(
                f"create table {table.name.name} ({columns}, primary key ({', '.join(table.key)}))".encode()
            )
        yield connection


def write(judge: psycopg.Connection, step: Sequence[RowWrite]) -> None:
    for table, key, row in step:
        where = sql.SQL(" and ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key)
        name = sql.Identifier(table)
        judge.execute(sql.SQL("delete from {} where {}").format(name, where), list(key.values()))
        if row is not None:
            values = sql.SQL(", ").join(sql.Placeholder() * len(row))
            judge.execute(sql.SQL("insert into {} values ({})").format(name, values), list(row.values()))


def answered(judge: psycopg.Connection, question: Question) -> dict[tuple[JsonValue, ...], dict[str, JsonValue]]:
    """The query's result as events have it, by the view's key."""
    cursor = judge.execute(question.whole.encode())
    assert cursor.description is not None
    assert cursor.pgresult is not None
    encoders = []
    for described in cursor.description:
        pg_type = psycopg.adapters.types.get(described.type_code)
        assert pg_type is not None
        encoders.append((described.name, json_encoder(pg_type.name, described.type_code == pg_type.array_oid)))
    rows = {}
    for index in range(cursor.pgresult.ntuples):
        row = {
            name: None if (value := cursor.pgresult.get_value(index, place)) is None else json.loads(encode(value))
            for place, (name, encode) in enumerate(encoders)
            if name != "rank"
        }
        rows[tuple(row[name] for name in question.key)] = row
    assert len(rows) == cursor.pgresult.ntuples
    return rows


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(question=questions(exact=True), history=histories())
def test_a_view_has_the_rows_of_its_query(
    judge: psycopg.Connection, question: Question, history: list[list[RowWrite]]
) -> None:
    judge.execute("truncate a, b, c")
    view = KeptView(question, MemoryState())
    for step in history:
        with judge.transaction():
            write(judge, step)
        try:
            expected = answered(judge, question)
        except (psycopg.errors.NumericValueOutOfRange, psycopg.errors.DivisionByZero):
            # PostgreSQL's plan decides which rows it evaluates. A view fails only for those of the result.
            with suppress(EvaluationError):
                view.step(step)
            return
        view.step(step)
        assert view.rows == expected
    assert view.built_anew(history).rows == view.rows


_NUMERICS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**25), max_value=10**25).map(text_of)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(pairs=st.lists(st.tuples(_NUMERICS, _NUMERICS), min_size=1, max_size=40))
def test_arithmetic_of_numerics_is_postgresqls(judge: psycopg.Connection, pairs: list[tuple[str, str]]) -> None:
    query = (
        "select (a + b)::text, (a - b)::text, (a * b)::text, (a / nullif(b, 0))::text, mod(a, nullif(b, 0))::text"
        " from unnest(%s::numeric[], %s::numeric[]) with ordinality as t(a, b, place) order by place"
    )
    expected = judge.execute(query, [[a for a, _ in pairs], [b for _, b in pairs]]).fetchall()

    def computed(left: str, right: str) -> tuple[str | None, ...]:
        a, b = decimal_of(left), decimal_of(right)
        results = [add(a, b), subtract(a, b), multiply(a, b), *([divide(a, b), remainder(a, b)] if b else [None, None])]
        return tuple(None if result is None else text_of(result) for result in results)

    assert [computed(a, b) for a, b in pairs] == expected


_TYPED = {
    "a_bool": ("bool", ["true"]),
    "b_int": ("int8", ["-9007199254740993"]),
    "c_numeric": ("numeric", ["1.10", "-0.00", "NaN", "Infinity", "1e40", "0.000000000000000000001"]),
    "d_text": ("text", ["", 'a "b" \\ / \u2028 \x7f é 😀', "tab\tnew\nline\x01\x1f"]),
    "e_date": ("date", ["2024-02-29", "infinity", "0044-03-15 BC"]),
    "f_timestamp": ("timestamp", ["2024-02-29 13:51:30.12", "-infinity", "0044-03-15 10:00:00 BC"]),
    "g_timestamptz": ("timestamptz", ["2024-02-29 13:51:30.123456+02", "infinity", "0044-03-15 10:00:00+00 BC"]),
    "h_uuid": ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    "i_jsonb": ("jsonb", ['{"b": [1.50, null, {"é": "\\u0001"}], "aa": {}}', "null", '"x"']),
    "j_char": ("char(4)", ["ab"]),
    "k_interval": ("interval", ["1 year 2 mons 3 days 04:05:06.7"]),
    "l_bytea": ("bytea", ["\\x00ff"]),
    "m_inet": ("inet", ["192.168.2.1/24"]),
    "n_float8": ("float8", ["0.1", "1e20", "1e15", "-0", "NaN", "-Infinity", "1.79e308", "5e-324", "1.5e-7"]),
    "o_float4": ("float4", ["3.3", "16777216", "1e-30"]),
    "p_time": ("time", ["24:00:00"]),
    "q_json": ("json", ['{"a":  1, "a": 2}']),
}  # fmt: skip
_NOT_IN_JSONB, _NOT_IN_JSON = ("q_json",), ("n_float8", "o_float4")


def _events(
    judge: psycopg.Connection, query: LiteralString, columns: Sequence[Column]
) -> Iterator[dict[str, JsonValue]]:
    """A query's rows with these columns, as events have them."""
    cursor = judge.execute(query)
    encoders = [json_encoder(column.value_type, column.is_array) for column in columns]
    assert cursor.pgresult is not None
    for index in range(cursor.pgresult.ntuples):
        yield {
            column.name: None
            if (value := cursor.pgresult.get_value(index, place)) is None
            else orjson.loads(encoders[place](value))
            for place, column in enumerate(columns)
        }


def test_values_of_every_type_look_in_documents_as_postgresql_writes_them(judge: psycopg.Connection) -> None:
    columns = ", ".join(f"{name} {of}" for name, (of, _) in _TYPED.items())
    judge.execute(f"create table typed (id int primary key, {columns})".encode())
    judge.execute("insert into typed (id) values (0)")
    number = 0
    for name, (_, texts) in _TYPED.items():
        for text in texts:
            number += 1
            judge.execute(f"insert into typed (id, {name}) values (%s, %s)".encode(), [number, text])
    with judge.transaction():
        table = load_tables(judge, [TableName("public", "typed")], None)[TableName("public", "typed")]
    rows: list[RowWrite] = [
        ("typed", {"id": row["id"]}, row) for row in _events(judge, "select * from typed", table.columns)
    ]
    jsonb = ", ".join(f"'{name[2:]}', {name}" for name in _TYPED if name not in _NOT_IN_JSONB)
    json_ = ", ".join(f"'{name[2:]}', {name}" for name in _TYPED if name not in _NOT_IN_JSON)
    question = Question(
        f"select id, jsonb_build_object({jsonb}) as b, json_build_object({json_}) as j, i_jsonb::json as cast_json,"
        ' i_jsonb::text as cast_text, coalesce(i_jsonb, \'{"bb": 1e2, "a":[true,"\\u00e9"], "a":-0.0}\') as c,'
        " jsonb_build_array(id, 'x', null, i_jsonb) as r from typed",
        ("id",),
    )
    view = KeptView(question, MemoryState(), {table.name: table})
    view.step(rows)
    assert view.rows == answered(judge, question)


_OF_CHAR = (
    *("c = 'ab'", "c = 'ab   '", "c <> d", "c = t", "c = '  '", "c in ('ab', 'x ', 'é')", "c is distinct from 'ab '"),
    *('c collate "C" < d', "c collate \"C\" >= 'b'", "c::text = t", "nullif(c, 'ab')", "coalesce(c, null)"),
    *("case when c = 'ab' then c end", "case c when 'ab' then 1 else 2 end", "jsonb_build_object('c', c)"),
)
_OF_FLOATS = (
    *("f = g", "f > 1.5", "f = 0.1", "g = 0.1", "g = '0.1'", "g <> 0.5", "f between 0 and 'Infinity'", "f <= 'NaN'"),
    *("f in (0.1, 1, 'NaN')", "f < n", "f = i", "g <= f", "g = i", "f is not distinct from g", "nullif(f, 'NaN')"),
    *("f >= - 0.5", "not (f = 0)", "g > 16777216", "f = f", "case when f > 1 then f end"),
)


@pytest.fixture(scope="module")
def odd(judge: psycopg.Connection) -> tuple[Table, list[RowWrite]]:
    """A table with ``char(n)`` and floats, and its rows as events have them."""
    judge.execute(
        "create table odd (id int primary key, c char(4), d char(6), t text, f float8, g float4, n numeric, i int8)"
    )
    texts = ["ab", "", "b", "x", "abc", "é", "ab\x01", None]
    floats = ["0.1", "-0", "0", "NaN", "Infinity", "-Infinity", "1e20", "16777217", "1.5", None]
    numbers = ["0.1", "0", "1.50", "100000000000000000000", "-3", None]
    judge.execute(
        "insert into odd select row_number() over (), a, b, t, f::float8, g::float4, n::numeric, i::int8"
        " from unnest(%s::text[]) a, unnest(%s::text[]) b, unnest(%s::text[]) t, unnest(%s::text[]) f,"
        " unnest(%s::text[]) g, unnest(%s::text[]) n, unnest(%s::text[]) i"
        " where abs(hashtext(concat_ws('|', a, b, t, f, g, n, i))) %% 6000 = 0",
        [texts, texts, [*texts, "ab  "], floats, floats, numbers, ["0", "1", "-7", "16777217", None]],
    )
    name = TableName("public", "odd")
    with judge.transaction():
        table = load_tables(judge, [name], None)[name]
    return table, [("odd", {"id": row["id"]}, row) for row in _events(judge, "select * from odd", table.columns)]


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        (f"select id, {', '.join(f'({part}) as v{place}' for place, part in enumerate(_OF_CHAR))} from odd", "id"),
        (f"select id, {', '.join(f'({part}) as v{place}' for place, part in enumerate(_OF_FLOATS))} from odd", "id"),
        ("select c, count(*) as n, count(distinct d) as m from odd where c is not null group by c", "c"),
        (
            'select t, max(c collate "C") as c, array_agg(d order by id) as d from odd where t is not null group by t',
            "t",
        ),
        ("select x.id, y.id as other from odd x join odd y on x.c = y.d and x.id < y.id", "id, other"),
        ("select x.id, y.id as other from odd x join odd y on x.f = y.g and x.id < y.id", "id, other"),
    ],
)
def test_fixed_text_and_floats_are_compared_as_postgresql_does(
    judge: psycopg.Connection, odd: tuple[Table, list[RowWrite]], sql: str, key: str
) -> None:
    table, rows = odd
    question = Question(sql, tuple(key.split(", ")))
    view = KeptView(question, MemoryState(), {table.name: table})
    for start in range(0, len(rows), 50):
        view.step(rows[start : start + 50])
    assert view.rows == answered(judge, question)
