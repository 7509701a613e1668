"""From where the log is read."""

from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from jobs.query.start_position import moved_to, offsets_after_lsn
from sinks.contract import Progress

ORDERS, ITEMS = "shop.public.orders", "shop.public.items"
PARTITIONS = [(ORDERS, 0), (ORDERS, 1), (ITEMS, 0)]
RECORDS = [
    ProgressRecord(100, 0, {ORDERS: (5, 6)}),
    ProgressRecord(200, 0, {ITEMS: (3,)}),
    ProgressRecord(300, 0, {ORDERS: (9, 9)}),
]


def test_what_was_committed_after_an_lsn_lies_after_the_newest_bounds_that_hold_nothing_of_it() -> None:
    """Those of the newest LSN before it may hold a part of the next transaction."""
    assert offsets_after_lsn(RECORDS, 250, PARTITIONS) == {(ORDERS, 0): 5, (ORDERS, 1): 6, (ITEMS, 0): 0}
    assert offsets_after_lsn(RECORDS, 300, PARTITIONS) == {(ORDERS, 0): 5, (ORDERS, 1): 6, (ITEMS, 0): 3}
    assert offsets_after_lsn(RECORDS, 999, PARTITIONS) == offsets_after_lsn(RECORDS, 300, PARTITIONS)


def test_a_transaction_that_was_published_in_parts_is_read_whole() -> None:
    """It is committed at 200. With each of its parts, progress is said up to the transaction before it."""
    ends = [5, 20_005, 40_005]
    records = [ProgressRecord(90, 0, {ITEMS: (4,)}), *(ProgressRecord(100, 0, {ITEMS: (end,)}) for end in ends)]
    records += [ProgressRecord(200, 0, {ITEMS: (40_007,)}), ProgressRecord(300, 0, {ITEMS: (40_009,)})]
    partitions = [(ITEMS, 0)]
    starts = {lsn: offsets_after_lsn(records, lsn, partitions)[ITEMS, 0] for lsn in (90, 100, 199, 200, 299, 300)}
    assert starts == {90: 0, 100: 4, 199: 4, 200: 40_005, 299: 40_005, 300: 40_007}


def test_all_that_was_published_before_a_recovery_was_before_an_lsn_of_after_it() -> None:
    records = [ProgressRecord(5000, 0, {ORDERS: (7, 8)}), ProgressRecord(100, 0, {ORDERS: (9, 9)}, epoch=1)]
    for lsn in (50, 100):
        start = offsets_after_lsn(records, lsn, PARTITIONS, epoch=1)
        assert start == {(ORDERS, 0): 7, (ORDERS, 1): 8, (ITEMS, 0): 0}


O0, O1 = (ORDERS, 0), (ORDERS, 1)


def _at(offset: int, **fields: Offsets) -> Progress:
    return Progress({O0: offset}, 0, 0, 0, {}, **fields)


def test_going_back_leaves_nothing_out() -> None:
    moved = moved_to(_at(5), {O0: 3})
    assert (moved.skipped, moved.reads_again, moved.next_offsets, moved.positions) == ({}, {O0: 3}, {O0: 5}, {O0: 3})
    assert moved_to(_at(5), {O0: 5}) == _at(5)


def test_going_forward_leaves_out_what_lies_between() -> None:
    moved = moved_to(_at(5), {O0: 8})
    assert (moved.skipped, moved.reads_again, moved.positions) == ({O0: 8}, {}, {O0: 8})
    assert moved_to(Progress({}, 0, 0, 0, {}), {O0: 8}).skipped == {O0: 8}


def test_what_was_applied_behind_a_gap_is_read_again_from_within_it() -> None:
    moved = moved_to(_at(5, skipped={O0: 20}), {O0: 8})
    assert (moved.skipped, moved.reads_again) == ({O0: 20}, {O0: 8})


def test_a_gap_is_closed_by_reading_from_before_it() -> None:
    moved = moved_to(_at(5, skipped={O0: 20}), {O0: 4})
    assert (moved.skipped, moved.positions) == ({}, {O0: 4})


def test_partitions_of_which_nothing_was_ordered_stay_where_they_are() -> None:
    stored = _at(5, skipped={O1: 20}, reads_again={O1: 3})
    moved = moved_to(stored, {O0: 4})
    assert (moved.skipped, moved.reads_again) == ({O1: 20}, {O1: 3, O0: 4})
