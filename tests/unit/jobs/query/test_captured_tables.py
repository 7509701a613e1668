"""jobs.query.captured_tables"""

from collections.abc import Sequence

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord, selection_of
from jobs.query.captured_tables import Captured, CapturedWatch

ORDERS, ITEMS, LATE = (TableName("public", name) for name in ("orders", "items", "late"))


def record(selection: str) -> ProgressRecord:
    return ProgressRecord(1, 0, {}, selection=selection)


def test_a_sink_that_names_no_tables_gets_all_that_have_a_key() -> None:
    captured = Captured([ORDERS], [ITEMS])
    assert captured.of(()) == [ORDERS]
    assert captured.lacks(()) == []


def test_a_sink_gets_the_tables_it_names_as_far_as_they_are_captured() -> None:
    captured = Captured([ORDERS], [ITEMS])
    assert captured.of(("public.items",)) == [ITEMS], "also one without a key"
    assert captured.of(("public.late", "public.orders")) == [ORDERS]
    assert captured.lacks(("public.late", "public.orders")) == [LATE]


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


def test_the_last_table_that_leaves_is_a_change_too() -> None:
    none = Captured([], [], selection_of(()))
    assert CapturedWatch((), BEFORE, _Looks(none)).has_changed([record(none.selection)])


def test_a_table_that_a_sink_does_not_have_is_none_and_is_looked_at_once() -> None:
    watch = CapturedWatch(("public.orders",), BEFORE, _Looks(AFTER))
    assert not watch.has_changed([record("before"), record("after")])
    assert not watch.has_changed([record("after")])


def test_a_record_of_before_a_table_joined_does_not_say_that_the_sink_has_it() -> None:
    """The job has begun with the table by then: the state that it has read is newer than the record."""
    watch = CapturedWatch((), AFTER, _Looks(AFTER))
    assert not watch.has_changed([record("before")])
    assert [watch.holds(record(selection)) for selection in ("before", "after", "")] == [False, True, True]


def test_what_a_record_said_is_asked_about_until_there_is_an_answer() -> None:
    watch = CapturedWatch((), BEFORE, _Looks(Unavailable("away"), AFTER))
    with pytest.raises(Unavailable):
        watch.has_changed([record("after")])
    assert watch.has_changed([])


def test_where_kafka_does_not_answer_the_same_records_are_asked_about_again() -> None:
    watch = CapturedWatch((), BEFORE, _Looks(Unavailable("away"), AFTER))
    with pytest.raises(Unavailable):
        watch.has_changed([record("after")])
    assert watch.has_changed([record("after")])
