"""A view after any history is its query over the tables as they are then: DuckDB judges."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import views.view
from cdc.model.table import TableName
from tests.examples import examples
from tests.view_queries import TABLES, KeptView, Question, RowWrite, for_duckdb, histories, questions
from views.sql.reader import RetainedRows
from views.state.memory import MemoryState
from views.values import Kind

_TYPES = {"numeric(8,2)": "decimal(8,2)", "numeric": "decimal(18,3)", "int4": "integer", "int8": "bigint"}


@pytest.fixture(scope="module")
def judge() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("set threads = 1")
        connection.execute("set order_by_non_integer_literal = true")
        # DuckDB divides before it looks at the condition that guards the division.
        connection.execute("set error_on_division_by_zero = false")
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


@settings(max_examples=examples(20))
@given(question=questions(exact=False), history=histories())
def test_a_view_is_its_query(
    judge: duckdb.DuckDBPyConnection, question: Question, history: list[list[RowWrite]]
) -> None:
    view = KeptView(question, MemoryState())
    for table in TABLES.values():
        judge.execute(f"delete from {table.name.name}")
    for step in history:
        write(judge, step)
        view.step(step)
        assert_is_query(judge, view)
    assert view.built_anew(history).rows == view.rows


def assert_is_query(judge: duckdb.DuckDBPyConnection, view: KeptView) -> None:
    question = view.question
    kinds = {name: made.type.kind for name, made in view.plan.outputs}
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


DAY = timedelta(days=1)
TIMES = [
    datetime.fromisoformat(text).replace(tzinfo=UTC)
    for text in (
        "1999-12-01T00:00", "2000-01-01T23:59:59.999", "2024-01-01T12:00", "2024-01-02T00:00:59", "2024-03-01T13:51:59",
        "2024-03-01T13:52", "2024-06-01T00:00",
    )
]  # fmt: skip
"""Of commits, just before and just after rows of a are a day old."""


@settings(max_examples=examples(20))
@given(
    question=questions(exact=False),
    history=histories(),
    times=st.lists(st.sampled_from(TIMES), min_size=5, max_size=5),
    portion=st.integers(1, 3),
    killed=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_view_with_retention_is_its_query_over_the_rows_that_are_not_too_old(
    judge: duckdb.DuckDBPyConnection,
    question: Question,
    history: list[list[RowWrite]],
    times: list[datetime],
    portion: int,
    killed: list[bool],
) -> None:
    """Clocks go back, rows age in portions, and a process ends between a step and the first or second portion."""
    tables = {table.name.name for table in TABLES.values()}
    if TableName("public", "a") not in KeptView(question, MemoryState()).plan.tables:
        return
    state = MemoryState()
    retain = [RetainedRows(TableName("public", "a"), "d", 24)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(views.view, "EXPIRED_AT_ONCE", portion)
        view = KeptView(question, state, retain=retain)
        rows: dict[tuple[Any, ...], RowWrite] = {}
        time = datetime.fromtimestamp(0, UTC)
        for number, (step, at, is_killed) in enumerate(zip(history, times, killed, strict=False), 1):
            time = max(time, at.replace(second=0, microsecond=0))
            rows |= {(table, *key.values()): (table, key, row) for table, key, row in step}
            if is_killed:
                lsn, at_ms = 8 * number, int(at.timestamp() * 1000)
                view.killed_after(step, lsn=lsn, time_ms=at_ms, portions=number % 2)
                again = KeptView(question, state, retain=retain)
                again.rows, again.lsn = view.rows, lsn
                view = again
                view.deliver()
            else:
                view.step(step, time_ms=int(at.timestamp() * 1000))
            for table in tables:
                judge.execute(f"delete from {table}")
            write(judge, [row for row in rows.values() if not is_too_old(row, time)])
            assert_is_query(judge, view)
        assert view.built_anew(history[:5], time_ms=int(time.timestamp() * 1000)).rows == view.rows
        left = [row for row in rows.values() if row[0] == "a" and row[2] is not None and not is_too_old(row, time)]
        assert len(state.read(lambda reading: list(reading.scan(b"a")))) == sum(row[2]["d"] is not None for row in left)


def is_too_old(write: RowWrite, time: datetime) -> bool:
    table, _, row = write
    if table != "a" or row is None or not isinstance(row["d"], str):
        return False
    return datetime.fromisoformat(row["d"]).replace(tzinfo=UTC) <= time - DAY
