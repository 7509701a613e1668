"""How far a job has read, beside how far it has applied."""

from cdc.protocol.control_records import ProgressRecord
from jobs.generations.read_so_far import ReadSoFar
from jobs.query.read_mark import ReadMark
from jobs.query.watermark import Watermark

P0, P1 = ("t", 0), ("t", 1)


def record(lsn: int, *bounds: int) -> ProgressRecord:
    return ProgressRecord(lsn, 10 * lsn, {"t": bounds}, 0)


def test_the_mark_rises_with_what_was_read_and_not_with_what_is_known() -> None:
    mark = ReadMark({P0: 2}, Watermark(["t"], lsn=1, commit_time_ms=10), tells_lsn=True)
    mark.learn([record(5, 4, 3)], now_ms=0)
    assert mark.so_far() == ReadSoFar(2, 0, 1, 10)
    mark.reach({P0: 4})
    assert mark.so_far() == ReadSoFar(4, 0, 1, 10)
    mark.reach({P1: 3, P0: 1})
    assert mark.so_far() == ReadSoFar(7, 0, 5, 50)


def test_what_is_known_later_than_it_was_read_counts_at_once() -> None:
    mark = ReadMark({}, Watermark(["t"]), tells_lsn=True)
    mark.reach({P0: 4})
    mark.learn([record(5, 4)], now_ms=0)
    assert mark.so_far() == ReadSoFar(4, 0, 5, 50)


def test_where_a_table_is_not_read_no_lsn_is_told() -> None:
    mark = ReadMark({}, Watermark(["t"], lsn=5), tells_lsn=False)
    mark.reach({P0: 4})
    assert mark.so_far() == ReadSoFar(4)
    joining = ReadMark({}, Watermark(["t"], lsn=5, joining=["t"]), tells_lsn=True)
    assert joining.so_far() == ReadSoFar(0)
