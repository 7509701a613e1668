"""sinks.delta.values"""

from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Column, TableName
from sinks.columns.arrow_columns import EXACT_COLUMN
from sinks.columns.shape import Shape
from sinks.delta.values import form_of, may_partition, rows_of
from tests.builders import column, delete, table, upsert


def numeric(precision: int, scale: int) -> Column:
    """A column of numeric(precision, scale), with PostgreSQL's number for that."""
    return column("v", "numeric", type_modifier=(precision << 16 | scale & 0x7FF) + 4)


def stored(of: Column, *values: JsonValue) -> tuple[list[object], list[str | None], list[JsonValue]]:
    """What the column holds, what is beside it, and what is read back."""
    shape = table(column("id", "int8"), of)
    rows = rows_of(Shape.of(shape))
    events = [upsert({"id": number, "v": value}, 1, of=shape) for number, value in enumerate(values)]
    data, rejections = rows.encode(events)
    assert rejections == []
    back = [row.row["v"] for batch in data.to_batches() for row in rows.decode(batch, shape)]
    return data.column("v").to_pylist(), data.column(EXACT_COLUMN).to_pylist(), back


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (column("v", "bool"), pa.bool_()),
        (column("v", "int2"), pa.int16()),
        (column("v", "int4"), pa.int32()),
        (column("v", "int8"), pa.int64()),
        (column("v", "oid"), pa.int64()),
        (column("v", "float4"), pa.float64()),
        (column("v", "numeric"), pa.string()),
        (numeric(10, 2), pa.decimal128(10, 2)),
        (numeric(38, 0), pa.decimal128(38, 0)),
        (numeric(38, 38), pa.decimal128(38, 38)),
        (numeric(39, 2), pa.string()),
        (numeric(5, -2), pa.string()),
        (numeric(2, 5), pa.string()),
        (column("v", "date"), pa.date32()),
        (column("v", "timestamp"), pa.timestamp("us")),
        (column("v", "timestamptz"), pa.timestamp("us", "UTC")),
        (column("v", "bytea"), pa.binary()),
        (column("v", "int4", is_array=True), pa.string()),
        (column("v", "jsonb"), pa.string()),
        (column("v", "time"), pa.string()),
    ],
    ids=str,
)
def test_a_type_has_its_column(of: Column, kind: pa.DataType) -> None:
    assert form_of(of, is_key=False).type == kind


@pytest.mark.parametrize("value_type", ["float8", "numeric", "date", "timestamp", "timestamptz"])
def test_a_key_is_told_apart_by_its_text(value_type: str) -> None:
    assert form_of(column("v", value_type), is_key=True).type == pa.string()


def test_a_decimal_keeps_every_digit_and_what_it_cannot_hold_is_beside_it() -> None:
    held, exact, back = stored(numeric(6, 2), "1.10", "-9999.99", "0.00", "NaN", "1.1", "10000.00", "0.001", None)
    assert [None if value is None else str(value) for value in held] == [
        *("1.10", "-9999.99", "0.00", None, "1.10", None, None, None)
    ]
    assert [index for index, text in enumerate(exact) if text is not None] == [3, 4, 5, 6]
    assert back == ["1.10", "-9999.99", "0.00", "NaN", "1.1", "10000.00", "0.001", None]


def test_a_small_fraction_of_many_digits_is_not_written_with_an_exponent() -> None:
    text = "0." + "0" * 37 + "1"
    assert stored(numeric(38, 38), text) == ([pytest.approx(0)], [None], [text])


def test_times_beyond_what_readers_know_are_beside_their_column() -> None:
    values: list[JsonValue] = ["2016-11-04T13:51:30.123456Z", "2016-11-04T13:50:00Z", "9999-12-31T23:59:59.5Z"]
    odd: list[JsonValue] = ["infinity", "-infinity", "21016-11-04T13:51:30Z", "0044-03-15T00:00:00Z BC"]
    held, exact, back = stored(column("v", "timestamptz"), *values, *odd)
    assert back == [*values, *odd]
    assert [value is None for value in held] == [False] * 3 + [True] * 4
    assert exact == [None] * 3 + [f'{{"v":"{text}"}}' for text in odd]


@pytest.mark.parametrize("number", [0, 1, -7, 0.1, -0.0, 1e300, 5e-324, 1e15, 123456789012345, "NaN", "-Infinity"])
def test_a_float_comes_back_as_postgresql_prints_it(number: JsonValue) -> None:
    held, exact, back = stored(column("v", "float8"), number)
    assert (repr(back), exact) == (repr([number]), [None])
    assert isinstance(held[0], float)


def test_a_float4_that_is_printed_otherwise_than_a_double_is_beside_its_column() -> None:
    """1e6 is 1e+06 in one and 1000000 in the other."""
    held, exact, back = stored(column("v", "float4"), 1e6)
    assert (held, exact, repr(back)) == ([1e6], ['{"v":1000000.0}'], "[1000000.0]")


@pytest.mark.parametrize(
    ("of", "value", "why"),
    [
        (column("v", "int2"), 2**15, "a number that doesn't fit 16 bits"),
        (column("v", "int4"), -(2**31) - 1, "a number that doesn't fit 32 bits"),
        (column("v", "int8"), 2**70, "a number that doesn't fit 64 bits"),
        (column("v", "int4"), "secret", "a value of another type"),
        (column("v", "int4"), 1.5, "a value of another type"),
        (column("v", "int4"), True, "a value of another type"),
        (column("v", "text"), 1, "a value of another type"),
        (column("v", "text"), "secret\ud800", "a text that isn't Unicode"),
        (column("v", "float8"), "secret", "a value of another type"),
        (column("v", "bytea"), "secret", "no bytes in PostgreSQL's hex form"),
        (column("v", "bytea"), "\\xFF", "no bytes in PostgreSQL's hex form"),
        (column("v", "int4", is_array=True), "secret", "a value that is no array"),
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


def test_a_deletion_has_its_key_and_nothing_else() -> None:
    shape = table(column("id", "int8"), column("note"))
    data, _ = rows_of(Shape.of(shape)).encode([delete({"id": 7}, 2, of=shape)])
    assert data.to_pylist() == [
        {"id": 7, "note": None, "_exact": None, "_tag": delete({"id": 7}, 2).tag, "_deleted": True}
    ]


def test_a_column_that_the_table_does_not_have_is_an_error() -> None:
    shape = table(column("id", "int8"), column("note"))
    with pytest.raises(LockstepError, match="new column 'added'"):
        rows_of(Shape.of(shape)).encode([upsert({"id": 1, "note": "a", "added": 1}, 1, of=shape)])


def test_a_partition_may_have_few_types() -> None:
    good = [column("v", kind) for kind in ("bool", "int4", "date", "text", "uuid")]
    bad = [column("v", kind) for kind in ("float8", "timestamptz", "bytea")]
    bad += [numeric(5, 2), column("v", "int4", is_array=True)]
    assert [may_partition(partition_type, is_key=False) for partition_type in (*good, *bad)] == [True] * len(good) + [
        False
    ] * len(bad)
    assert not may_partition(column("v", "float8"), is_key=True)


def test_a_partition_of_an_empty_text_is_beside_it_and_a_long_one_is_rejected() -> None:
    shape = table(column("id", "int8"), column("region"))
    texts = ["", "north", None, "x" * 300, "ü" * 100]
    events = [upsert({"id": number, "region": text}, 1, of=shape) for number, text in enumerate(texts)]
    data, rejections = rows_of(Shape.of(shape), ["region"]).encode(events)
    assert data.column(EXACT_COLUMN).to_pylist() == ['{"region":""}', None, None]
    assert [rejection.event.key["id"] for rejection in rejections] == [3, 4]
    assert {rejection.reason for rejection in rejections} == {"column 'region': too long for a partition's name"}


def test_an_empty_key_is_no_partition() -> None:
    shape = table(column("k"), column("note"), key=("k",))
    data, rejections = rows_of(Shape.of(shape), ["k"]).encode([upsert({"k": "", "note": "a"}, 1, of=shape)])
    assert (data.num_rows, len(rejections)) == (0, 1)


def test_what_a_column_was_added_with_is_written_like_any_value() -> None:
    shape = table(column("id", "int8"), column("at", "date"), column("n", "int4"), name=TableName("public", "t"))
    rows = rows_of(Shape.of(shape))
    assert rows.filling({"at": "infinity", "n": 7}).to_pylist() == [
        {"at": None, "n": 7, "_exact": '{"at":"infinity"}', "_deleted": False}
    ]
    with pytest.raises(LockstepError, match=r"column 'n' of table public\.t can't get its default"):
        rows.filling({"n": 2**40})


def test_a_key_that_no_row_can_have_is_left_out_of_a_search() -> None:
    shape = replace(table(column("id", "int4"), column("note")), key=("id",))
    arrays = rows_of(Shape.of(shape)).key_arrays([{"id": 1}, {"id": 2**40}, {"id": "x"}])
    assert arrays["id"].to_pylist() == [1]
