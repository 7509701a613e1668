"""jobs.executor.computed_row; what Spark makes of expressions is in tests/live/test_computed_columns.py"""

import orjson

from jobs.executor.computed_row import ComputedRow, computed_row, condition_name
from tests.builders import column

COLUMNS = (column("gross", "numeric"), column("count", "int4"), column("share", "float8"), column("big", "bool"))


def results(**texts: str | None) -> str:
    values = {"gross": "1.5", "count": "2", "share": "0.5", "big": "true"} | texts
    return orjson.dumps({name: {"v": text} for name, text in values.items()}).decode()


def test_values_have_the_form_that_events_have() -> None:
    result = computed_row(b'{"id":1}', results(), COLUMNS)
    assert result == ComputedRow(b'{"id":1,"gross":"1.5","count":2,"share":0.5,"big":true}')
    assert computed_row(b"{}", results(share="NaN", count=None), COLUMNS).row == (
        b'{"gross":"1.5","count":null,"share":"NaN","big":true}'
    )


def test_a_row_that_does_not_meet_the_condition_is_none() -> None:
    assert computed_row(b'{"id":1}', '{"where":{"v":"true"}}', ()) == ComputedRow(b'{"id":1}')
    assert computed_row(b'{"id":1}', '{"where":{"v":"false"}}', ()) == ComputedRow(None)
    assert computed_row(b'{"id":1}', '{"where":{"v":null}}', ()) == ComputedRow(None)


def test_what_cannot_be_evaluated_is_named_unless_the_row_is_left_out_anyway() -> None:
    column_only = COLUMNS[:1]
    refused = computed_row(b"{}", '{"gross":null,"where":{"v":"true"}}', column_only)
    assert refused == ComputedRow(None, "expression: computed column 'gross' can't be evaluated for this row")
    assert computed_row(b"{}", '{"gross":null,"where":{"v":"false"}}', column_only) == ComputedRow(None)
    assert "the condition of where" in computed_row(b"{}", '{"where":null}', ()).refused


def test_a_column_may_have_the_name_of_the_condition() -> None:
    assert condition_name(["where", "where_"]) == "where__"
    result = computed_row(b"{}", '{"where":{"v":"x"},"where_":{"v":"true"}}', (column("where"),))
    assert result.row == b'{"where":"x"}'
