"""Which progress records are cuts, and what is below them."""

from collections.abc import Sequence

import pyarrow as pa

from cdc.model.table import TableName
from cdc.model.tag import Tag
from cdc.protocol.control_records import ProgressRecord
from jobs.executor.view_log import ViewLog
from tests.builders import column, table
from tests.events import EPOCH, value_bytes

A, B = (table(column("id", "int8"), name=TableName("public", name)) for name in ("a", "b"))
HERE = {"a": A, "b": B}


def events(topic: str, start: int, *at: tuple[int, int, int]) -> pa.RecordBatch:
    """Records of one partition from this offset on: key, LSN and number in the transaction of each."""
    rows = [
        {
            "key": b'{"id":%d}' % key,
            "value": value_bytes(HERE[topic], "u", {"id": key}, lsn=lsn, seq=seq),
            "topic": topic,
            "partition": 0,
            "offset": start + number,
            "tombstone_tag": None,
            "timestamp_ms": 0,
        }
        for number, (key, lsn, seq) in enumerate(at)
    ]
    schema = pa.schema(
        {
            "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(),
            "offset": pa.int64(), "tombstone_tag": pa.binary(), "timestamp_ms": pa.int64(),
        }
    )  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def record(lsn: int, *, uncopied: Sequence[str] = (), **bounds: int) -> ProgressRecord:
    return ProgressRecord(lsn, 0, {topic: (end,) for topic, end in bounds.items()}, EPOCH, tuple(uncopied))


def at_the_end(a: int = 0, b: int = 0) -> ViewLog:
    """A log that is read up to its end, which is here."""
    log = ViewLog(["a", "b"], {("a", 0): a, ("b", 0): b})
    log.catch_up({("a", 0): a, ("b", 0): b}, 0.0)
    assert log.is_at_target
    assert log.has_caught_up(0.0)
    return log


def keys(records: pa.Table | None) -> list[tuple[str, bytes]]:
    if records is None:
        return []
    return sorted(zip(records.column("topic").to_pylist(), records.column("key").to_pylist(), strict=True))


def test_a_record_is_a_cut_once_all_partitions_are_read_up_to_its_bounds() -> None:
    log = at_the_end()
    log.add_record(record(16, a=1, b=1))
    log.add(events("a", 0, (1, 8, 1)))
    log.reach({("a", 0): 1})
    assert log.cut() is None
    log.add(events("b", 0, (2, 8, 2)))
    log.reach({("b", 0): 1})
    cut = log.cut()
    assert cut is not None
    taken = log.take(cut)
    assert keys(taken.records) == [("a", b'{"id":1}'), ("b", b'{"id":2}')]
    assert taken.next_offsets == {("a", 0): 1, ("b", 0): 1}
    assert not log.waits


def test_of_a_transaction_that_is_not_complete_nothing_is_taken_and_it_is_read_again() -> None:
    log = at_the_end()
    log.add_record(record(16, a=3, b=1))
    log.add(events("a", 0, (1, 8, 1), (2, 16, 1), (3, 16, 2)))
    log.add(events("b", 0, (4, 16, 3)))
    log.reach({("a", 0): 3, ("b", 0): 1})
    cut = log.cut()
    assert cut is not None
    taken = log.take(cut)
    assert keys(taken.records) == [("a", b'{"id":1}')]
    assert taken.next_offsets == {("a", 0): 1, ("b", 0): 0}
    log.add_record(record(24, a=3))
    later = log.cut()
    assert later is not None
    assert keys(log.take(later).records) == [("a", b'{"id":2}'), ("a", b'{"id":3}'), ("b", b'{"id":4}')]


def test_rows_of_a_copy_that_stand_at_the_cut_are_complete() -> None:
    log = at_the_end()
    log.add_record(record(16, a=2))
    log.add(events("a", 0, (1, 16, 0), (2, 16, 1)))
    log.reach({("a", 0): 2})
    cut = log.cut()
    assert cut is not None
    assert keys(log.take(cut).records) == [("a", b'{"id":1}')]


def test_a_record_that_does_not_hold_for_a_table_is_no_cut() -> None:
    log = at_the_end()
    log.add_record(record(16, uncopied=["b"]))
    assert log.cut() is None
    log.add_record(record(16, uncopied=["another"]))
    assert log.cut() is not None


def test_a_record_that_is_older_than_the_rows_of_a_copy_below_its_bounds_is_no_cut() -> None:
    """A first copy that was interrupted goes on at a later point, and its end is told as of the first one."""
    log = at_the_end()
    log.add(events("a", 0, (1, 16, 0), (2, 16, 0)))
    log.add(events("a", 2, (3, 64, 0)))
    log.add(events("b", 0, (4, 64, 0)))
    log.reach({("a", 0): 3, ("b", 0): 1})
    log.add_record(record(16, a=3, b=1))
    assert log.cut() is None
    log.add_record(record(56))
    assert log.cut() is None
    log.add_record(record(64))
    cut = log.cut()
    assert cut is not None
    assert keys(log.take(cut).records) == [
        ("a", b'{"id":1}'),
        ("a", b'{"id":2}'),
        ("a", b'{"id":3}'),
        ("b", b'{"id":4}'),
    ]
    assert not log.waits


def test_the_record_that_tells_the_end_of_a_later_copy_is_no_cut_without_its_rows() -> None:
    """A copy that stops the stream is newer than all that was published before it. So is the record's LSN older."""
    log = at_the_end()
    log.add_record(record(32, uncopied=["b"]))
    assert log.cut() is None
    log.add(events("b", 0, (1, 48, 0), (2, 48, 0)))
    log.reach({("b", 0): 2})
    log.add_record(record(32, b=2))
    assert log.cut() is None
    log.add(events("a", 0, (3, 56, 1)))
    log.reach({("a", 0): 1})
    log.add_record(record(64, a=1))
    cut = log.cut()
    assert cut is not None
    assert keys(log.take(cut).records) == [("a", b'{"id":3}'), ("b", b'{"id":1}'), ("b", b'{"id":2}')]


def test_rows_of_a_copy_beyond_a_record_hold_up_no_cut() -> None:
    """Where one copied row after the other comes, as of repairs, a reader is always ahead of the records."""
    log = at_the_end()
    log.add(events("a", 0, (1, 8, 1), (2, 48, 0), (3, 80, 0)))
    log.reach({("a", 0): 3})
    log.add_record(record(16, a=1))
    first = log.cut()
    assert first is not None
    taken = log.take(first)
    assert keys(taken.records) == [("a", b'{"id":1}')]
    assert taken.next_offsets == {("a", 0): 1, ("b", 0): 0}
    log.add_record(record(32, a=2))
    assert log.cut() is None, "the first of them is below it"
    log.add_record(record(64, a=2))
    second = log.cut()
    assert second is not None
    assert keys(log.take(second).records) == [("a", b'{"id":2}')]


def test_of_several_records_one_before_the_rows_of_a_copy_is_still_a_cut() -> None:
    log = at_the_end()
    log.add(events("a", 0, (1, 8, 1), (2, 48, 0)))
    log.reach({("a", 0): 2})
    log.add_record(record(16, a=1))
    log.add_record(record(32, a=2))
    cut = log.cut()
    assert cut is not None
    assert cut.lsn == 16
    assert keys(log.take(cut).records) == [("a", b'{"id":1}')]


def test_who_was_behind_takes_a_cut_that_is_newer_than_all_that_was_read() -> None:
    log = ViewLog(["a", "b"], {})
    log.catch_up({("a", 0): 2, ("b", 0): 0}, 0.0)
    log.add_record(record(16, a=2))
    # The row that key 1 had at 16 may have been compacted away, since it has another one at 24.
    log.add(events("a", 0, (1, 24, 1)))
    assert not log.is_at_target
    log.reach({("a", 0): 2})
    assert log.is_at_target
    assert log.cut() is None
    assert log.has_caught_up(1.0)
    assert log.cut() is None
    log.add_record(record(32, a=2))
    assert log.cut() is not None


def test_a_long_pass_over_the_log_is_followed_by_another_one() -> None:
    log = ViewLog(["a", "b"], {})
    log.catch_up({("a", 0): 0, ("b", 0): 0}, 0.0)
    assert not log.has_caught_up(60.0)
    assert log.is_behind
    log.catch_up({("a", 0): 0, ("b", 0): 0}, 60.0)
    assert log.has_caught_up(60.1)


def test_who_reaches_what_was_published_late_is_behind_though_it_reads_all_the_time() -> None:
    """Kafka may have compacted what it reads: a cut that isn't newer than that would show half a transaction."""
    log = at_the_end()
    for number in range(1, 5):
        log.add_record(record(16 * number, a=number))
        assert not log.is_late(10.0 * number)
    log.reach({("a", 0): 1})
    assert log.cut() is not None
    assert not log.is_late(55.0)  # the next one waits since then
    assert not log.is_late(80.0)
    assert log.is_late(90.0)
    log.catch_up({("a", 0): 4}, 90.0)
    log.add(events("a", 1, (1, 24, 1), (2, 40, 1), (3, 56, 1)))
    log.reach({("a", 0): 4})
    assert log.has_caught_up(91.0)
    cut = log.cut()
    assert cut is not None
    assert cut.lsn == 64
    assert not log.is_late(200.0)


def test_cuts_that_wait_for_long_are_thinned_out_and_the_newest_stays() -> None:
    log = at_the_end()
    for number in range(1, 25_002):
        log.add_record(record(16 * number, a=number))
    log.reach({("a", 0): 25_001})
    before = log.came
    cut = log.cut()
    assert log.came - before <= 10_000
    assert cut is not None
    assert cut.lsn == 16 * 25_001


def test_no_cut_is_taken_that_is_older_than_what_somebody_has_applied_before() -> None:
    """Of the newest transaction that is there, another part may be missing."""
    floor = str(Tag(EPOCH, 8, 1))
    log = ViewLog(["a", "b"], {("a", 0): 1, ("b", 0): 0}, floor=floor)
    log.catch_up({("a", 0): 1, ("b", 0): 0}, 0.0)
    assert log.has_caught_up(0.0)
    log.add_record(record(16, a=1))
    assert log.cut() is not None, "all of 8 is below it"
    log = ViewLog(["a", "b"], {("a", 0): 1, ("b", 0): 0}, floor=str(Tag(EPOCH, 16, 1)))
    log.catch_up({("a", 0): 1, ("b", 0): 0}, 0.0)
    assert log.has_caught_up(0.0)
    log.add_record(record(16, a=1))
    assert log.cut() is None
    log.add(events("b", 0, (2, 16, 2)))
    log.reach({("b", 0): 1})
    log.add_record(record(24, b=1))
    assert log.cut() is not None
