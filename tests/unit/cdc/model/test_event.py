"""cdc.model.event"""

from collections.abc import Sequence

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import Events, Position, RowEvent, TableEvents
from cdc.model.table import TableName

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def event(table: TableName, key: int, note: str | None) -> RowEvent:
    row = None if note is None else {"id": key, "note": note}
    return RowEvent(table, {"id": key}, "0" * 28, row, Position(str(table), 0, key))


def from_log(keys: Sequence[bytes], rows: Sequence[bytes | None]) -> TableEvents:
    tags = ["0" * 28] * len(keys)
    return TableEvents.from_log(ORDERS, keys, tags, rows, lambda index: Position("public.orders", 0, index))


def test_events_of_the_log_are_parsed_when_they_are_asked_for() -> None:
    events = from_log([b'{"id":0}', b'{"id":1}', b"{"], [b'{"id":0,"note":"a"}', None, b"{"])
    assert len(events) == 3
    assert events[:2][1] == events[1] == event(ORDERS, 1, None)
    assert events[0] == RowEvent(ORDERS, {"id": 0}, "0" * 28, {"id": 0, "note": "a"}, Position("public.orders", 0, 0))
    for read in (lambda: events[-1], events.key_values):
        with pytest.raises(LockstepError, match=r"key that is no JSON object .*public\.orders, partition 0, offset 2"):
            read()
    with pytest.raises(IndexError):
        events[3]


def test_a_row_that_is_no_object_is_an_error_that_quotes_nothing() -> None:
    with pytest.raises(LockstepError, match="holds no row") as caught:
        from_log([b'{"id":1}'], [b'"secret"'])[0]
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_selected_events_are_the_same_events() -> None:
    given = [event(ORDERS, 1, "a"), event(ORDERS, 2, None), event(ORDERS, 3, "c")]
    chosen = TableEvents.of(ORDERS, given).select([2, 0])
    assert list(chosen) == [given[2], given[0]]
    assert chosen[0] is given[2]
    assert (chosen.keys, chosen.rows) == ([b'{"id":3}', b'{"id":1}'], [b'{"id":3,"note":"c"}', b'{"id":1,"note":"a"}'])
    assert chosen.select([1])[0] is given[0]


def test_events_of_several_tables_are_kept_by_table() -> None:
    given = [event(ITEMS, 1, "a"), event(ORDERS, 1, "b"), event(ITEMS, 2, None)]
    events = Events.of(given)
    assert [(table_events.table, len(table_events)) for table_events in events.tables] == [(ITEMS, 2), (ORDERS, 1)]
    assert (len(events), list(events)) == (3, [given[0], given[2], given[1]])
    assert (events[2], events[-1], events[1:]) == (given[1], given[1], [given[2], given[1]])
    with pytest.raises(IndexError):
        events[3]
    assert Events.of(events) is events
    assert not Events.of([])
