"""What comes of a table while a state is built: the newest event of each key counts, in whatever order they come."""

import random
from pathlib import Path

import pytest

from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, TRUNCATE, event_id, stored_tables
from cdc.model.errors import LockstepError
from cdc.model.event import Events, Position, RowEvent, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import Tag
from tests.builders import column, table
from views.failures import EvaluationError
from views.operators import arrivals, building
from views.operators.arrivals import Arrivals
from views.operators.building import Item, Sorter
from views.sql.reader import read_view
from views.state.memory import MemoryState
from views.view import View

KEYED, LOG = TableName("public", "keyed"), TableName("public", "log")
SHAPES = {
    KEYED: table(column("id", "int4"), column("at", "timestamptz"), name=KEYED, key=("id",)),
    LOG: table(column("n", "int4"), name=LOG, key=()),
}
OF_KEYED = "select id, at from keyed"
OF_LOG = f"select {EVENT_COLUMN} as event, n from log"


def tag(lsn: int) -> str:
    return str(Tag(1, lsn, 1))


def keyed(*events: tuple[int, int, bytes | None]) -> Events:
    """Events of an id at an LSN, with the row's JSON."""
    ids, lsns, rows = zip(*events, strict=True)
    keys = [b'{"id":%d}' % number for number in ids]
    return Events([TableEvents.from_log(KEYED, keys, list(map(tag, lsns)), list(rows), lambda _: Position("", 0, 0))])


def row(number: int, day: int) -> bytes:
    return b'{"id":%d,"at":"2026-01-%02dT00:00:00Z"}' % (number, day)


def logged(lsn: int, n: int | None, operation: str = "insert") -> RowEvent:
    """A row of the table without a key, or a truncate."""
    own = {EVENT_COLUMN: event_id(tag(lsn), 0)}
    return RowEvent(LOG, own, tag(lsn), own | {OPERATION_COLUMN: operation, "n": n}, Position("", 0, 0))


def building_of(sql: str, *key: str) -> View:
    view = View(read_view(sql, stored_tables(SHAPES), key=key), SHAPES, MemoryState())
    view.begin_building()
    return view


def days(view: View) -> dict[int, str]:
    """The result: the day of each id."""
    view.end_building(epoch=1, lsn=800, offsets={})
    output = view.pending()
    changes = [] if output is None else output.changes
    return {change.row["id"]: change.row["at"][8:10] for change in changes if change.row is not None}


def test_the_newest_event_of_each_key_counts_and_an_older_one_brings_nothing_back() -> None:
    view = building_of(OF_KEYED, "id")
    view.build(keyed((1, 8, row(1, 1)), (2, 8, row(2, 1)), (3, 8, row(3, 1))))
    view.build(keyed((1, 16, row(1, 2)), (3, 16, None), (2, 1, row(2, 9)), (4, 32, None)))
    view.build(keyed((3, 9, row(3, 2)), (4, 31, row(4, 1)), (1, 16, row(1, 2))))
    assert days(view) == {1: "02", 2: "01"}


@pytest.mark.parametrize(
    "unreadable", [b"no JSON", b"[]", b"{}", b'{"id":1,"at":"yesterday"}', b'{"id":true,"at":null}']
)
def test_a_row_that_can_not_be_read_is_a_fault_only_where_nothing_newer_has_come(unreadable: bytes) -> None:
    view = building_of(OF_KEYED, "id")
    view.build(keyed((1, 8, unreadable), (2, 8, row(2, 1))))
    view.build(keyed((1, 16, row(1, 2))))
    assert days(view) == {1: "02", 2: "01"}
    view.begin_building()
    view.build(keyed((1, 16, unreadable), (2, 8, row(2, 1)), (1, 8, row(1, 2))))
    with pytest.raises(LockstepError) as raised:
        days(view)
    assert isinstance(raised.value, EvaluationError) == unreadable.startswith(b"{")
    assert "yesterday" not in str(raised.value)


def test_a_key_that_can_not_be_read_is_a_fault_at_once() -> None:
    broken = TableEvents.from_log(KEYED, [b"1"], [tag(8)], [None], lambda _: Position("", 0, 0))
    with pytest.raises(LockstepError, match="a key that is no JSON object"):
        building_of(OF_KEYED, "id").build(Events([broken]))


@pytest.mark.parametrize("old_key", [b'{"id":"1"}', b'{"code":1}'])
def test_a_row_that_went_with_a_key_of_another_form_is_no_row_of_the_table(old_key: bytes) -> None:
    """Its column had another type then: a copy of the table deletes all keys of that form."""
    gone = TableEvents.from_log(KEYED, [old_key], [tag(8)], [None], lambda _: Position("", 0, 0))
    view = building_of(OF_KEYED, "id")
    view.build(Events([gone]))
    view.build(keyed((1, 16, row(1, 2))))
    assert days(view) == {1: "02"}
    view.step(list(gone), epoch=1, lsn=808, offsets={})
    assert view.position().lsn == 808
    there = TableEvents.from_log(KEYED, [old_key], [tag(8)], [b"{}"], lambda _: Position("", 0, 0))
    view.begin_building()
    with pytest.raises(LockstepError):
        view.build(Events([there]))


def test_of_an_append_only_table_nothing_stays_from_before_it_was_emptied() -> None:
    view = building_of(OF_LOG, "event")
    emptied, stays = logged(16, None, TRUNCATE), logged(24, 2)
    view.build([logged(8, 1), emptied, stays])
    view.build([logged(12, 3), logged(4, None, TRUNCATE), stays])
    view.end_building(epoch=1, lsn=800, offsets={})
    output = view.pending()
    assert output is not None
    assert [change.row for change in output.changes] == [{"event": event_id(tag(24), 0), "n": 2}]
    view.acknowledge(output)
    view.step([logged(13, 4)], epoch=1, lsn=808, offsets={})
    assert view.pending() is None, "what came late is from before as well"


def test_older_events_of_the_same_keys_are_given_up_every_now_and_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(arrivals, "FOLDED_AFTER", 20)
    monkeypatch.setattr(building, "ITEMS_MAX", 7)
    chance, kept, of_table, most = random.Random(1), dict[bytes, tuple[bytes, bytes]](), Arrivals(tmp_path), 0
    told: list[int] = []
    for _ in range(500):
        items: list[Item] = [
            (bytes([chance.randrange(9)]), b"%03d" % chance.randrange(900), b"%d" % number) for number in range(3)
        ]
        for key, at, stored in items:
            kept[key] = max(kept.get(key, (b"", b"")), (at, stored))
        of_table.add(items)
        of_table.fold(told.append)
        most = max(most, of_table.count)
    assert most < 50
    assert told, "who waits is told that it gets on"
    newest = [item for portion in of_table.newest() for item in portion]
    assert newest == [(key, *kept[key]) for key in sorted(kept)]


def test_memory_has_as_much_of_all_tables_as_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "ITEMS_MAX", 50)
    sorters = [Sorter(tmp_path) for _ in range(3)]
    for number in range(200):
        sorters[number % 3].add([(bytes([number]), b"", b"")])
        building.spill_together(sorters)
        assert sum(sorter.held[0] for sorter in sorters) < 50
    assert sum(len(portion) for sorter in sorters for portion in sorter.sorted()) == 200


def test_a_table_of_a_few_large_rows_makes_no_small_parts_of_those_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each part takes memory when they are merged."""
    monkeypatch.setattr(building, "BYTES_MAX", 10_000)
    large, small = Sorter(tmp_path), Sorter(tmp_path)
    large.add([(b"k", b"", bytes(9_900))])
    parts = 0
    for number in range(200):
        before = small.held[0]
        small.add([(bytes([number]), b"", bytes(99))])
        building.spill_together([large, small])
        parts += small.held[0] <= before
    assert parts <= 3
    assert sum(len(portion) for sorter in (large, small) for portion in sorter.sorted()) == 201
