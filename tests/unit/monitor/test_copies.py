"""How far copies are, out of the state and the ledger beside it."""

import io
from dataclasses import replace

from rich.console import Console

from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState, SnapshotPhase, TableCopy
from cdc.protocol.copy_ledger import CopiedRange
from cdc.stream.slot_watch import HeldWal, SlotLook
from monitor.copies import CopyReport, CopyStage, copy_report, held_wal
from monitor.copies_table import copies_table
from tests.history import EPOCH, state
from tests.wal import HANDOFF

MB = 1024 * 1024
BIG, SMALL, LATE = (TableName("public", name) for name in ("big", "small", "late"))
COPYING = replace(state(), phase=SnapshotPhase.COPYING, copied={SMALL: 5}, commit_lsn=HANDOFF, handoff=HANDOFF)


def _range(number: int, *, committed_ms: int, table: TableName = BIG, begun_lsn: int = HANDOFF) -> CopiedRange:
    return CopiedRange(
        slot="s",
        epoch=EPOCH,
        begun_lsn=begun_lsn,
        point_lsn=HANDOFF,
        table=table,
        shape="a",
        storage="1.1",
        first=number,
        end=number + 1,
        rows=100,
        size=5000,
        committed_ms=committed_ms,
        took_ms=1000,
    )


RANGES = [_range(0, committed_ms=11_000), _range(1, committed_ms=12_000)]


def _report(of: CaptureState | None = COPYING, ranges: list[CopiedRange] = RANGES) -> CopyReport:
    return copy_report([BIG, SMALL, LATE], of, ranges, {BIG: 1000, LATE: 200}, HeldWal(7 * MB, None, None, None))


def test_each_table_is_where_its_ranges_are() -> None:
    assert [(table.table, table.stage, table.rows) for table in _report().tables] == [
        (BIG, CopyStage.COPYING, 200),
        (SMALL, CopyStage.COPIED, 5),
        (LATE, CopyStage.WAITING, 0),
    ]


def test_a_table_of_unknown_size_leaves_the_time_open() -> None:
    assert copy_report([BIG, LATE], COPYING, RANGES, {BIG: 1000}, None).seconds_left is None


def test_ranges_of_another_copy_do_not_count() -> None:
    report = _report(ranges=[_range(0, committed_ms=11_000, begun_lsn=1)])
    assert [table.rows for table in report.tables] == [0, 5, 0]
    assert report.rows_per_s is None


def test_a_copy_beside_the_stream_says_how_far_it_is_and_that_it_is_paused() -> None:
    copying = {LATE: TableCopy(since=1, rows=70, paused=True), BIG: TableCopy(since=1, rows=30)}
    report = _report(replace(COPYING, phase=SnapshotPhase.DONE, copying=copying), [])
    assert [(table.stage, table.rows) for table in report.tables] == [
        (CopyStage.IN_STREAM, 30),
        (CopyStage.COPIED, 5),
        (CopyStage.PAUSED, 70),
    ]


def test_before_the_first_start_everything_waits() -> None:
    report = _report(None, [])
    assert {table.stage for table in report.tables} == {CopyStage.WAITING}
    assert report.to_json()["phase"] is None


def test_people_see_rows_rate_time_and_wal() -> None:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(copies_table(_report()))
    text = capture.get()
    assert "public.big" in text
    assert "being copied" in text
    assert "100 rows/s, 4.9 kB/s, about 10 s left" in text
    assert "keep 7.0 MB of WAL" in text


def test_a_paused_first_copy_is_paused_as_a_whole() -> None:
    report = _report(replace(COPYING, first_copy_paused=True))
    assert [(table.stage, table.rows) for table in report.tables] == [
        (CopyStage.PAUSED, 200),
        (CopyStage.COPIED, 5),
        (CopyStage.PAUSED, 0),
    ]
    assert report.seconds_left is None


def test_without_its_slot_no_copy_goes_on() -> None:
    lost = replace(_report(), is_slot_lost=True)
    assert (lost.seconds_left, lost.to_json()["slot_lost"], _report().to_json()["slot_lost"]) == (None, True, False)
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(copies_table(lost))
    assert "the slot is lost or gone" in capture.get()


def _look(wal_mb: int, *, at_s: float) -> SlotLook:
    return SlotLook(at_s, Lsn(HANDOFF + wal_mb * MB), wal_mb * MB, "reserved", (100 - wal_mb) * MB, 100 * MB)


def test_the_rate_of_the_wal_is_that_between_two_looks() -> None:
    held = held_wal(_look(40, at_s=20), _look(20, at_s=10), COPYING, now_ms=0)
    assert held == HeldWal(40 * MB, 100 * MB, 2 * MB, 0.5)
    assert str(held).endswith("keep 40.0 MB of WAL of 100.0 MB at most, 2.0 MB/s more, full in 0 minutes")


def test_one_look_at_a_first_copy_has_the_rate_since_it_began() -> None:
    began_ms = COPYING.commit_time_ms
    held = held_wal(_look(40, at_s=0), None, COPYING, now_ms=began_ms + 10_000)
    assert (held.bytes_per_s, held.minutes_until_full) == (4 * MB, 0.25)


def test_one_look_at_a_stream_has_no_rate() -> None:
    held = held_wal(_look(40, at_s=0), None, replace(COPYING, phase=SnapshotPhase.DONE), now_ms=10**12)
    assert (held.bytes_per_s, held.minutes_until_full) == (None, None)
    assert str(held) == "the slot makes the server keep 40.0 MB of WAL of 100.0 MB at most"


def test_the_wal_that_is_held_back_is_in_the_json() -> None:
    report = copy_report([BIG], COPYING, [], {}, HeldWal(1, 2, 3.0, 4.0)).to_json()
    names = ("wal_retained_bytes", "wal_limit_bytes", "wal_bytes_per_s", "minutes_until_full")
    assert [report[name] for name in names] == [1, 2, 3.0, 4.0]
