"""Events of append-only tables through a task: each is a row of its own."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from cdc.event_format.encode import event_value
from cdc.model.append_only import stored_table
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from cdc.model.tag import tag_prefix
from jobs.executor.append_only import LOG_KEY, event_key, row_before, stored_row
from jobs.executor.shape_history import TableHistory
from jobs.executor.task_input import Task
from jobs.query.row_plan import row_plan
from sinks.memory import MemorySink, MemoryStore
from sinks.table_settings import Expressions
from tests.builders import column, table
from tests.events import EPOCH, encoder, value_bytes
from tests.task_records import Record, put, run, task

LOG = table(column("note"), name=TableName("public", "log"), key=())
TOPIC = "shop.public.log"

_offsets = count()


def _task(store: MemoryStore, shape: Table = LOG, **more: object) -> Task:
    MemorySink(store, 1).prepare([stored_table(shape)])
    plain = task(MemorySink(store, 1))
    return replace(
        plain,
        tables={**plain.tables, TOPIC: LOG.name},
        shapes={**plain.shapes, LOG.name: shape},
        **more,  # type: ignore[arg-type]
    )


def _record(value: bytes | None, offset: int | None = None, tombstone_tag: bytes | None = None) -> Record:
    return LOG_KEY, value, TOPIC, 0, next(_offsets) if offset is None else offset, tombstone_tag


def _line(op: str, note: str | None, *, lsn: int, seq: int = 1, offset: int | None = None, of: Table = LOG) -> Record:
    return _record(value_bytes(of, op, {"note": note}, lsn=lsn, seq=seq), offset)


def _truncate(*, lsn: int, seq: int = 1) -> Record:
    source = encoder(LOG).source(commit_time_ms=0, xid=7)
    return _record(event_value(b"t", tag_prefix(EPOCH, lsn), seq, b"null", b"null", source, lsn, 0))


def _rows(store: MemoryStore, shape: Table = LOG) -> list[Mapping[str, JsonValue]]:
    return sorted(
        ({name: value for name, value in stored.row.items() if name != "_event"} for stored in _scan(store, shape)),
        key=str,
    )


def _scan(store: MemoryStore, shape: Table = LOG) -> list[object]:
    return list(MemorySink(store, 1).scan(stored_table(shape)))


def test_events_are_not_folded_though_they_have_one_key(store: MemoryStore) -> None:
    records = [_line("c", "a", lsn=8), _line("c", "a", lsn=8, seq=2), put(1, "keyed", lsn=8), put(1, "newer", lsn=16)]
    delivered = run(_task(store), records)
    assert (delivered.applied, delivered.rows, delivered.failures) == (3, 4, [])
    assert _rows(store) == [{"_operation": "insert", "note": "a"}] * 2
    again = run(_task(store), records)
    assert (again.applied, again.stale) == (0, 3)


def test_rows_of_a_copy_are_told_apart_by_where_they_are(store: MemoryStore) -> None:
    copied = [_line("r", "same", lsn=8, seq=0, offset=offset) for offset in (5, 6)]
    run(_task(store), copied)
    run(_task(store), copied)
    assert _rows(store) == [{"_operation": "snapshot", "note": "same"}] * 2


def test_an_update_is_a_row_of_its_own_and_a_delete_one_with_the_values_from_before(store: MemoryStore) -> None:
    run(_task(store), [_line("c", "a", lsn=8), _line("u", "b", lsn=16), _line("d", "b", lsn=24)])
    assert _rows(store) == [
        {"_operation": "delete", "note": "b"},
        {"_operation": "insert", "note": "a"},
        {"_operation": "update", "note": "b"},
    ]


def test_a_truncate_empties_the_table(store: MemoryStore) -> None:
    run(_task(store), [_line("c", "before", lsn=8), _truncate(lsn=16), _line("c", "after", lsn=16, seq=2)])
    assert _rows(store) == [{"_operation": "insert", "note": "after"}]


def test_what_is_left_from_when_the_table_had_a_key_is_no_row(store: MemoryStore) -> None:
    keyed = table(*LOG.columns, name=LOG.name, key=("note",))
    history = TableHistory(LOG.name, (), {LOG.schema_id: (), keyed.schema_id: None})
    tombstone = (b'{"note":"k"}', None, TOPIC, 0, next(_offsets), f"0001{4:016x}00000001".encode())
    records = [_line("c", "k", lsn=4, of=keyed), tombstone, _line("c", "a", lsn=8)]
    assert run(_task(store, histories={LOG.name: history}), records).failures == []
    assert _rows(store) == [{"_operation": "insert", "note": "a"}]


def test_with_expressions_only_what_meets_them_is_a_row_and_a_truncate_counts(store: MemoryStore) -> None:
    records = [
        _line("c", "before", lsn=8),
        _truncate(lsn=16),
        _line("c", "in", lsn=24),
        _line("c", "out", lsn=32),
        _line("d", "in", lsn=40),
        _line("d", "out", lsn=48),
    ]
    plan = row_plan(LOG, Expressions({}, "note <> 'out'"))
    delivered = run(_task(store, computed={LOG.name: plan}), records)
    assert (delivered.failures, delivered.applied) == ([], 4)
    assert _rows(store) == [{"_operation": "delete", "note": "in"}, {"_operation": "insert", "note": "in"}]


def test_a_refused_event_is_known_by_its_own_key(store: MemoryStore) -> None:
    what = _task(store)
    sink = MemorySink(store, 1, refuse=lambda event: "no b" if event.row and event.row.get("note") == "b" else None)
    refusing = replace(what, open=task(sink).open)
    records = [_line("c", "a", lsn=8), _line("c", "b", lsn=16), _line("c", "b", lsn=24)]
    delivered = run(refusing, records)
    tags = [f"0001{lsn:016x}00000001" for lsn in (16, 24)]
    assert [event.key for event in delivered.rejected] == [event_key(tag, 0) for tag in tags]
    assert delivered.applied == 1
    before = {(TOPIC, event_key(tag, 0)): tag for tag in tags}
    assert run(replace(what, run="second", rejected_before=before), records[1:2]).resolved == [
        (TOPIC, event_key(tags[0], 0))
    ]


def test_a_delete_without_the_row_is_a_row_without_values() -> None:
    source = encoder(LOG).source(commit_time_ms=0, xid=7)
    value = event_value(b"d", tag_prefix(EPOCH, 8), 1, b"null", b"null", source, 8, 0)
    assert row_before(value) == LOG_KEY
    assert stored_row(b'{"_event":"x"}', value, LOG_KEY) == b'{"_event":"x","_operation":"delete"}'
