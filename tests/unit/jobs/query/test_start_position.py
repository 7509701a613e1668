"""From where the log is read."""

from cdc.protocol.control_records import ProgressRecord
from jobs.query.checkpoint import checkpoint_location
from jobs.query.start_position import (
    StartPosition,
    begin_at_start_position,
    load_start_position,
    offsets_after_lsn,
    offsets_of_topics,
    skipped_by,
)
from jobs.spark.source import starting_offsets
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory

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


def test_where_nothing_is_known_of_a_partition_it_is_read_from_its_start() -> None:
    assert offsets_after_lsn(RECORDS, 150, PARTITIONS) == dict.fromkeys(PARTITIONS, 0)
    assert offsets_after_lsn(RECORDS, 99, PARTITIONS) == dict.fromkeys(PARTITIONS, 0)


def test_a_start_position_comes_back_and_each_has_its_own_checkpoint() -> None:
    opened = open_memory(MemoryStore(), 2)
    assert load_start_position(opened.records, 2) == StartPosition()
    first = begin_at_start_position(opened.records, 2, {(ORDERS, 0): 5})
    second = begin_at_start_position(opened.records, 2, None)
    assert load_start_position(opened.records, 2) == second == StartPosition(2, None, run=second.run)
    assert first.offsets == {(ORDERS, 0): 5}
    assert load_start_position(opened.records, 1) == StartPosition()
    locations = [
        checkpoint_location("c", pipeline="p", sink="s", generation=2, start=start)
        for start in (StartPosition(), first, second)
    ]
    assert locations == ["c/p/s/g2", f"c/p/s/g2-1-{first.run}", f"c/p/s/g2-2-{second.run}"]


def test_a_start_position_after_the_destination_was_put_back_has_no_checkpoint_of_one_from_before() -> None:
    """Where it had, the query would go on from there, and not from where it was told to."""
    opened = open_memory(MemoryStore(), 2)
    lost = begin_at_start_position(opened.records, 2, {(ORDERS, 0): 5})
    opened.records.save("g2.start_position", None)
    again = begin_at_start_position(opened.records, 2, {(ORDERS, 0): 0})
    assert again.directory != lost.directory


def test_going_back_leaves_nothing_out() -> None:
    assert skipped_by({(ORDERS, 0): 3}, Progress({(ORDERS, 0): 5}, 0, 0, 0, {})) == {}
    assert skipped_by(None, None) == {}


def test_going_forward_leaves_out_what_lies_between_also_when_it_goes_on_after_a_restart() -> None:
    assert skipped_by({(ORDERS, 0): 8}, Progress({(ORDERS, 0): 5}, 0, 0, 0, {})) == {(ORDERS, 0): 8}
    later = Progress({(ORDERS, 0): 5}, 0, 0, 0, {}, skipped={(ORDERS, 0): 20})
    assert skipped_by({(ORDERS, 0): 8}, later) == {(ORDERS, 0): 20}
    assert skipped_by({(ORDERS, 0): 8}, None) == {(ORDERS, 0): 8}


def test_a_gap_is_closed_by_reading_from_before_it() -> None:
    stored = Progress({(ORDERS, 0): 5}, 0, 0, 0, {}, skipped={(ORDERS, 0): 20})
    assert skipped_by({(ORDERS, 0): 4}, stored) == {}


def test_sparks_notation_names_every_partition() -> None:
    assert starting_offsets({(ORDERS, 1): 6, (ORDERS, 0): 5}) == '{"shop.public.orders": {"0": 5, "1": 6}}'


def test_where_other_tables_are_read_those_that_leave_keep_their_position() -> None:
    progress = Progress({(ORDERS, 0): 9, (ORDERS, 1): 9, (ITEMS, 0): 7}, 0, 0, 0, {})
    committed = {(ORDERS, 0): 8, (ORDERS, 1): 9, (ITEMS, 0): 7}
    orders = [(ORDERS, 0), (ORDERS, 1)]
    assert offsets_of_topics(orders, StartPosition(), committed, progress) == committed
    later = StartPosition(1, committed, topics=frozenset([ORDERS]))
    further = {(ORDERS, 0): 20, (ORDERS, 1): 21}
    assert offsets_of_topics(PARTITIONS, later, further, progress) == {**further, (ITEMS, 0): 7}


def test_a_table_that_comes_back_goes_on_no_further_than_the_destination_says() -> None:
    """It may have been put back to before the table was paused."""
    start = StartPosition(1, {(ORDERS, 0): 8, (ITEMS, 0): 7}, topics=frozenset([ORDERS]))
    progress = Progress({(ORDERS, 0): 9, (ITEMS, 0): 4}, 0, 0, 0, {})
    offsets = offsets_of_topics([(ORDERS, 0), (ITEMS, 0)], start, {(ORDERS, 0): 9}, progress)
    assert offsets == {(ORDERS, 0): 9, (ITEMS, 0): 4}
    assert offsets_of_topics([(ITEMS, 0)], StartPosition(), None, None) == {(ITEMS, 0): 0}


def test_which_topics_are_read_from_a_start_comes_back() -> None:
    records = open_memory(MemoryStore(), 2).records
    position = begin_at_start_position(records, 2, {(ITEMS, 0): 3}, topics=frozenset([ORDERS]))
    assert load_start_position(records, 2) == position
    assert position.topics == frozenset([ORDERS])
