"""The copy of ranges by capture itself: tags, ledger, stops and restarts, between memory and memory."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.copy_ledger import CopiedRange, is_range_key
from cdc.protocol.pgoutput import Fields
from cdc.row_rate import RowRate
from snapshot.copy import CopyProgress
from snapshot.ledger import CopyLedger, CopyRun, FirstSnapshot
from snapshot.one_by_one import OneByOne
from snapshot.ranges import Part, Relation, parts
from snapshot.row_events import Line
from tests.builders import ORDERS, column, table
from tests.copy_lines import copy_line
from tests.edges import Journal, MemoryPublisher, Time
from tests.history import EPOCH, published, state
from tests.wal import HANDOFF

ITEMS = table(column("id", "int8"), name=TableName("public", "items"))
LOG = table(column("id", "int8"), name=TableName("public", "log"), key=())
ROWS: Mapping[TableName, Sequence[Fields]] = {
    ORDERS: [(b"1", b"x"), (b"2", None), (b"3", b"y")],
    ITEMS.name: [(b"7",)],
    LOG.name: [(b"1",), (b"2",), (b"3",)],
}


class MemoryReader:
    """Rows in a dict; each is in a block of its own."""

    def __init__(self, rows: Mapping[TableName, Sequence[Fields]] = ROWS) -> None:
        self._rows = rows
        self.read: list[TableName] = []
        self.conditions: list[str] = []
        self.time = Time()
        self.silence_s = 0

    def part(
        self, shape: Table, part: Part, *, where: str = "", while_waiting: Callable[[], None] = lambda: None
    ) -> Iterable[list[Line]]:
        """After each row it takes ``silence_s`` seconds for more to come, which are told one by one."""
        self.read.append(shape.name)
        self.conditions.append(where)
        for row in self._rows[shape.name][part.first : part.end]:
            yield [copy_line(row)]
            for _ in range(self.silence_s):
                self.time.pass_by(1)
                while_waiting()


class Copy:
    """One start of the copy. A range has as many blocks as ``range_blocks``."""

    def __init__(
        self,
        *,
        begin: CaptureState | None = None,
        rows: Mapping[TableName, Sequence[Fields]] = ROWS,
        fail_at: int | None = None,
        batch_rows: int = 1000,
        batch_bytes: int = 16 * 1024 * 1024,
        consistent_point: int = HANDOFF,
        stop_after_commits: int | None = None,
        shapes: Sequence[Table] = (table(), ITEMS),
        recorded: Sequence[CopiedRange] = (),
        range_blocks: int = 1000,
        first: FirstSnapshot | None = None,
        newer: Sequence[TableName] = (),
        rows_per_s: float = 0,
    ) -> None:
        self.reader = MemoryReader(rows)
        self.publisher = MemoryPublisher(Journal(), fail_at=fail_at)
        self.reports: list[CopyProgress] = []
        self._begin = begin or replace(state(), phase=SnapshotPhase.COPYING, copied={})
        self._size = BatchSize(batch_rows, batch_bytes)
        self._consistent_point = consistent_point
        self.stopping: Callable[[], bool] = lambda: len(self.publisher.batches) == stop_after_commits

        self.held: list[Part] = []
        self._shapes = [shape for shape in shapes if shape.name not in self._begin.copied]
        relations = [Relation(shape.name, shape.name.sql, "1", len(rows[shape.name]), 1000) for shape in self._shapes]
        run = CopyRun("slot", EPOCH, HANDOFF, consistent_point, {shape.name: "shape" for shape in self._shapes})
        self.ledger = CopyLedger(run, recorded)
        missing = [
            part
            for relation in relations
            for part in parts(
                [relation],
                1000 * range_blocks // max(relation.blocks or 0, 1),
                self.ledger.intervals(),
                newer=newer,
            )
        ]
        self.ledger.begin(relations, missing)
        self._parts = missing
        self._first = first
        self._rows_per_s = rows_per_s

    def run(self) -> CaptureState:
        return OneByOne(
            ledger=self.ledger,
            first=self._first,
            reader=self.reader,
            hold=self.held.append,
            publisher=self.publisher,
            tables=published(*self._shapes),
            estimated={shape.name: 2 for shape in self._shapes},
            state=self._begin,
            size=self._size,
            rate=RowRate(self._rows_per_s, lambda: self.reader.time.now_s),
            stopping=self.stopping,
            report=self.reports.append,
        ).copy(self._parts)

    def recorded(self) -> list[CopiedRange]:
        """The ledger beside the state."""
        return [CopiedRange.from_bytes(value, "it") for value in self.publisher.beside_state.values() if value]

    def rows(self) -> list[tuple[str, object]]:
        return [(topic, json.loads(value or b"")["after"]) for topic, _, value, _ in self.publisher.events]


def test_every_row_of_every_table_is_published_as_an_event_of_a_snapshot_at_the_consistent_point() -> None:
    copy = Copy(consistent_point=0x200_0000)
    done = copy.run()
    assert copy.rows() == [
        ("shop.public.orders", {"id": 1, "note": "x"}),
        ("shop.public.orders", {"id": 2, "note": None}),
        ("shop.public.orders", {"id": 3, "note": "y"}),
        ("shop.public.items", {"id": 7}),
    ]
    assert copy.publisher.events[0][1] == b'{"id":1}'
    for event in (json.loads(value or b"") for _, _, value, _ in copy.publisher.events):
        assert (event["op"], event["source"]["snapshot"], event["before"]) == ("r", "true", None)
        assert event["tag"] == str(Tag(EPOCH, 0x200_0000, 0))
    assert done.copied == {ORDERS: 3, ITEMS.name: 1}
    assert (done.handoff, done.commit_lsn, done.seq, done.end_lsn) == (HANDOFF, HANDOFF, 0, HANDOFF)


@pytest.mark.parametrize("fail_at", range(3))
def test_a_copy_that_failed_goes_on_with_the_tables_that_are_missing(fail_at: int) -> None:
    first = Copy(fail_at=fail_at, batch_rows=2)
    with pytest.raises(Unavailable):
        first.run()
    begin = first.publisher.states[-1] if first.publisher.states else None
    second = Copy(begin=begin, batch_rows=2)
    second.run()
    keys = {(topic, key) for copy in (first, second) for topic, key, _, _ in copy.publisher.events}
    assert keys == {
        ("shop.public.orders", b'{"id":1}'),
        ("shop.public.orders", b'{"id":2}'),
        ("shop.public.orders", b'{"id":3}'),
        ("shop.public.items", b'{"id":7}'),
    }


def test_a_transaction_of_wide_rows_is_bounded_in_bytes() -> None:
    wide = b"x" * 600
    copy = Copy(rows={ORDERS: [(b"%d" % number, wide) for number in range(5)], ITEMS.name: []}, batch_bytes=1024)
    copy.run()
    assert [len(batch) for batch in copy.publisher.batches] == [2, 2, 1, 0]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Copy:
    """A copy of rows after each of which nothing comes for 25 s."""
    copy = Copy()
    copy.reader.silence_s = 25
    monkeypatch.setattr("time.monotonic", lambda: copy.reader.time.now_s)
    return copy


def test_a_row_is_committed_though_no_other_comes(silent: Copy) -> None:
    """Brokers end a transaction that is open for a minute."""
    silent.run()
    assert [len(batch) for batch in silent.publisher.batches] == [1, 1, 1, 0, 1, 0]


def test_a_stop_needs_no_further_row(silent: Copy) -> None:
    asked = iter([False] * 5)
    silent.stopping = lambda: next(asked, True)
    assert silent.run().copied == {}
    assert silent.reader.time.now_s < Time().now_s + 10


def test_progress_ends_with_all_rows() -> None:
    copy = Copy()
    copy.run()
    assert [(report.table, report.rows, report.finished) for report in copy.reports] == [
        (ORDERS, 3, True),
        (ITEMS.name, 1, True),
    ]
    assert [(report.new.rows, report.new.records) for report in copy.reports] == [(3, 3), (1, 1)]


def test_a_table_with_fewer_rows_than_estimated_is_still_finished() -> None:
    copy = Copy()
    copy.run()
    assert [report.rows_estimated for report in copy.reports] == [3, 1]


def test_a_row_that_is_not_utf8_stops_the_copy_without_showing_it() -> None:
    copy = Copy(rows={ORDERS: [(b"1", b"secret\xff")], ITEMS.name: []})
    with pytest.raises(LockstepError, match=r"a row of public.orders can't be encoded") as caught:
        copy.run()
    assert "secret" not in str(caught.value)


def test_what_was_copied_before_an_interruption_is_not_read_again() -> None:
    first = Copy(range_blocks=1, stop_after_commits=2)
    begin = first.run()
    assert begin.copied == {}
    second = Copy(range_blocks=1, begin=begin, recorded=first.recorded(), consistent_point=HANDOFF + 8)
    assert second.run().copied == {ORDERS: 3, ITEMS.name: 1}
    assert [row["id"] for _, row in first.rows()] == [1, 2]  # type: ignore[index]
    assert [row["id"] for _, row in second.rows()] == [3, 7]  # type: ignore[index]


def test_a_range_is_recorded_with_its_last_rows() -> None:
    copy = Copy(range_blocks=2, batch_rows=1)
    copy.run()
    ((batch, (key, _)),) = [
        (number, record) for number, records in enumerate(copy.publisher.beside) for record in records.items()
    ]
    assert (batch, is_range_key(key)) == (1, True)
    assert [(copied.first, copied.end, copied.rows) for copied in copy.recorded()] == [(None, 1, 1)]


def test_the_rows_of_a_range_without_a_key_are_committed_together() -> None:
    copy = Copy(shapes=[LOG], batch_rows=1, range_blocks=2)
    copy.run()
    assert [len(batch) for batch in copy.publisher.batches] == [1, 2]


@pytest.mark.parametrize("fail_at", range(3))
def test_no_row_without_a_key_comes_twice(fail_at: int) -> None:
    first = Copy(shapes=[LOG], range_blocks=1, batch_rows=1, fail_at=fail_at)
    with pytest.raises(Unavailable):
        first.run()
    second = Copy(shapes=[LOG], range_blocks=1, recorded=first.recorded())
    second.run()
    assert [row["id"] for _, row in first.rows() + second.rows()] == [1, 2, 3]  # type: ignore[index]


FIRST = FirstSnapshot("700:705:702", 710)


def test_later_rows_are_left_out_only_without_a_key() -> None:
    copy = Copy(shapes=[ITEMS, LOG], first=FIRST)
    copy.run()
    assert copy.reader.conditions == ["", FIRST.shows()]


def test_copied_ranges_are_read_again_for_newer_rows_and_not_recorded_again() -> None:
    first = Copy(shapes=[table()], range_blocks=2, stop_after_commits=1)
    first.run()
    (recorded,) = first.recorded()
    second = Copy(shapes=[table()], range_blocks=2, recorded=[recorded], first=FIRST, newer=[ORDERS])
    done = second.run()
    assert sorted(second.reader.conditions) == ["", f"not {FIRST.shows()}"]
    assert done.copied.keys() == {ORDERS}
    assert recorded.key() not in second.publisher.beside_state


def test_what_a_part_is_of_is_held_before_its_rows_are_read() -> None:
    copy = Copy()
    copy.run()
    assert [part.table for part in copy.held] == copy.reader.read == [ORDERS, ITEMS.name]


def test_rows_wait_for_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Copy(rows_per_s=2)
    monkeypatch.setattr("time.monotonic", lambda: copy.reader.time.now_s)
    monkeypatch.setattr("time.sleep", copy.reader.time.pass_by)
    copy.run()
    assert copy.reader.time.now_s == Time().now_s + 2  # 4 rows
