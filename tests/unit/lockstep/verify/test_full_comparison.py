"""The comparison finds whatever is not exactly equal, and says so without showing values.

What is equal, value by value and key by key, is ``test_canonical``'s matter.
"""

from cdc.model.event import JsonValue
from lockstep.verify.full_comparison import TableComparison, by_key, compare_table
from sinks.contract import StoredRow
from tests.builders import column, table

SHAPE = table(column("line", "int2"), column("order_id", "int8"), column("note"), key=("order_id", "line"))
Row = dict[str, JsonValue]
ROWS: list[Row] = [{"order_id": n, "line": 7, "note": f"secret {n}"} for n in range(1, 4)]


def compared(*stored: Row, expected: list[Row] = ROWS) -> TableComparison:
    rows = [StoredRow({"order_id": row["order_id"], "line": row["line"]}, row, "") for row in stored]
    return compare_table(SHAPE, by_key(SHAPE, expected), rows)


def test_the_same_rows_are_equal_in_any_order() -> None:
    comparison = compared(*reversed(ROWS))
    assert comparison.is_equal
    assert (comparison.source_rows, comparison.sink_rows, comparison.columns) == (3, 3, ())


def test_missing_extra_doubled_and_different_rows_are_named_by_their_keys() -> None:
    comparison = compared(ROWS[0], ROWS[0], {**ROWS[1], "note": None}, {"order_id": 9, "line": 7, "note": ""})
    assert not comparison.is_equal
    assert comparison.missing.examples == ('{"order_id":3,"line":7}',)
    assert comparison.extra.examples == ('{"order_id":1,"line":7}', '{"order_id":9,"line":7}')
    assert comparison.different.examples == ('{"order_id":2,"line":7}',)
    assert comparison.columns == ("note",)


def test_only_a_few_keys_are_shown_and_no_other_value() -> None:
    comparison = compared(expected=[{"order_id": n, "line": 7, "note": "secret"} for n in range(100)])
    assert comparison.missing.count == 100
    assert len(comparison.missing.examples) == 5
    assert "secret" not in str(comparison.to_json())
