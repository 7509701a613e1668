"""extensions.demo.result"""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from extensions.demo.result import comparison_of
from lockstep.verify.report import Difference, Kind, TableReport

VIEW = TableName("views", "timeline")


def test_a_view_s_comparison_has_the_form_of_a_table_s():
    differences = (
        Difference(Kind.MISSING, b'{"id":1}'),
        Difference(Kind.DIFFERENT, b'{"id":2}', ("name", "body")),
        Difference(Kind.DIFFERENT, b'{"id":3}', ("body",)),
    )
    compared = comparison_of(TableReport(VIEW, expected_rows=9, sink_rows=8, differences=differences))

    assert not compared.is_equal
    assert (compared.source_rows, compared.sink_rows) == (9, 8)
    assert (compared.missing.count, compared.extra.count, compared.different.count) == (1, 0, 2)
    assert compared.different.examples == ('{"id":2}', '{"id":3}')
    assert compared.columns == ("body", "name")
    assert comparison_of(TableReport(VIEW, expected_rows=9, sink_rows=9)).is_equal


@pytest.mark.parametrize(
    "report",
    [
        TableReport(VIEW, not_compared="its query can't be"),
        TableReport(VIEW, expected_rows=1, sink_rows=1, undecided=(b'{"id":1}',)),
        TableReport(VIEW, expected_rows=1, sink_rows=1, is_complete=False),
    ],
    ids=["not compared", "undecided", "incomplete"],
)
def test_what_nobody_can_tell_is_not_said_to_be_equal(report):
    with pytest.raises(LockstepError, match=r"views\.timeline wasn't compared as a whole"):
        comparison_of(report)
