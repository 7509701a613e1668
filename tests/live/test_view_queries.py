"""PostgreSQL judges views: after every transaction a view has the rows of its query, value by value, byte by byte."""

import json
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from cdc.model.event import JsonValue
from cdc.protocol.pgvalues import SESSION_SETTINGS, json_encoder
from tests.databases import Database
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


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
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
        except psycopg.errors.NumericValueOutOfRange:
            # The query fails in PostgreSQL: the view must not make up a result.
            with pytest.raises(EvaluationError):
                view.step(step)
            return
        view.step(step)
        assert view.rows == expected
    assert view.built_anew(history).rows == view.rows


_NUMERICS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**25), max_value=10**25).map(text_of)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
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
