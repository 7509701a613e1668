"""jobs.query.captured_tables"""

from collections.abc import Sequence

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.query.captured_tables import Captured, CapturedWatch

ORDERS, ITEMS, LATE = (TableName("public", name) for name in ("orders", "items", "late"))


def record(selection: str) -> ProgressRecord:
    return ProgressRecord(1, 0, {}, selection=selection)


class _Looks:
    """What each look finds, in order; without any more, it fails."""

    def __init__(self, *found: Captured | Unavailable) -> None:
        self.left = list(found)

    def __call__(self) -> Captured:
        answer = self.left.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer


BEFORE = Captured([ORDERS], [], "before")
AFTER = Captured([LATE, ORDERS], [], "after")


@pytest.mark.parametrize("records", [[], [record("before")], [record("after"), record("before")], [record("")]])
def test_nobody_looks_where_the_newest_record_has_the_tables_that_are_known(records: Sequence[ProgressRecord]) -> None:
    """One without a selection is of a capture that has no patterns, or of an earlier version."""
    assert not CapturedWatch((), BEFORE, _Looks()).has_changed(records)


def test_a_table_that_joins_ends_what_records_say_for_good() -> None:
    watch = CapturedWatch((), BEFORE, _Looks(AFTER))
    assert watch.has_changed([record("before"), record("after")])
    assert watch.has_changed([record("before")]), "the query that lacks it is to end"


def test_a_table_that_leaves_is_a_change_too() -> None:
    assert CapturedWatch((), AFTER, _Looks(BEFORE)).has_changed([record("before")])
    assert CapturedWatch(("public.late",), AFTER, _Looks(BEFORE)).has_changed([record("before")])


def test_a_record_of_before_a_table_joined_does_not_say_that_the_sink_has_it() -> None:
    """The job has begun with the table by then: the state that it has read is newer than the record."""
    watch = CapturedWatch((), AFTER, _Looks(AFTER))
    assert not watch.has_changed([record("before")])
    assert [watch.holds(record(selection)) for selection in ("before", "after", "")] == [False, True, True]
