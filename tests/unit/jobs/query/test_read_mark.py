"""How far a job has read, beside how far it has applied."""

from jobs.generations.read_so_far import ReadSoFar
from jobs.query.read_mark import ReadMark
from jobs.query.watermark import Watermark

P0, P1 = ("t", 0), ("t", 1)


def test_where_a_table_is_not_read_no_lsn_is_told() -> None:
    mark = ReadMark({}, Watermark(["t"], lsn=5), has_lsn=False)
    mark.reach({P0: 4})
    assert mark.so_far() == ReadSoFar(4)
    joining = ReadMark({}, Watermark(["t"], lsn=5, joining=["t"]), has_lsn=True)
    assert joining.so_far() == ReadSoFar(0)
