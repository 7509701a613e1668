"""Events that wait while a view's state is built: the newest of each key; without a key, all since a truncate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.model.event import Events, Position, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import Tag
from jobs.executor.append_only import event_key, stored_row
from jobs.executor.view_inbox import Inbox

KEYED, LOG = TableName("public", "keyed"), TableName("public", "log")


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    made = Inbox(tmp_path / "inbox", [KEYED, LOG], append_only=[LOG])
    yield made
    made.close()


def tag(lsn: int) -> str:
    return str(Tag(1, lsn, 1))


def add(inbox: Inbox, table: TableName, *events: tuple[bytes, str, bytes | None]) -> None:
    keys, tags, rows = map(list, zip(*events, strict=True))
    inbox.add(Events([TableEvents.from_log(table, keys, tags, rows, lambda _: Position("", 0, 0))]))


def logged(lsn: int, operation: bytes, row: bytes | None) -> tuple[bytes, str, bytes | None]:
    key = event_key(tag(lsn), 0)
    return key, tag(lsn), stored_row(key, b'{"op":"' + operation, row)


def kept(inbox: Inbox, table: TableName) -> list[bytes | None]:
    return [row for portion in inbox.portions(2) if portion.table == table for row in portion.rows]


def test_the_newest_row_of_each_key_stays_and_a_deleted_one_doesnt(inbox: Inbox) -> None:
    add(inbox, KEYED, (b"1", tag(8), b"old"), (b"2", tag(8), b"there"), (b"3", tag(8), b"gone"))
    add(inbox, KEYED, (b"1", tag(16), b"new"), (b"3", tag(16), None), (b"2", tag(1), b"older"))
    assert kept(inbox, KEYED) == [b"new", b"there"]


def test_of_an_append_only_table_nothing_stays_from_before_it_was_emptied(inbox: Inbox) -> None:
    late = logged(12, b"c", b'{"a":"late"}')
    add(inbox, LOG, logged(8, b"c", b'{"a":1}'), logged(16, b"t", None), logged(24, b"c", b'{"a":2}'))
    add(inbox, LOG, late)
    rows = [row or b"" for row in kept(inbox, LOG)]
    assert [b"truncate" in row for row in rows] == [True, False]
    assert b'"a":2' in rows[1]


def test_a_row_that_only_looks_like_a_truncate_is_none(inbox: Inbox) -> None:
    add(inbox, LOG, logged(8, b"c", b'{"a":1}'), logged(16, b"c", b'{"_operation":"truncate"}'))
    assert len(kept(inbox, LOG)) == 2
