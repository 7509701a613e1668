"""Events of records, in the shapes and with the columns that the generation has."""

from dataclasses import replace

import pytest

from cdc.event_format.decode import fitting
from cdc.model.event import Position, RowEvent
from cdc.protocol.control_records import SchemaRecord, ShapeChange
from jobs.executor.shape_history import ShapesOutdated, TableHistory, histories
from jobs.query.row_plan import row_plan
from sinks.contract import Batch
from sinks.memory import MemorySink, MemoryStore
from sinks.table_settings import Computed, Expressions
from tests.builders import column, table
from tests.events import key_bytes, value_bytes
from tests.task_records import ORDERS, TOPIC, Record, Recording, offsets, put, rows, run, task, tombstone


def test_events_of_an_earlier_shape_become_rows_of_the_newest(store: MemoryStore) -> None:
    before = table(ORDERS.columns[0], replace(ORDERS.columns[1], name="remark"))
    carry = (("id", "id", None), ("note", "remark", None))
    history = TableHistory(ORDERS.name, ORDERS.key, {ORDERS.schema_id: (), before.schema_id: carry, "gone": None})
    old = value_bytes(before, "u", {"id": 1, "remark": "a"}, lsn=8, seq=1)
    gone = old.replace(before.schema_id.encode(), b"gone")
    records: list[Record] = [
        (key_bytes(before, {"id": 1}), old, TOPIC, 0, next(offsets), None),
        put(2, "b", lsn=16),
        (key_bytes(before, {"id": 3}), gone, TOPIC, 0, next(offsets), None),
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
    record: Record = (key_bytes(before, {"id": 1}), old, TOPIC, 0, next(offsets), None)
    late = RowEvent(ORDERS.name, {"id": 1}, f"0001{8:016x}00000001", {"id": 1, "note": None}, Position(TOPIC, 0, 0))
    MemorySink(store, 1).apply(Batch([late]))
    run(replace(task(MemorySink(store, 1)), histories={ORDERS.name: history}), [record])
    assert rows(store) == {1: "new"}


def test_a_copy_s_deletes_of_keys_of_another_type_reach_no_sink(store: MemoryStore) -> None:
    """A batch may end between the delete and its tombstone."""
    before = table(column("id", "text"), *ORDERS.columns[1:])
    changed = ShapeChange(rewritten="the type of column 'id' was text, is bigint")
    history = histories([SchemaRecord(before, 1), SchemaRecord(ORDERS, 8, changed)])
    gone = value_bytes(ORDERS, "d", {}, lsn=16, seq=1)
    records: list[Record] = [
        (key_bytes(before, {"id": "1"}), value_bytes(before, "c", {"id": "1"}, lsn=4, seq=1), TOPIC, 0, 0, None),
        (*put(1, "a", lsn=16)[:4], 1, None),
        (b'{"id":"1"}', gone, TOPIC, 0, 2, None),
        (b'{"id":"1"}', None, TOPIC, 0, 3, f"0001{16:016x}00000001".encode()),
        (*tombstone(2, lsn=16)[:4], 4, tombstone(2, lsn=16)[5]),
    ]
    sink = Recording(store)
    read = replace(task(sink), histories=history, known_ends={(TOPIC, 0): 5})
    for portion in (records[:3], records[3:]):
        assert run(read, portion).failures == []
    assert [event.key for each in sink.batches for event in each.events] == [{"id": 1}, {"id": 2}]


def test_an_event_of_a_shape_that_nobody_prepared_stops_the_task(store: MemoryStore) -> None:
    what = replace(task(MemorySink(store, 1)), shapes={ORDERS.name: table(ORDERS.columns[0])})
    [failure] = run(what, [put(1, "a", lsn=8)]).failures
    assert "was not prepared for" in failure.message
    assert rows(store) == {}


def test_an_earlier_shape_that_comes_after_the_shapes_were_read_may_be_the_newest_again(store: MemoryStore) -> None:
    """The newest known shape lacks a column, or has another key: the event would lose it, or be left out."""
    again = table(*ORDERS.columns, column("size", "int4"))
    narrowing = (("id", "id", None), ("note", "note", None))
    history = TableHistory(ORDERS.name, ORDERS.key, {ORDERS.schema_id: (), again.schema_id: narrowing})
    event = value_bytes(again, "u", {"id": 1, "note": "a", "size": 2}, lsn=8, seq=1)
    offset = next(offsets)
    events: list[Record] = [
        (key_bytes(again, {"id": 1}), event, TOPIC, 0, offset, None),
        (b'{"code":"1"}', None, TOPIC, 0, offset, f"0001{16:016x}00000001".encode()),
    ]
    read = replace(task(MemorySink(store, 1)), histories={ORDERS.name: history})
    for record in events:
        [failure] = run(replace(read, known_ends={(TOPIC, 0): offset}), [record]).failures
        assert isinstance(failure.error(), ShapesOutdated)
        assert rows(store) == {}
    for record in events:
        assert run(replace(read, known_ends={(TOPIC, 0): offset + 1}), [record]).failures == []
    assert rows(store) == {1: "a"}


def test_what_was_evaluated_of_a_row_is_in_it_or_takes_it_away(store: MemoryStore) -> None:
    wide = table(*ORDERS.columns, column("size", "int4"))
    MemorySink(store, 1).prepare([wide])
    records = [put(1, "a", lsn=1), put(2, "b", lsn=2), put(3, "c", lsn=3), put(3, "d", lsn=4), tombstone(4, lsn=5)]
    expressions = Expressions({"size": Computed(sql="2 / (2 - id)", type="int4")}, "note <> 'd'")
    computing = replace(task(MemorySink(store, 1)), computed={ORDERS.name: row_plan(ORDERS, expressions)})
    delivered = run(computing, records)
    assert delivered.failures == []
    assert (delivered.applied, delivered.next_offsets) == (3, {(TOPIC, 0): records[-1][4] + 1})
    [refused] = delivered.rejected
    assert (refused.key, refused.reason) == (
        records[1][0],
        "expression: computed column 'size' can't be evaluated for this row: division by zero",
    )
    assert [stored.row for stored in MemorySink(store, 1).scan(wide)] == [{"id": 1, "note": "a", "size": 2}]


@pytest.mark.parametrize(
    "value", [b'{"id":1,"note":"by hand"}', b'{"op":"c","tag":"' + b"0" * 28 + b'","note":"by hand"}']
)
def test_a_record_that_is_no_event_stops_the_job(value: bytes) -> None:
    alien: Record = (b'{"id":1}', value, TOPIC, 0, 5, None)
    [failure] = run(task(MemorySink(MemoryStore(), 1)), [alien]).failures
    assert "offset 5" in failure.message
    assert "by hand" not in failure.message


def test_a_row_that_was_left_out_is_a_rejection_and_no_deletion(store: MemoryStore) -> None:
    key, value, *at = put(1, "large", lsn=16)
    assert value is not None
    left_out: Record = (key, fitting(value, 100, has_key=True), *at)  # type: ignore[assignment]
    run(task(MemorySink(store, 1)), [put(1, "a", lsn=8)])
    [rejected] = run(task(MemorySink(store, 1)), [left_out, put(2, "b", lsn=16)]).rejected
    assert (rejected.key, rejected.value) == (key, left_out[1])
    assert "too large for its topic" in rejected.reason
    assert rows(store) == {1: "a", 2: "b"}
    read = replace(task(MemorySink(store, 1)), rejected_before={(TOPIC, key): rejected.tag})
    assert run(read, [put(1, "short", lsn=24)]).resolved == [(TOPIC, key)]
    assert rows(store) == {1: "short", 2: "b"}
