"""A view after any history is its query over the tables as they are then: DuckDB judges."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import event, given, settings

from tests.view_queries import TABLES, KeptView, Question, RowWrite, for_duckdb, histories, questions
from views.state.memory import MemoryState
from views.values import Kind

_TYPES = {"numeric(8,2)": "decimal(8,2)", "numeric": "decimal(18,3)", "int4": "integer", "int8": "bigint"}


@pytest.fixture(scope="module")
def judge() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("set threads = 1")
        connection.execute("set order_by_non_integer_literal = true")
        for table in TABLES.values():
            columns = ", ".join(
                f"{column.name} {_TYPES.get(column.type_name, column.type_name)}" for column in table.columns
            )
            connection.execute(f"create table {table.name.name} ({columns})")
        yield connection


def write(judge: duckdb.DuckDBPyConnection, step: list[RowWrite]) -> None:
    for table, key, row in step:
        judge.execute(f"delete from {table} where {' and '.join(f'{name} = ?' for name in key)}", list(key.values()))
        if row is not None:
            judge.execute(f"insert into {table} values ({', '.join('?' * len(row))})", list(row.values()))


def comparable(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind is Kind.NUMERIC:
        return Decimal(value)
    if kind is Kind.TIMESTAMP:
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return value


@settings(max_examples=100)
@given(question=questions(exact=False), history=histories())
def test_a_view_is_its_query(
    judge: duckdb.DuckDBPyConnection, question: Question, history: list[list[RowWrite]]
) -> None:
    view = KeptView(question, MemoryState())
    kinds = {name: made.type.kind for name, made in view.plan.outputs}
    for table in TABLES.values():
        judge.execute(f"delete from {table.name.name}")
    for step in history:
        write(judge, step)
        view.step(step)
        cursor = judge.execute(for_duckdb(question.whole))
        names = [description[0] for description in cursor.description]
        expected = [
            {name: comparable(value, kinds[name]) for name, value in zip(names, row, strict=True) if name in kinds}
            for row in cursor.fetchall()
        ]
        kept = [{name: comparable(value, kinds[name]) for name, value in row.items()} for row in view.rows.values()]

        def order(row: dict[str, Any]) -> str:
            return repr([row[name] for name in question.key])

        assert sorted(kept, key=order) == sorted(expected, key=order)
        event(f"rows: {min(len(expected), 3)}")
    assert view.built_anew(history).rows == view.rows
