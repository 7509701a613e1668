"""jobs.executor.left_out_rows"""

from cdc.model.event import Position
from jobs.executor.left_out_rows import LeftOutRows
from jobs.executor.result import RejectedEvent
from tests.builders import tag

ROW = ("t", b"a")


def left(at: int) -> RejectedEvent:
    return RejectedEvent(Position("t", 0, at), b"a", None, tag(at), "too large")


def told(rows: LeftOutRows) -> tuple[list[str], set[tuple[str, bytes]]]:
    return [event.tag for event in rows.rejected], rows.resolved


def test_a_row_that_is_left_out_is_told_until_it_is_kept() -> None:
    rows = LeftOutRows()
    rows.take([left(2)], {ROW: tag(1)}, {})
    assert (told(rows), bool(rows)) == (([tag(2)], set()), True)
    rows.forget()
    assert not rows


def test_a_row_that_changes_again_and_again_while_it_is_left_out_is_told_once() -> None:
    """Else a view of it would begin again at each of these changes, and never get on."""
    rows = LeftOutRows()
    for at in range(2, 9):
        rows.take([left(at)], {}, {ROW: tag(1)})
        assert not rows


def test_a_row_that_comes_ends_it() -> None:
    rows = LeftOutRows()
    rows.take([left(1)], {}, {})
    rows.take([], {ROW: tag(2)}, {})
    assert not rows
    rows.take([], {ROW: tag(3)}, {ROW: tag(1)})
    assert told(rows) == ([], {ROW})


def test_the_same_holds_where_both_are_read_one_after_the_other() -> None:
    rows = LeftOutRows()
    rows.take([], {ROW: tag(2)}, {ROW: tag(1)})
    rows.take([left(3)], {}, {ROW: tag(1)})
    assert told(rows) == ([tag(3)], set())


def test_what_a_build_reads_again_says_nothing_new() -> None:
    rows = LeftOutRows()
    rows.take([left(2)], {ROW: tag(1)}, {ROW: tag(5)})
    assert not rows
