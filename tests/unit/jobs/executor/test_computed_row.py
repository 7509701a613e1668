"""jobs.executor.computed_row; what Spark makes of expressions is in tests/live/test_derive.py"""

import orjson

from jobs.executor.computed_row import Derived, condition_name, derived_row
from tests.builders import column

COLUMNS = (column("gross", "numeric"), column("count", "int4"), column("share", "float8"), column("big", "bool"))


def results(**texts: str | None) -> str:
    values = {"gross": "1.5", "count": "2", "share": "0.5", "big": "true"} | texts
    return orjson.dumps({name: {"v": text} for name, text in values.items()}).decode()


def test_values_have_the_form_that_events_have() -> None:
    found = derived_row(b'{"id":1}', results(), COLUMNS)
    assert found == Derived(b'{"id":1,"gross":"1.5","count":2,"share":0.5,"big":true}')
    assert derived_row(b"{}", results(share="NaN", count=None), COLUMNS).row == (
        b'{"gross":"1.5","count":null,"share":"NaN","big":true}'
    )


def test_a_row_that_does_not_meet_the_condition_is_none() -> None:
    assert derived_row(b'{"id":1}', '{"where":{"v":"true"}}', ()) == Derived(b'{"id":1}')
    assert derived_row(b'{"id":1}', '{"where":{"v":"false"}}', ()) == Derived(None)
    assert derived_row(b'{"id":1}', '{"where":{"v":null}}', ()) == Derived(None)


def test_what_cannot_be_evaluated_is_named_unless_the_row_is_left_out_anyway() -> None:
    column_only = COLUMNS[:1]
    refused = derived_row(b"{}", '{"gross":null,"where":{"v":"true"}}', column_only)
    assert refused == Derived(None, "expression: computed column 'gross' can't be evaluated for this row")
    assert derived_row(b"{}", '{"gross":null,"where":{"v":"false"}}', column_only) == Derived(None)
    assert "the condition of where" in derived_row(b"{}", '{"where":null}', ()).refused


def test_a_column_may_be_called_as_the_condition_is() -> None:
    assert condition_name(["where", "where_"]) == "where__"
    found = derived_row(b"{}", '{"where":{"v":"x"},"where_":{"v":"true"}}', (column("where"),))
    assert found.row == b'{"where":"x"}'
