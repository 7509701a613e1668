"""What a task does with its records, without Spark: the same function over the same Arrow batches."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.model.errors import (
    ConfigurationError,
    Fenced,
    LockstepError,
    PerhapsStoreRefuses,
    PositionMismatch,
    StoreRefuses,
    Unavailable,
)
from cdc.model.event import Position
from cdc.model.table import TableName
from jobs.executor import deliver as delivery
from jobs.executor.deliver import portions
from jobs.executor.result import Failure, RejectedEvent, Result, check_rejections
from jobs.executor.task_input import StepsInput, Task
from sinks.contract import Batch, Outcome, TablesRefused
from sinks.memory import MemorySink, MemoryStore
from tests.builders import table
from tests.duckdb_sink import open_duckdb
from tests.events import key_bytes, value_bytes
from tests.task_records import ORDERS, TOPIC, Record, Recording, batch_of, put, refuse_twos, rows, run, task, tombstone


def test_the_same_task_twice_changes_nothing(store: MemoryStore) -> None:
    records = [put(1, "a", lsn=8), tombstone(2, lsn=16)]
    run(task(MemorySink(store, 1)), records)
    delivered = run(task(MemorySink(store, 1)), records)
    assert (delivered.applied, delivered.stale) == (0, 2)
    assert rows(store) == {1: "a"}


def test_a_tombstone_alone_deletes(store: MemoryStore) -> None:
    run(task(MemorySink(store, 1)), [put(1, "a", lsn=8)])
    run(task(MemorySink(store, 1)), [tombstone(1, lsn=16)])
    assert rows(store) == {}


def test_a_task_without_records_says_so(store: MemoryStore) -> None:
    assert run(task(MemorySink(store, 1)), []) == Result()


def test_what_a_window_does_not_hold_is_applied_in_windows(store: MemoryStore) -> None:
    what = replace(task(MemorySink(store, 1)), window_bytes=1)
    delivered = run(what, [put(1, "a", lsn=8)], [put(1, "b", lsn=16)])
    assert (delivered.rows, delivered.applied, delivered.stale) == (2, 2, 0)
    assert rows(store) == {1: "b"}


def test_what_is_superseded_makes_room_in_a_window(store: MemoryStore) -> None:
    batches = [[put(1, f"n{n}", lsn=8 * n)] for n in range(1, 100)]
    size = batch_of(batches[0]).nbytes
    delivered = run(replace(task(MemorySink(store, 1)), window_bytes=3 * size), *batches)
    assert (delivered.rows, delivered.applied) == (99, 1)
    assert rows(store) == {1: "n99"}
    assert delivered.commit_time_ms == 99 * 80


def test_offsets_come_with_the_last_portion_of_a_window(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PORTION_BYTES", 1)
    sink = Recording(store)
    records = [put(1, "a", lsn=8), put(2, "b", lsn=16), put(1, "c", lsn=24)]
    delivered = run(task(sink, sink.claim()), records)
    assert [[event.key["id"] for event in batch.events] for batch in sink.batches] == [[2], [1]]
    assert [dict(batch.next_offsets) for batch in sink.batches] == [{}, {(TOPIC, 0): records[-1][4] + 1}]
    assert (delivered.rows, delivered.applied) == (3, 2)
    assert rows(store) == {1: "c", 2: "b"}


def test_large_records_are_portions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PORTION_BYTES", 100)
    sizes = [10, 10, 90, 200, None, 99]
    records = pa.table({"value": pa.array([None if size is None else b"x" * size for size in sizes], pa.binary())})
    assert list(portions(records)) == [(0, 3), (3, 4), (4, 6)]


def test_a_batch_says_what_it_covers_and_who_writes(store: MemoryStore) -> None:
    sink = Recording(store)
    fence = sink.claim()
    first, second = put(1, "a", lsn=8), put(2, "b", lsn=16, partition=3)
    run(task(sink, fence), [first, second])
    assert sink.batches[0].next_offsets == {(TOPIC, 0): first[4] + 1, (TOPIC, 3): second[4] + 1}
    assert sink.batches[0].fence == fence


def test_a_rejection_keeps_the_record_as_it_was(store: MemoryStore) -> None:
    bad = put(2, "b", lsn=16)
    delivered = run(task(MemorySink(store, 1, refuse=refuse_twos)), [put(1, "a", lsn=8), bad])
    key, value, _, _, offset, _ = bad
    assert rows(store) == {1: "a"}
    assert delivered.rejected == [
        RejectedEvent(Position(TOPIC, 0, offset), key, value, f"0001{16:016x}00000001", "no twos")
    ]


@pytest.mark.parametrize(("lsn", "resolved"), [(8, False), (16, True), (24, True)])
def test_a_rejection_is_void_once_its_event_or_a_newer_one_is_taken(
    store: MemoryStore, lsn: int, resolved: bool
) -> None:
    again = put(2, "b", lsn=lsn)
    row = (TOPIC, again[0])
    before = {row: f"0001{16:016x}00000001"}
    delivered = run(replace(task(MemorySink(store, 1)), rejected_before=before), [put(1, "a", lsn=8), again])
    assert delivered.resolved == ([row] if resolved else [])


def test_a_rejection_that_is_rejected_again_stays(store: MemoryStore) -> None:
    again = put(2, "b", lsn=16)
    sink = MemorySink(store, 1, refuse=refuse_twos)
    delivered = run(replace(task(sink), rejected_before={(TOPIC, again[0]): "0" * 28}), [again])
    assert not delivered.resolved
    assert len(delivered.rejected) == 1


def test_what_was_rejected_is_taken_once_it_can_be_though_a_later_row_was_erased(tmp_path: Path) -> None:
    """Everything up to the erased tag was applied, but for what was rejected: that is no repetition."""
    refused, other = put(2, "b", lsn=16), put(3, "c", lsn=8)
    opened = open_duckdb(tmp_path)
    with closing(opened.sink):
        opened.sink.prepare([ORDERS])
        later = task(opened.sink)
        run(later, [other])
        run(later, [tombstone(3, lsn=24)])
        opened.erasing.erase(ORDERS, {"id": 3}, below="f" * 28)
        row = (TOPIC, refused[0])
        before = {row: f"0001{16:016x}00000001"}
        delivered = run(replace(later, rejected_before=before), [refused, other])
        stored = [each.row["note"] for each in opened.sink.scan(ORDERS)]
    assert stored == ["b"], "and the erased one doesn't come back"
    assert (delivered.applied, delivered.stale, delivered.resolved) == (1, 1, [row])


@pytest.mark.parametrize(("again", "kept"), [("c", ["b 32"]), ("b", ["b 32", "b 24"])])
def test_of_a_row_that_is_rejected_and_comes_again_in_a_later_window_the_newer_version_counts(
    store: MemoryStore, again: str, kept: list[str]
) -> None:
    sink = MemorySink(store, 1, refuse=lambda event: "no b" if event.row and event.row["note"] == "b" else None)
    windows = [[put(2, "b", lsn=16)], [put(3, "b", lsn=32)], [put(2, again, lsn=24)]]
    delivered = run(replace(task(sink), window_bytes=1), *windows)
    assert [f"b {int(event.tag[4:20], 16)}" for event in delivered.rejected] == kept


ITEMS = table(name=TableName("public", "items"))
ITEMS_TOPIC = "shop.public.items"


class RefusesTables(Recording):
    """Takes nothing of these tables, as one that somebody has put a trigger on."""

    def __init__(self, store: MemoryStore, *names: TableName, error: LockstepError | None = None) -> None:
        super().__init__(store)
        self.prepare([ITEMS])
        self._names, self._error = names, error

    def apply(self, batch: Batch) -> Outcome:
        for event in batch.events:
            if event.table in self._names:
                raise self._error or LockstepError(f"no room in {event.table}", hint="make some")
        return super().apply(batch)


def of_two_tables(sink: RefusesTables) -> Task:
    return replace(
        task(sink, sink.claim()),
        tables={TOPIC: ORDERS.name, ITEMS_TOPIC: ITEMS.name},
        shapes={ORDERS.name: ORDERS, ITEMS.name: ITEMS},
    )


def both(lsn: int = 8) -> tuple[Record, Record]:
    mine, row = put(1, "a", lsn=lsn), {"id": 1, "note": "a"}
    value = value_bytes(ITEMS, "u", row, lsn=lsn, seq=1, commit_time_ms=lsn * 10)
    return mine, (key_bytes(ITEMS, row), value, ITEMS_TOPIC, *mine[3:])


def test_a_table_that_the_destination_refuses_is_told_apart_from_those_that_it_takes(store: MemoryStore) -> None:
    sink = RefusesTables(store, ITEMS.name)
    delivered = run(of_two_tables(sink), both())
    assert delivered.failures == [Failure("LockstepError", "no room in public.items", "make some", table=ITEMS.name)]
    assert rows(store) == {1: "a"}
    assert [batch.next_offsets for batch in sink.batches] == [{}], "the batch comes again as a whole"
    assert delivered.next_offsets == {}


def test_each_of_several_tables_has_its_own_reason(store: MemoryStore) -> None:
    delivered = run(of_two_tables(RefusesTables(store, ITEMS.name, ORDERS.name)), both())
    assert [(failure.table, failure.message) for failure in delivered.failures] == [
        (ITEMS.name, "no room in public.items"),
        (ORDERS.name, "no room in public.orders"),
    ]


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("it is down"),
        StoreRefuses("its disk is full"),
        ConfigurationError("a pooler is between"),
        Fenced("another job"),
        PositionMismatch("a gap"),
    ],
)
def test_what_is_no_matter_of_a_table_is_told_as_it_is(store: MemoryStore, error: LockstepError) -> None:
    delivered = run(of_two_tables(RefusesTables(store, ITEMS.name, error=error)), both())
    assert [(failure.message, failure.table) for failure in delivered.failures] == [(error.message, None)]


@pytest.mark.parametrize("refused", [[ITEMS.name], [ITEMS.name, ORDERS.name]])
def test_want_of_rights_or_memory_is_a_matter_of_the_store_where_all_tables_meet_it(
    store: MemoryStore, refused: list[TableName]
) -> None:
    sink = RefusesTables(store, *refused, error=PerhapsStoreRefuses("permission denied", hint="grant it"))
    (failure,) = run(of_two_tables(sink), both()).failures
    assert (failure.message, failure.hint) == ("permission denied", "grant it")
    assert failure.table == (ITEMS.name if len(refused) == 1 else None)
    (alone,) = run(of_two_tables(sink), both()[1:]).failures
    assert alone.table == ITEMS.name, "of one table nobody can tell"


def test_nothing_of_a_consistent_sink_is_applied_table_by_table(store: MemoryStore) -> None:
    sink = RefusesTables(store, ITEMS.name)
    delivered = run(replace(of_two_tables(sink), steps=StepsInput("progress", "shop")), both())
    assert [(failure.message, failure.table) for failure in delivered.failures] == [("no room in public.items", None)]
    assert sink.batches == []


def test_too_many_rejections_of_one_table_are_a_matter_of_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.executor.result.REJECTIONS_MAX", 2)
    refused = [RejectedEvent(Position(topic, 0, 0), b"", None, "", why) for topic, why in (("a", "x"), ("b", "y"))]
    check_rejections("s", refused, {"b": ITEMS.name})
    with pytest.raises(TablesRefused) as caught:
        check_rejections("s", [*refused, refused[1]], {"b": ITEMS.name})
    assert list(caught.value.errors) == [ITEMS.name]
    assert "first reason: y" in caught.value.message
    with pytest.raises(LockstepError) as of_all:
        check_rejections("s", [*refused, refused[1]])
    assert not isinstance(of_all.value, TablesRefused)
