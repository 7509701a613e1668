"""What queries find of what was applied: looks in, positions out."""

from dataclasses import replace

from monitor.visible import Visible, VisibleRows
from sinks.capabilities.refreshing import Refreshes
from sinks.contract import Progress


def applied(lsn: int, epoch: int = 0) -> Progress:
    """As many records as the LSN says."""
    return Progress({("t", 0): lsn}, lsn, 10 * lsn, 0, {}, epoch=epoch)


def refreshes(count: int, *, waits: bool, other: int = 0) -> Refreshes:
    return Refreshes({"a 0": count, "b 0": other}, ["a 0"] if waits else [])


def test_where_nothing_waits_queries_find_all_that_was_applied() -> None:
    assert VisibleRows().look(applied(5), refreshes(0, waits=False)) == Visible(True, 5, 50, 0)


def test_what_waits_is_found_at_the_latest_with_the_second_refresh_after_it() -> None:
    """The first one may have been under way when the rows were written."""
    rows = VisibleRows()
    rows.look(applied(5), refreshes(7, waits=False))
    assert rows.look(applied(8), refreshes(7, waits=True)) == Visible(False, 5, 50, 3)
    assert rows.look(applied(9), refreshes(8, waits=True)) == Visible(False, 5, 50, 4)
    assert rows.look(applied(12), refreshes(9, waits=True)) == Visible(False, 8, 80, 4)
    assert rows.look(applied(13), refreshes(11, waits=True)) == Visible(False, 12, 120, 1)
    assert rows.look(applied(13), refreshes(12, waits=False)) == Visible(True, 13, 130, 0)


def test_refreshes_of_what_has_nothing_new_are_not_waited_for() -> None:
    rows = VisibleRows()
    rows.look(applied(5), refreshes(7, waits=True, other=1))
    assert rows.look(applied(6), refreshes(9, waits=True, other=1)) == Visible(False, 5, 50, 1)


def test_what_the_store_has_moved_to_its_disk_is_not_found_before_a_refresh() -> None:
    rows = VisibleRows()
    rows.look(applied(5), refreshes(7, waits=False))
    rows.look(applied(8), refreshes(7, waits=True))
    assert rows.look(applied(8), refreshes(7, waits=False)) == Visible(False, 5, 50, 3)
    assert rows.look(applied(8), refreshes(8, waits=False)).is_all


def test_after_a_new_epoch_nothing_of_before_counts() -> None:
    rows = VisibleRows()
    rows.look(applied(5), refreshes(7, waits=False))
    assert rows.look(applied(9, epoch=1), refreshes(7, waits=True)) == Visible(False)


def test_a_shard_that_was_not_there_is_not_known_to_show_anything() -> None:
    rows = VisibleRows()
    rows.look(applied(5), Refreshes({"a 0": 3}, ["a 0"]))
    assert rows.look(applied(6), Refreshes({"c 0": 9}, ["c 0"])) == Visible(False)


def test_a_store_is_not_asked_where_nothing_was_applied_since_queries_found_all() -> None:
    rows = VisibleRows()
    assert rows.idle(applied(5)) is None, "before the first look"
    rows.look(applied(5), refreshes(7, waits=False))
    later = replace(applied(5), watermark_lsn=9, commit_time_ms=90)
    assert rows.idle(later) == Visible(True, 9, 90, 0), "commits without rows"
    assert rows.idle(applied(6)) is None
    rows.look(applied(6), refreshes(7, waits=True))
    assert rows.idle(applied(6)) is None
    assert rows.idle(applied(5, epoch=1)) is None
