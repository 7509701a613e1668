"""sinks.wrappers.renaming"""

from cdc.model.event import TableEvents
from cdc.model.table import TableName
from sinks.contract import StoredRow
from sinks.wrappers.renaming import Renaming
from tests.builders import ORDERS, column, delete, table, upsert

SHAPE = table(column("id", "int8"), column("note"), column("total"))
RENAMING = Renaming({ORDERS: {"id": "number", "note": "total", "total": "sum"}})


def test_a_table_and_its_events_have_other_names() -> None:
    renamed = RENAMING.table(SHAPE)
    assert [held.name for held in renamed.columns] == ["number", "total", "sum"]
    assert renamed.key == ("number",)
    events = TableEvents.of(ORDERS, [upsert({"id": 1, "note": "n", "total": "t"}, 1, of=SHAPE), delete({"id": 2}, 2)])
    first, second = RENAMING.events(events)
    assert (first.key, first.row) == ({"number": 1}, {"number": 1, "total": "n", "sum": "t"})
    assert (second.key, second.row, second.tag) == ({"number": 2}, None, events[1].tag)


def test_a_stored_row_gets_the_sources_names_back() -> None:
    stored = StoredRow({"number": 1}, {"number": 1, "total": "n", "sum": "t"}, "tag", ("total",))
    assert RENAMING.back(ORDERS, stored) == StoredRow({"id": 1}, {"id": 1, "note": "n", "total": "t"}, "tag", ("note",))
    assert RENAMING.back_row(ORDERS, {"sum": 1}) == {"total": 1}


def test_other_tables_stay_as_they_are() -> None:
    other = table(name=TableName("public", "other"))
    events = TableEvents.of(other.name, [delete({"id": 1}, 1, of=other)])
    assert RENAMING.table(other) is other
    assert RENAMING.events(events) is events
    assert not Renaming()
