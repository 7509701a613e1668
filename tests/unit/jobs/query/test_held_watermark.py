"""Which watermark is stored while it isn't true of rows from before."""

import pytest

from cdc.protocol.control_records import ProgressRecord
from jobs.query.held_watermark import HeldWatermark
from jobs.query.watermark import Watermark


@pytest.mark.parametrize(
    ("lacks_columns", "waits_for_table", "lsn", "released"),
    [(False, False, 200, 200), (True, False, 100, 200), (False, True, 100, 100), (True, True, 100, 100)],
)
def test_it_stays_until_it_is_released_and_for_good_where_a_table_waits_for_table(
    lacks_columns: bool, waits_for_table: bool, lsn: int, released: int
) -> None:
    mark = Watermark(["a"], lsn=100)
    held = HeldWatermark(mark, ["a"], lacks_columns=lacks_columns, waits_for_table=waits_for_table)
    mark.add(ProgressRecord(200, 0, {"a": (3,)}), learned_at_ms=0)
    mark.advance({("a", 0): 3})
    assert held.position.lsn == lsn
    held.release()
    assert held.position.lsn == released
