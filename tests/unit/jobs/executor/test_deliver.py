"""What a task does with its records, without Spark: the same function over the same Arrow batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import orjson
import pyarrow as pa
import pytest

from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.event import Position, RowEvent
from jobs.executor import deliver as delivery
from jobs.executor.computed_row import DERIVED
from jobs.executor.deliver import Delivered, Failure, RejectedRecord, Task, deliver, from_arrow, to_arrow
from jobs.executor.shape_history import TableHistory
from sinks.contract import Batch, OpenedSink, Outcome, Sink
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.sink import RedisSettings
from sinks.registry import SinkSettings
from tests.builders import column, table
from tests.events import key_bytes, value_bytes

ORDERS = table()
TOPIC = "shop.public.orders"
Record = tuple[bytes, bytes | None, str, int, int, bytes | None]

_offsets = count()


@pytest.fixture(autouse=True)
def _no_open_sinks() -> Iterator[None]:
    yield
    delivery._open.clear()


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    MemorySink(store, 1).prepare([ORDERS])
    return store


def task(sink: Sink, fence: int = 0) -> Task:
    def open_it(_name: str, _settings: SinkSettings, _generation: int) -> OpenedSink:
        return replace(open_memory(MemoryStore()), sink=sink)

    return Task(
        "cache",
        RedisSettings(),
        1,
        fence,
        {TOPIC: ORDERS.name},
        {ORDERS.name: ORDERS},
        window_bytes=1 << 20,
        retry_s=0.01,
        run="first",
        open=open_it,
    )


def put(key: int, note: str, *, lsn: int, partition: int = 0) -> Record:
    row = {"id": key, "note": note}
    value = value_bytes(ORDERS, "u", row, lsn=lsn, seq=1, commit_time_ms=lsn * 10)
    return key_bytes(ORDERS, row), value, TOPIC, partition, next(_offsets), None


def tombstone(key: int, *, lsn: int, partition: int = 0) -> Record:
    tag = f"0001{lsn:016x}00000001".encode()
    return key_bytes(ORDERS, {"id": key}), None, TOPIC, partition, next(_offsets), tag


def event(op: str, key: int, note: str | None, *, lsn: int) -> Record:
    row = {"id": key, "note": note}
    value = value_bytes(ORDERS, op, row, lsn=lsn, seq=1, commit_time_ms=lsn * 10)
    return key_bytes(ORDERS, row), value, TOPIC, 0, next(_offsets), None


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("tombstone_tag", pa.binary()),
        ]
    )
    columns = zip(*records, strict=True) if records else [[]] * 6
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def run(what: Task, *batches: Sequence[Record]) -> Delivered:
    return from_arrow(pa.Table.from_batches(list(deliver(what, [batch_of(records) for records in batches]))))


def rows(store: MemoryStore) -> dict[object, object]:
    return {row.key["id"]: row.row["note"] for row in MemorySink(store, 1).scan(ORDERS)}


def test_events_are_applied_and_counted(store: MemoryStore) -> None:
    records = [put(1, "a", lsn=8), put(2, "b", lsn=16), put(1, "c", lsn=24)]
    delivered = run(task(MemorySink(store, 1)), records)
    assert rows(store) == {1: "c", 2: "b"}
    assert (delivered.rows, delivered.applied, delivered.stale) == (3, 2, 0)
    assert delivered.next_offsets == {(TOPIC, 0): records[-1][4] + 1}
    assert delivered.commit_time_ms == 240
    assert not delivered.failures


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


def test_events_of_an_earlier_shape_become_rows_of_the_newest(store: MemoryStore) -> None:
    before = table(ORDERS.columns[0], replace(ORDERS.columns[1], name="remark"))
    carry = (("id", "id", None), ("note", "remark", None))
    history = TableHistory(ORDERS.name, ORDERS.key, {ORDERS.schema_id: (), before.schema_id: carry, "gone": None})
    old = value_bytes(before, "u", {"id": 1, "remark": "a"}, lsn=8, seq=1)
    gone = old.replace(before.schema_id.encode(), b"gone")
    records: list[Record] = [
        (key_bytes(before, {"id": 1}), old, TOPIC, 0, next(_offsets), None),
        put(2, "b", lsn=16),
        (key_bytes(before, {"id": 3}), gone, TOPIC, 0, next(_offsets), None),
        tombstone(4, lsn=24),
    ]
    delivered = run(replace(task(MemorySink(store, 1)), histories={ORDERS.name: history}), records)
    assert rows(store) == {1: "a", 2: "b"}
    assert (delivered.rows, delivered.applied, delivered.failures) == (4, 3, [])
    assert delivered.next_offsets == {(TOPIC, 0): records[-1][4] + 1}


def test_an_event_of_an_earlier_shape_replaces_what_was_stored_of_it_in_that_shape(store: MemoryStore) -> None:
    before = table(ORDERS.columns[0])
    history = TableHistory(
        ORDERS.name, ORDERS.key, {ORDERS.schema_id: (), before.schema_id: (("id", "id", None), ("note", None, "new"))}
    )
    old = value_bytes(before, "u", {"id": 1}, lsn=8, seq=1)
    record: Record = (key_bytes(before, {"id": 1}), old, TOPIC, 0, next(_offsets), None)
    late = RowEvent(ORDERS.name, {"id": 1}, f"0001{8:016x}00000001", {"id": 1, "note": None}, Position(TOPIC, 0, 0))
    MemorySink(store, 1).apply(Batch([late]))
    run(replace(task(MemorySink(store, 1)), histories={ORDERS.name: history}), [record])
    assert rows(store) == {1: "new"}


def test_records_are_folded_over_all_arrow_batches_of_a_task(store: MemoryStore) -> None:
    delivered = run(task(MemorySink(store, 1)), [put(1, "a", lsn=8)], [put(1, "b", lsn=16)], [])
    assert delivered.applied == 1
    assert rows(store) == {1: "b"}


def test_a_task_without_records_says_so(store: MemoryStore) -> None:
    assert run(task(MemorySink(store, 1)), []) == Delivered()


def test_what_a_window_does_not_hold_is_applied_in_windows(store: MemoryStore) -> None:
    what = replace(task(MemorySink(store, 1)), window_bytes=1)
    delivered = run(what, [put(1, "a", lsn=8)], [put(1, "b", lsn=16, partition=1)])
    assert (delivered.rows, delivered.applied) == (2, 2)
    assert set(delivered.next_offsets) == {(TOPIC, 0), (TOPIC, 1)}


def test_what_is_superseded_makes_room_in_a_window(store: MemoryStore) -> None:
    batches = [[put(1, f"n{n}", lsn=8 * n)] for n in range(1, 100)]
    size = batch_of(batches[0]).nbytes
    delivered = run(replace(task(MemorySink(store, 1)), window_bytes=3 * size), *batches)
    assert (delivered.rows, delivered.applied) == (99, 1)
    assert rows(store) == {1: "n99"}
    assert delivered.commit_time_ms == 99 * 80


def test_offsets_are_told_with_the_last_portion_of_a_window(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PORTION_BYTES", 1)
    sink = Recording(store)
    records = [put(1, "a", lsn=8), put(2, "b", lsn=16), put(1, "c", lsn=24)]
    delivered = run(task(sink, sink.claim()), records)
    assert [[event.key["id"] for event in batch.events] for batch in sink.batches] == [[2], [1]]
    assert [dict(batch.next_offsets) for batch in sink.batches] == [{}, {(TOPIC, 0): records[-1][4] + 1}]
    assert (delivered.rows, delivered.applied) == (3, 2)
    assert rows(store) == {1: "c", 2: "b"}


def test_a_tombstone_with_another_key_is_of_another_shape(store: MemoryStore) -> None:
    run(task(MemorySink(store, 1)), [put(1, "a", lsn=8)])
    record: Record = (b'{"code":"1"}', None, TOPIC, 0, next(_offsets), f"0001{16:016x}00000001".encode())
    [failure] = run(task(MemorySink(store, 1)), [record]).failures
    assert "was not prepared for" in failure.message
    assert rows(store) == {1: "a"}


def test_large_records_are_portions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PORTION_BYTES", 100)
    sizes = [10, 10, 90, 200, None, 99]
    records = pa.table({"value": pa.array([None if size is None else b"x" * size for size in sizes], pa.binary())})
    assert list(delivery.portions(records)) == [(0, 3), (3, 4), (4, 6)]


def test_an_event_of_a_shape_that_nobody_prepared_stops_the_task(store: MemoryStore) -> None:
    what = replace(task(MemorySink(store, 1)), shapes={ORDERS.name: table(ORDERS.columns[0])})
    [failure] = run(what, [put(1, "a", lsn=8)]).failures
    assert "was not prepared for" in failure.message
    assert rows(store) == {}


class Recording(MemorySink):
    """Remembers the batches it is given."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1)
        self.batches: list[Batch] = []

    def apply(self, batch: Batch) -> Outcome:
        self.batches.append(batch)
        return super().apply(batch)


def test_a_batch_says_what_it_covers_and_who_writes(store: MemoryStore) -> None:
    sink = Recording(store)
    fence = sink.claim()
    first, second = put(1, "a", lsn=8), put(2, "b", lsn=16, partition=3)
    run(task(sink, fence), [first, second])
    assert sink.batches[0].next_offsets == {(TOPIC, 0): first[4] + 1, (TOPIC, 3): second[4] + 1}
    assert sink.batches[0].fence == fence


def test_a_sink_that_keeps_all_versions_gets_them_beside_the_newest(store: MemoryStore) -> None:
    sink = Recording(store)
    records = [
        event("c", 1, "a", lsn=1),
        event("u", 1, "b", lsn=2),
        event("d", 1, None, lsn=3),
        tombstone(1, lsn=3),
        tombstone(2, lsn=4),
    ]
    arrow = batch_of(records).append_column("timestamp_ms", pa.array([7] * len(records), pa.int64()))
    keeping = replace(task(sink), versions={ORDERS.name}, complete_at_ms=delivery._now_ms(), compaction_lag_ms=60_000)
    delivered = from_arrow(pa.Table.from_batches(list(deliver(keeping, [arrow]))))
    assert delivered.failures == []
    [got] = sink.batches
    assert [(one.key["id"], one.row) for one in got.events] == [(1, None), (2, None)]
    [versions] = got.versions
    assert versions.operations == ["c", "u", "d", "d"]  # a deletion and its tombstone are one version
    assert versions.commit_times_ms == [10, 20, 30, 7]  # a tombstone alone knows when it was published
    assert [one.row and one.row["note"] for one in versions.events] == ["a", "b", None, None]
    assert versions.complete_from_ms is None


def test_a_history_says_when_versions_may_be_missing_before_they_were_read(store: MemoryStore) -> None:
    sink = Recording(store)
    arrow = batch_of([event("c", 1, "a", lsn=1)]).append_column("timestamp_ms", pa.array([7], pa.int64()))
    lagging = replace(task(sink), versions={ORDERS.name}, complete_at_ms=1, compaction_lag_ms=60_000)
    began_ms = delivery._now_ms()
    list(deliver(lagging, [arrow]))
    [versions] = sink.batches[0].versions
    assert versions.complete_from_ms is not None
    assert began_ms - 60_000 <= versions.complete_from_ms <= delivery._now_ms() - 60_000


def test_a_version_that_no_expression_can_be_evaluated_of_ends_what_the_history_is_complete_for(
    store: MemoryStore,
) -> None:
    sink = Recording(store)
    records = [event("c", 1, "a", lsn=1), event("u", 1, "b", lsn=2)]
    arrow = batch_of(records).append_column("timestamp_ms", pa.array([7, 7], pa.int64()))
    arrow = arrow.append_column(DERIVED, pa.array(['{"where":null}', '{"where":{"v":"true"}}']))
    keeping = replace(
        task(sink),
        versions={ORDERS.name},
        computed={ORDERS.name: ()},
        complete_at_ms=delivery._now_ms(),
        compaction_lag_ms=60_000,
    )
    list(deliver(keeping, [arrow]))
    [versions] = sink.batches[0].versions
    assert (len(versions), versions.complete_from_ms) == (1, 11)


def test_what_was_evaluated_of_a_row_is_in_it_or_takes_it_away(store: MemoryStore) -> None:
    wide = table(*ORDERS.columns, column("size", "int4"))
    MemorySink(store, 1).prepare([wide])
    records = [put(1, "a", lsn=1), put(2, "b", lsn=2), put(3, "c", lsn=3), put(3, "d", lsn=4), tombstone(4, lsn=5)]
    results = [
        '{"size":{"v":"1"},"where":{"v":"true"}}',
        '{"size":null,"where":{"v":"true"}}',
        None,
        '{"size":{"v":"1"},"where":{"v":"false"}}',
        None,
    ]
    arrow = batch_of(records).append_column(DERIVED, pa.array(results, pa.string()))
    computing = replace(task(MemorySink(store, 1)), computed={ORDERS.name: wide.columns[-1:]})
    delivered = from_arrow(pa.Table.from_batches(list(deliver(computing, [arrow]))))
    assert delivered.failures == []
    assert (delivered.applied, delivered.next_offsets) == (3, {(TOPIC, 0): records[-1][4] + 1})
    [refused] = delivered.rejected
    assert (refused.key, refused.reason) == (
        records[1][0],
        "expression: computed column 'size' can't be evaluated for this row",
    )
    assert [stored.row for stored in MemorySink(store, 1).scan(wide)] == [{"id": 1, "note": "a", "size": 1}]


def refuse_twos(event: RowEvent) -> str | None:
    return "no twos" if event.key["id"] == 2 else None


def test_a_rejection_keeps_the_record_as_it_was(store: MemoryStore) -> None:
    bad = put(2, "b", lsn=16)
    delivered = run(task(MemorySink(store, 1, refuse=refuse_twos)), [put(1, "a", lsn=8), bad])
    key, value, _, _, offset, _ = bad
    assert rows(store) == {1: "a"}
    assert delivered.rejected == [
        RejectedRecord(Position(TOPIC, 0, offset), key, value, f"0001{16:016x}00000001", "no twos")
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


@pytest.mark.parametrize(("again", "kept"), [("c", ["b 32"]), ("b", ["b 32", "b 24"])])
def test_of_a_row_that_is_rejected_and_comes_again_in_a_later_window_the_newer_version_counts(
    store: MemoryStore, again: str, kept: list[str]
) -> None:
    sink = MemorySink(store, 1, refuse=lambda event: "no b" if event.row and event.row["note"] == "b" else None)
    windows = [[put(2, "b", lsn=16)], [put(3, "b", lsn=32)], [put(2, again, lsn=24)]]
    delivered = run(replace(task(sink), window_bytes=1), *windows)
    assert [f"b {int(one.tag[4:20], 16)}" for one in delivered.rejected] == kept


def test_too_many_rejections_stop_the_job(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "REJECTIONS_MAX", 1)
    sink = MemorySink(store, 1, refuse=lambda _: "never")
    [failure] = run(task(sink), [put(1, "a", lsn=8), put(2, "b", lsn=16)]).failures
    assert "rejected 2 events of one batch" in failure.message
    assert "never" in failure.message


class Failing(MemorySink):
    """Raises what it is told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryStore(), 1)
        self._error = error
        self.closed = False

    def apply(self, batch: Batch) -> Outcome:
        raise self._error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("the server is away", hint="wait", retry_after_s=7.0),
        Fenced("another job writes here", hint="look for it"),
        LockstepError("the disk is full"),
    ],
)
def test_an_error_travels_as_itself(error: LockstepError) -> None:
    [failure] = run(task(Failing(error)), [put(1, "a", lsn=8)]).failures
    arrived = failure.error()
    assert (type(arrived), arrived.message, arrived.hint) == (type(error), error.message, error.hint)
    if isinstance(error, Unavailable):
        assert isinstance(arrived, Unavailable)
        assert arrived.retry_after_s == error.retry_after_s


def test_a_bug_is_told_without_its_text() -> None:
    [failure] = run(task(Failing(KeyError("a customer's name"))), [put(1, "a", lsn=8)]).failures
    assert "customer" not in str(failure.error())
    assert "KeyError in " in str(failure.error())


def test_after_an_error_the_sink_is_opened_anew() -> None:
    sink = Failing(LockstepError("the disk is full"))
    run(task(sink), [put(1, "a", lsn=8)])
    assert sink.closed
    assert not delivery._open


def test_a_sink_stays_open_from_task_to_task(store: MemoryStore) -> None:
    opened = []

    def open_it(_name: str, _settings: SinkSettings, _generation: int) -> OpenedSink:
        opened.append(1)
        return open_memory(store, 1)

    what = replace(task(MemorySink(store, 1)), open=open_it)
    run(what, [put(1, "a", lsn=8)])
    run(what, [put(1, "b", lsn=16)])
    assert len(opened) == 1
    run(replace(what, settings=RedisSettings(prefix="other")), [put(1, "c", lsn=24)])
    assert len(opened) == 2


def test_another_run_opens_the_sink_anew(store: MemoryStore) -> None:
    first, second = MemorySink(store, 1), Recording(store)
    run(task(first), [put(1, "a", lsn=8)])
    run(replace(task(second), run="second"), [put(1, "b", lsn=16)])
    assert len(second.batches) == 1


def test_a_record_that_is_no_event_stops_the_job() -> None:
    alien: Record = (b'{"id":1}', b'{"id":1,"note":"by hand"}', TOPIC, 0, 5, None)
    [failure] = run(task(MemorySink(MemoryStore(), 1)), [alien]).failures
    assert "offset 5" in failure.message
    assert "by hand" not in failure.message


def test_results_survive_the_way_to_the_driver() -> None:
    sent = Delivered(
        rows=3,
        applied=1,
        stale=1,
        next_offsets={(TOPIC, 0): 9},
        commit_time_ms=5,
        rejected=[RejectedRecord(Position(TOPIC, 0, 8), orjson.dumps({"id": "ü"}), None, "0" * 28, "no")],
        resolved=[(TOPIC, b'{"id":1}')],
        failures=[Failure("Unavailable", "away", None, 1.5)],
    )
    assert from_arrow(pa.Table.from_batches([to_arrow(sent)])) == sent
