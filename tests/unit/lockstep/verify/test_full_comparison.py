"""The comparison finds whatever is not exactly equal, and says so without showing values."""

from collections.abc import Iterable, Mapping

import pytest

from cdc.model.event import JsonValue
from lockstep.verify.full_comparison import by_key, compare_table
from sinks.contract import StoredRow
from sinks.memory import MemorySink, MemoryStore
from tests.builders import batch, column, delete, table, upsert

SHAPE = table(column("id", "int8"), column("note"), column("price", "float8"))
ROWS = [{"id": n, "note": f"note {n}", "price": n / 4} for n in range(1, 4)]


def in_sink(*rows: Mapping[str, JsonValue]) -> Iterable[StoredRow]:
    sink = MemorySink(MemoryStore(), 1)
    sink.prepare([SHAPE])
    fence = sink.claim()
    sink.apply(batch(*(upsert(row, at, of=SHAPE) for at, row in enumerate(rows, 1)), fence=fence))
    return sink.scan(SHAPE)


def compared(*rows: Mapping[str, JsonValue]):
    return compare_table(SHAPE, by_key(SHAPE, ROWS), in_sink(*rows))


def test_the_same_rows_are_equal_in_any_order():
    comparison = compared(*reversed(ROWS))

    assert comparison.is_equal
    assert (comparison.source_rows, comparison.sink_rows) == (3, 3)
    assert comparison.columns == ()


def test_a_missing_row_is_named_by_its_key():
    comparison = compared(*ROWS[:2])

    assert not comparison.is_equal
    assert comparison.missing.count == 1
    assert comparison.missing.examples == ('{"id":3}',)


def test_a_deleted_row_is_missing():
    sink = MemorySink(MemoryStore(), 1)
    sink.prepare([SHAPE])
    fence = sink.claim()
    sink.apply(batch(upsert(ROWS[0], 1, of=SHAPE), fence=fence))
    sink.apply(batch(delete({"id": 1}, 2, of=SHAPE), fence=fence))

    assert compare_table(SHAPE, by_key(SHAPE, ROWS[:1]), sink.scan(SHAPE)).missing.count == 1


def test_a_row_that_the_source_lacks_is_extra():
    comparison = compared(*ROWS, {"id": 9, "note": "", "price": 0.0})

    assert comparison.extra.examples == ('{"id":9}',)
    assert comparison.missing.count == 0


def test_a_key_that_comes_twice_is_extra():
    once = StoredRow({"id": 1}, ROWS[0], "")

    assert compare_table(SHAPE, by_key(SHAPE, ROWS[:1]), [once, once]).extra.count == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("note", "note 2 "),
        ("note", None),
        ("price", 0.25),
        ("price", "0.5"),
        pytest.param("price", True, id="a bool"),
    ],
)
def test_another_value_is_different(name, value):
    comparison = compared(ROWS[0], {**ROWS[1], name: value}, ROWS[2])

    assert comparison.different.examples == ('{"id":2}',)
    assert comparison.columns == (name,)
    assert (comparison.missing.count, comparison.extra.count) == (0, 0)


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [(1.0, 1), (1, True), (0, False), (-0.0, 0.0), ("1", 1), (None, ""), ([], None), ([1], [True])],
    ids=repr,
)
def test_values_that_python_or_people_take_for_equal_are_different(wanted, actual):
    shape = table(column("id", "int8"), column("value"))
    expected = by_key(shape, [{"id": 1, "value": wanted}])

    comparison = compare_table(shape, expected, [StoredRow({"id": 1}, {"id": 1, "value": actual}, "")])

    assert comparison.different.count == 1


def test_a_column_that_is_not_there_is_not_null():
    shape = table(column("id", "int8"), column("value"))

    comparison = compare_table(shape, by_key(shape, [{"id": 1, "value": None}]), [StoredRow({"id": 1}, {"id": 1}, "")])

    assert comparison.columns == ("value",)


def test_a_composite_key_is_compared_in_key_order():
    shape = table(column("line", "int2"), column("order_id", "int8"), key=("order_id", "line"))
    row = {"line": 2, "order_id": 1}

    comparison = compare_table(shape, by_key(shape, [row]), [StoredRow({"order_id": 2, "line": 1}, row, "")])

    assert comparison.missing.examples == ('{"order_id":1,"line":2}',)
    assert comparison.extra.examples == ('{"order_id":2,"line":1}',)


def test_only_a_few_keys_are_shown_and_no_other_value():
    rows = [{"id": n, "note": "secret", "price": 0.0} for n in range(100)]

    comparison = compare_table(SHAPE, by_key(SHAPE, rows), [])

    assert comparison.missing.count == 100
    assert len(comparison.missing.examples) == 5
    assert "secret" not in str(comparison.to_json())
