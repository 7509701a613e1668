"""The copy of tables: tags, ledger, stops and restarts, between a reader and a publisher in memory."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from cdc.capture.published_table import PublishedTable
from cdc.capture.settings import CaptureSettings
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.pgoutput import Fields
from snapshot.copy import CopyProgress, Interrupted, Republished, copy_tables, republish_keys
from snapshot.keys import KeyTexts
from snapshot.row_events import Line
from snapshot.table_reader import FoundKey
from tests.builders import ORDERS, column, table
from tests.copy_lines import copy_line
from tests.edges import Journal, MemoryPublisher, Time
from tests.history import EPOCH, published, state
from tests.wal import HANDOFF

ITEMS = table(column("id", "int8"), name=TableName("public", "items"))
SHAPES = (table(), ITEMS)
ROWS: Mapping[TableName, Sequence[Fields]] = {
    ORDERS: [(b"1", b"x"), (b"2", None), (b"3", b"y")],
    ITEMS.name: [(b"7",)],
}


class MemoryReader:
    """Rows in a dict."""

    def __init__(self, rows: Mapping[TableName, Sequence[Fields]] = ROWS) -> None:
        self._rows = rows
        self.read: list[TableName] = []
        self.time = Time()
        self.silence_s = 0

    def estimated_rows(self, shape: Table) -> int:
        return 2

    def lines(
        self, shape: Table, leaves: Sequence[int] = (), *, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterable[list[Line]]:
        """After each row it takes ``silence_s`` seconds for more to come, which are told one by one."""
        self.read.append(shape.name)
        for row in self._rows[shape.name]:
            yield [copy_line(row)]
            for _ in range(self.silence_s):
                self.time.pass_by(1)
                while_waiting()

    def find(
        self, shape: Table, keys: Sequence[KeyTexts], *, while_waiting: Callable[[], None] = lambda: None
    ) -> Sequence[FoundKey]:
        there = {row[0] for row in self._rows[shape.name]}
        rest = (None,) * (len(shape.columns) - 1)
        return [FoundKey((key.encode(), *rest), key.encode() in there) for (key,) in keys]

    def rows_of(
        self, shape: Table, keys: Sequence[KeyTexts], *, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterable[Fields]:
        return [row for row in self._rows[shape.name] if (row[0].decode(),) in keys]  # type: ignore[union-attr]


class Copy:
    """One run of the copy."""

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
    ) -> None:
        self.reader = MemoryReader(rows)
        self.publisher = MemoryPublisher(Journal(), fail_at=fail_at)
        self.reports: list[CopyProgress] = []
        self._begin = begin or replace(state(), phase=SnapshotPhase.COPYING, copied={})
        self._settings = CaptureSettings(batch_rows=batch_rows, batch_bytes=batch_bytes)
        self._consistent_point = consistent_point
        self.stopping: Callable[[], bool] = lambda: len(self.publisher.batches) == stop_after_commits

    def run(self) -> CaptureState:
        return copy_tables(
            reader=self.reader,
            publisher=self.publisher,
            tables=published(*SHAPES),
            state=self._begin,
            consistent_point=self._consistent_point,
            settings=self._settings,
            stopping=self.stopping,
            report=self.reports.append,
        )

    def rows(self) -> list[tuple[str, object]]:
        return [(topic, json.loads(value or b"")["after"]) for topic, _, value, _ in self.publisher.events]


def test_every_row_of_every_table_is_published() -> None:
    copy = Copy()
    copy.run()
    assert copy.rows() == [
        ("shop.public.orders", {"id": 1, "note": "x"}),
        ("shop.public.orders", {"id": 2, "note": None}),
        ("shop.public.orders", {"id": 3, "note": "y"}),
        ("shop.public.items", {"id": 7}),
    ]


def test_rows_are_keyed_as_in_the_stream() -> None:
    copy = Copy()
    copy.run()
    assert copy.publisher.events[0][1] == b'{"id":1}'


def test_rows_are_read_events_of_a_snapshot() -> None:
    copy = Copy()
    copy.run()
    event = json.loads(copy.publisher.events[0][2] or b"")
    assert (event["op"], event["source"]["snapshot"], event["before"]) == ("r", "true", None)


def test_rows_are_tagged_with_the_consistent_point_and_seq_0() -> None:
    copy = Copy(consistent_point=0x200_0000)
    copy.run()
    tags = {json.loads(value or b"")["tag"] for _, _, value, _ in copy.publisher.events}
    assert tags == {str(Tag(EPOCH, 0x200_0000, 0))}


def test_the_last_state_says_that_the_snapshot_is_done() -> None:
    copy = Copy()
    done = copy.run()
    assert (done.phase, done) == (SnapshotPhase.DONE, copy.publisher.states[-1])


def test_the_ledger_counts_the_rows_of_every_table() -> None:
    assert Copy().run().copied == {ORDERS: 3, ITEMS.name: 1}


def test_the_position_stays_at_the_handoff() -> None:
    done = Copy(consistent_point=0x200_0000).run()
    assert (done.handoff, done.commit_lsn, done.seq, done.end_lsn) == (HANDOFF, HANDOFF, 0, HANDOFF)


def test_a_table_is_in_the_ledger_only_with_its_last_row() -> None:
    copy = Copy(batch_rows=2)
    copy.run()
    assert [set(state.copied) for state in copy.publisher.states] == [
        set(),
        {ORDERS},
        {ORDERS, ITEMS.name},
        {ORDERS, ITEMS.name},
    ]


def test_a_table_of_the_ledger_is_not_read_again() -> None:
    copy = Copy(begin=replace(state(), phase=SnapshotPhase.COPYING, copied={ORDERS: 3}))
    copy.run()
    assert copy.reader.read == [ITEMS.name]


@pytest.mark.parametrize("fail_at", range(4))
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


@pytest.mark.parametrize("commits", range(1, 4))
def test_stop_ends_after_a_commit_and_says_that_more_is_to_come(commits: int) -> None:
    copy = Copy(batch_rows=2, stop_after_commits=commits)
    assert (copy.run().phase, len(copy.publisher.batches)) == (SnapshotPhase.COPYING, commits)


def test_a_transaction_of_wide_rows_is_bounded_in_bytes() -> None:
    wide = b"x" * 600
    copy = Copy(rows={ORDERS: [(b"%d" % number, wide) for number in range(5)], ITEMS.name: []}, batch_bytes=1024)
    copy.run()
    assert [len(batch) for batch in copy.publisher.batches] == [2, 2, 1, 0, 0]


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
    assert [len(batch) for batch in silent.publisher.batches] == [1, 1, 1, 0, 1, 0, 0]


def test_a_stop_needs_no_further_row(silent: Copy) -> None:
    asked = iter([False] * 5)
    silent.stopping = lambda: next(asked, True)
    assert silent.run().copied == {}
    assert silent.reader.time.now_s < Time().now_s + 10


def test_an_empty_table_is_done_at_once() -> None:
    assert Copy(rows={ORDERS: [], ITEMS.name: []}).run().copied == {ORDERS: 0, ITEMS.name: 0}


def test_progress_ends_with_all_rows() -> None:
    copy = Copy()
    copy.run()
    assert [(report.table, report.rows, report.finished) for report in copy.reports] == [
        (ORDERS, 3, True),
        (ITEMS.name, 1, True),
    ]


def test_a_table_with_fewer_rows_than_estimated_is_still_finished() -> None:
    copy = Copy()
    copy.run()
    assert [report.rows_estimated for report in copy.reports] == [3, 2]


def test_a_row_that_is_not_utf8_stops_the_copy_without_showing_it() -> None:
    copy = Copy(rows={ORDERS: [(b"1", b"secret\xff")], ITEMS.name: []})
    with pytest.raises(LockstepError, match=r"a row of public.orders can't be encoded") as caught:
        copy.run()
    assert "secret" not in str(caught.value)


class MemoryOfRows:
    """What is remembered, with a log of it beside the publisher's batches."""

    def __init__(self, publisher: MemoryPublisher) -> None:
        self._publisher = publisher
        self._rows: dict[bytes, object] = {b'{"id":1}': "old", b'{"id":9}': "old"}
        self.kept: list[tuple[int, dict[bytes, object]]] = []
        """(batches that were committed before, rows) of each commit."""

    def remember(self, _: PublishedTable, key: bytes, fields: Fields) -> None:
        self._rows[key] = fields[1]

    def forget(self, _: PublishedTable, key: bytes) -> None:
        self._rows.pop(key, None)

    def commit(self) -> None:
        self.kept.append((len(self._publisher.batches), dict(self._rows)))


class Repair:
    """Keys 1, 3 and 9 of the orders, of which 9 has no row."""

    def __init__(self, *, batch_rows: int = 1000, fail_at: int | None = None, stop: bool = False) -> None:
        self.publisher = MemoryPublisher(Journal(), fail_at=fail_at)
        self.memory = MemoryOfRows(self.publisher)
        self._settings = CaptureSettings(batch_rows=batch_rows)
        self._stop = stop

    def run(self) -> Republished:
        return republish_keys(
            published(table())[ORDERS],
            [("1",), ("9",), ("3",)],
            reader=MemoryReader(),
            publisher=self.publisher,
            memory=self.memory,
            state=state(),
            consistent_point=0x200_0000,
            settings=self._settings,
            stopping=lambda: self._stop,
        )


def test_chosen_keys_get_their_rows_or_a_delete_with_its_tombstone() -> None:
    repair = Repair()
    assert repair.run() == Republished(2, 1)
    events = [(key, json.loads(value)["op"] if value else "tombstone") for _, key, value, _ in repair.publisher.events]
    assert events == [(b'{"id":1}', "r"), (b'{"id":3}', "r"), (b'{"id":9}', "d"), (b'{"id":9}', "tombstone")]


def test_all_events_of_chosen_keys_have_the_tag_of_the_snapshot() -> None:
    repair = Repair()
    repair.run()
    tags = {
        json.loads(value)["tag"] if value else (extra or b"").decode() for _, _, value, extra in repair.publisher.events
    }  # type: ignore[union-attr]
    assert tags == {str(Tag(EPOCH, 0x200_0000, 0))}


def test_the_position_stays_where_the_stream_is() -> None:
    repair = Repair(batch_rows=1)
    repair.run()
    assert set(map(str, repair.publisher.states)) == {str(state())}


def test_old_values_are_forgotten_before_and_new_ones_kept_after_kafka_has_the_rows() -> None:
    repair = Repair(batch_rows=1)
    repair.run()
    assert repair.memory.kept[0] == (0, {})
    for batches, rows in repair.memory.kept:
        committed = {key for batch in repair.publisher.batches[:batches] for _, key, _, _ in batch}
        assert rows.keys() <= committed
    assert repair.memory.kept[-1][1] == {b'{"id":1}': b"x", b'{"id":3}': b"y"}


@pytest.mark.parametrize("fail_at", range(4))
def test_a_failure_leaves_nothing_in_the_memory_that_the_log_lacks(fail_at: int) -> None:
    repair = Repair(batch_rows=1, fail_at=fail_at)
    with pytest.raises(Unavailable):
        repair.run()
    assert b'{"id":9}' not in repair.memory.kept[-1][1]
    assert repair.memory.kept[-1][1].get(b'{"id":1}') != "old"


def test_a_delete_and_its_tombstone_are_committed_together() -> None:
    repair = Repair(batch_rows=1)
    repair.run()
    assert [len(batch) for batch in repair.publisher.batches] == [1, 1, 2, 0]


def test_a_stop_ends_a_repair_between_two_batches() -> None:
    repair = Repair(batch_rows=1, stop=True)
    with pytest.raises(Interrupted):
        repair.run()
    assert len(repair.publisher.batches) == 1
