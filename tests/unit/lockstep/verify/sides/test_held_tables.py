"""What of a sink can be compared while tables of it are held."""

from collections.abc import Mapping

import pytest

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.columns import Columns, save_columns
from jobs.generations.held_tables import HeldState, HeldTable, dump_held_tables, held_tables_name
from lockstep.verify.sides.held_tables import ProgressOfTables, UnreadTables
from lockstep.verify.waiting import Applied, SyncPoint, Waiting
from sinks.contract import CoordinationRecords, Progress
from sinks.memory import MemorySink, MemoryStore

A, B = TableName("public", "a"), TableName("public", "b")


def _records(held_tables: Mapping[TableName, HeldTable]) -> CoordinationRecords:
    records = MemorySink(MemoryStore())
    _save(records, held_tables)
    return records


def _save(records: CoordinationRecords, held_tables: Mapping[TableName, HeldTable]) -> None:
    records.save(held_tables_name(2), dump_held_tables(held_tables))


@pytest.mark.parametrize(
    ("held", "holds", "reason"),
    [
        (
            HeldTable(HeldState.PAUSED, 5),
            True,
            "paused, and the watermark waits for it; `lockstep resume cache public.a`",
        ),
        (HeldTable(HeldState.FAILED, 5, reason="no room"), True, "no room; `lockstep resume cache public.a`"),
        (HeldTable(HeldState.OUT, 5, awaited=False), False, "was taken out: its rows stay as they were"),
    ],
)
def test_a_table_that_is_not_read_is_not_compared_and_the_reason_names_the_command(
    held: HeldTable, holds: bool, reason: str
) -> None:
    unread = UnreadTables(_records({A: held}), "cache", 2)
    assert unread.tables == {A}
    assert unread.hold_watermark is holds
    assert reason in unread.reason(A)
    assert unread.reason(A).startswith("generation 2: public.a ")
    assert unread.reason(B) == ""


def test_a_table_that_is_resumed_is_compared_once_it_has_caught_up() -> None:
    unread = UnreadTables(_records({A: HeldTable(HeldState.RESUMING, 5)}), "cache", 2)
    assert (unread.reason(A), unread.hold_watermark) == ("", False)


def test_a_table_that_is_held_in_the_middle_ends_the_wait() -> None:
    records = _records({A: HeldTable(HeldState.PAUSED, 5)})
    unread, now = UnreadTables(records, "cache", 2), [0.0]

    class Paused:
        def load_progress(self) -> Progress:
            if now[0] >= 40:
                _save(records, {A: HeldTable(HeldState.PAUSED, 5), B: HeldTable(HeldState.PAUSED, 9)})
            return Progress({("p.b", 0): int(now[0])}, 0, 0, 0, {})  # others go on without end

    waiting = Waiting(lambda: False, monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    applied = Applied(
        Paused(), name="cache", generation=2, waiting=waiting, stall_s=30, say=lambda _: None, check=unread.check
    )
    with pytest.raises(LockstepError, match=r"was being compared, and public\.b is paused"):
        applied.wait(SyncPoint(lsn=Lsn(100)))


class _Published:
    def __init__(self, *records: ProgressRecord) -> None:
        self._records = list(records)

    def new_records(self) -> list[ProgressRecord]:
        records, self._records = self._records, []
        return records


class _Stored:
    """The watermark is held at 10, for the sake of another table."""

    def __init__(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self.offsets = offsets

    def load_progress(self) -> Progress:
        return Progress(self.offsets, 10, 1, 0, {}, epoch=1)


def test_what_other_tables_have_is_known_although_the_watermark_is_held() -> None:
    stored, records = _Stored({("p.b", 0): 2, ("p.a", 0): 0}), _records({})
    published = _Published(ProgressRecord(100, 7, {"p.a": (5,), "p.b": (3,)}, epoch=1))
    progress = ProgressOfTables(stored, records, 2, topics={B: "p.b"}, published=published)

    def lsn() -> int:
        loaded = progress.load_progress()
        assert loaded is not None
        return loaded.watermark_lsn

    assert lsn() == 0
    stored.offsets = {("p.b", 0): 3, ("p.a", 0): 0}
    assert lsn() == 100
    save_columns(records, 2, Columns(lacking={A: {"c": "1"}}))
    assert lsn() == 100
    save_columns(records, 2, Columns(lacking={B: {"c": "1"}}))
    assert lsn() == 0, "rows from before lack a column"


def test_nothing_is_known_of_a_generation_that_no_job_has_applied_to() -> None:
    class Empty:
        def load_progress(self) -> None:
            return None

    assert ProgressOfTables(Empty(), _records({}), 2, topics={B: "p.b"}, published=_Published()).load_progress() is None
