"""sinks.warehouse.duckdb.values"""

from datetime import date, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.event import JsonValue
from cdc.model.table import Column
from sinks.columns.arrow_columns import EXACT_COLUMN
from sinks.columns.shape import Shape
from sinks.warehouse.duckdb.values import rows_of, stored_as
from tests.builders import column, table, upsert


def numeric(precision: int, scale: int, *, is_array: bool = False) -> Column:
    return column("v", "numeric", type_modifier=(precision << 16 | scale & 0x7FF) + 4, is_array=is_array)


def stored(of: Column, *values: JsonValue) -> tuple[pa.Array, list[str | None], list[JsonValue]]:
    """What the column holds, what is beside it, and what is read back."""
    shape = table(column("id", "int8"), of)
    rows = rows_of(Shape.of(shape))
    events = [upsert({"id": number, "v": value}, 1, of=shape) for number, value in enumerate(values)]
    data, rejections = rows.encode(events)
    assert rejections == []
    back = [row.row["v"] for batch in data.to_batches() for row in rows.decode(batch, shape)]
    return data.column("v").combine_chunks(), data.column(EXACT_COLUMN).to_pylist(), back


@pytest.mark.parametrize(
    ("of", "sql", "in_a_key"),
    [
        (column("v", "bool"), "BOOLEAN", "BOOLEAN"),
        (column("v", "int2"), "SMALLINT", "SMALLINT"),
        (column("v", "oid"), "BIGINT", "BIGINT"),
        (column("v", "float4"), "FLOAT", "VARCHAR"),
        (column("v", "float8"), "DOUBLE", "VARCHAR"),
        (column("v", "numeric"), "VARCHAR", "VARCHAR"),
        (numeric(10, 2), "DECIMAL(10,2)", "VARCHAR"),
        (numeric(39, 2), "VARCHAR", "VARCHAR"),
        (column("v", "timestamptz"), "TIMESTAMPTZ", "TIMESTAMPTZ"),
        (column("v", "uuid"), "UUID", "UUID"),
        (column("v", "bytea"), "BLOB", "BLOB"),
        (column("v", "jsonb"), "JSON", "JSON"),
        (column("v", "json"), "VARCHAR", "VARCHAR"),
        (column("v", "interval"), "VARCHAR", "VARCHAR"),
        (column("v", "int4", is_array=True), "INTEGER[]", "VARCHAR"),
        (numeric(10, 2, is_array=True), "DECIMAL(10,2)[]", "VARCHAR"),
        (column("v", "jsonb", is_array=True), "VARCHAR[]", "VARCHAR"),
    ],
    ids=str,
)
def test_a_type_has_its_column(of: Column, sql: str, in_a_key: str) -> None:
    assert [stored_as(of, is_key=is_key).sql for is_key in (False, True)] == [sql, in_a_key]


MOMENTS: list[JsonValue] = ["2016-11-04T13:51:30.123456Z", "9999-12-31T23:59:59.5Z", "0001-01-01T00:00:00Z", None]
FAR: list[JsonValue] = [
    "infinity",
    "-infinity",
    "21016-11-04T13:51:30Z",
    "0044-03-15T00:00:00Z BC",
    "4713-01-01T00:00:00Z BC",
]


@pytest.mark.parametrize("values", [MOMENTS, FAR, [*MOMENTS, *FAR]], ids=["plain", "far", "both"])
def test_moments_are_held_however_far_they_are(values: list[JsonValue]) -> None:
    held, exact, back = stored(column("v", "timestamptz"), *values)
    assert (back, exact) == (values, [None] * len(values))
    assert [value is None for value in held.cast(pa.int64()).to_pylist()] == [value is None for value in values]


def test_infinity_is_what_duckdb_takes_for_it() -> None:
    held, _, _ = stored(column("v", "timestamp"), "infinity", "-infinity")
    assert held.cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63) + 1]
    held, _, _ = stored(column("v", "date"), "infinity", "-infinity")
    assert held.cast(pa.int32()).to_pylist() == [2**31 - 1, -(2**31) + 1]


@given(st.integers(-2_400_000, 2_140_000_000))
def test_every_day_comes_back(days: int) -> None:
    """PostgreSQL's own are those from 4713 BC to 5874897."""
    shape = table(column("id", "int8"), column("v", "date"))
    rows = rows_of(Shape.of(shape))
    form = stored_as(column("v", "date"), is_key=False).form
    (text,) = form.read(pa.array([days], pa.int32()).cast(pa.date32()))
    array, exact = form.write([text])
    assert (array.cast(pa.int32()).to_pylist(), exact) == ([days], {})
    if date.min <= date(1970, 1, 1) and -719_162 <= days <= 2_932_896:
        assert text == str(date(1970, 1, 1) + timedelta(days=days))
    assert rows.schema.field("v").type == pa.date32()


def test_a_year_beyond_is_beside_the_column_and_is_refused_in_a_key() -> None:
    far = "294276-12-31T23:59:59.999999"
    held, exact, back = stored(column("v", "timestamp"), far)
    assert (held.to_pylist(), exact, back) == ([None], [f'{{"v":"{far}"}}'], [far])
    keyed = table(column("v", "timestamp"), key=("v",))
    _, (rejection,) = rows_of(Shape.of(keyed)).encode([upsert({"v": far}, 1, of=keyed)])
    assert rejection.reason == "column 'v': a time that this warehouse can't hold in a key"


def test_times_of_day() -> None:
    values: list[JsonValue] = ["00:00:00", "23:59:59.999999", "24:00:00", "13:00:00.5", None]
    assert stored(column("v", "time"), *values)[1:] == ([None] * 5, values)


@pytest.mark.parametrize("value_type", ["float4", "float8"])
def test_floats_come_back_as_they_are_printed(value_type: str) -> None:
    values: list[JsonValue] = [0, 1, -7, 0.1, 3.3, -0.0, "NaN", "-Infinity", 123456, 1e20]
    _, exact, back = stored(column("v", value_type), *values)
    assert (repr(back), exact) == (repr(values), [None] * len(values))


def test_arrays_of_one_dimension_are_lists_and_others_are_beside_them() -> None:
    values: list[JsonValue] = [[1, None], [], None, [[1], [2]], "[0:1]={7,8}", [3]]
    held, exact, back = stored(column("v", "int4", is_array=True), *values)
    assert held.to_pylist() == [[1, None], [], None, None, None, [3]]
    assert (back, [text is not None for text in exact]) == (values, [False] * 3 + [True] * 2 + [False])


def test_an_array_with_an_element_that_has_no_column_is_beside_it() -> None:
    values: list[JsonValue] = [["1.10", "2.00"], ["1.10", "NaN"], ["3.00"]]
    held, exact, back = stored(numeric(6, 2, is_array=True), *values)
    assert ([len(of) if of else of for of in held.to_pylist()], exact) == (
        [2, None, 1],
        [None, '{"v":["1.10","NaN"]}', None],
    )
    assert back == values


@pytest.mark.parametrize(
    ("of", "value", "why"),
    [
        (column("v", "date"), "2016-02-30", "no date"),
        (column("v", "timestamp"), "2016-11-04T13:51:30Z", "no timestamp"),
        (column("v", "timestamptz"), "secret", "no timestamp"),
        (column("v", "time"), "25:00:00", "no time of day"),
        (column("v", "uuid"), "secret", "no uuid"),
        (column("v", "int4", is_array=True), ["secret"], "a value of another type"),
        (column("v", "int4", is_array=True), 7, "a value that is no array"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_rejected_and_its_neighbours_are_kept(
    of: Column, value: JsonValue, why: str
) -> None:
    shape = table(column("id", "int8"), of)
    events = [upsert({"id": number, "v": value if number == 1 else None}, 1, of=shape) for number in range(3)]
    data, (rejection,) = rows_of(Shape.of(shape)).encode(events)
    assert data.column("id").to_pylist() == [0, 2]
    assert (rejection.event, rejection.reason) == (events[1], f"column 'v': {why}")
