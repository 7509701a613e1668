"""cdc.capture.toast_rows: which values of a row are kept, under which column, and when they are forgotten."""

from cdc.capture.published_table import PublishedTable
from cdc.capture.toast_rows import ToastRows
from cdc.event_format.encode import TableEncoder
from cdc.toast.memory import MemoryStore
from cdc.toast.rule import ColumnFacts, ToastRule
from tests.builders import column, table

TOPIC = "shop.public.orders"
KEY = b'{"id":1}'
LARGE = b"x" * 5000
FACTS = (
    ColumnFacts("id", "int8", 8, "d"),
    ColumnFacts("note", "text", -1, "i"),
    ColumnFacts("body", "text", -1, "i"),
)
SHAPE = table(column("id", "int8"), column("note"), column("body"))
RULE = ToastRule(FACTS, attributes=3)


def published(rule: ToastRule | None = RULE) -> PublishedTable:
    return PublishedTable(TOPIC, TableEncoder(SHAPE, server="shop", database="app", version="1"), toast=rule)


def test_nothing_stays_known_of_a_table_whose_rows_are_not_followed_any_more() -> None:
    rows = ToastRows(MemoryStore())
    rows.remember(published(), KEY, (b"1", LARGE, None))
    rows.described(published())
    assert rows.known(published(), KEY, [1])
    rows.described(published(rule=None))
    assert rows.known(published(), KEY, [1]) == {}


def test_a_value_that_an_update_left_out_stays_known() -> None:
    rows = ToastRows(MemoryStore())
    rows.remember(published(), KEY, (b"1", LARGE, None))
    known = rows.known(published(), KEY, [1])
    rows.remember(published(), KEY, (b"1", None, b"short"), known, [1])
    assert rows.known(published(), KEY, [1, 2]) == known


def test_a_value_of_a_row_that_was_read_is_kept_also_where_the_row_is_short() -> None:
    rows = ToastRows(MemoryStore())
    middling = b"z" * 100  # an earlier version of the row may have moved it
    rows.remember(published(), KEY, (b"1", middling, None))
    assert rows.known(published(), KEY, [1]) == {}
    rows.remember_read(published(), KEY, (b"1", middling, None))
    assert rows.known(published(), KEY, [1]) == {1: b'"%b"' % middling}


def test_a_row_that_is_gone_is_forgotten() -> None:
    rows = ToastRows(MemoryStore())
    rows.remember(published(), KEY, (b"1", LARGE, None))
    rows.forget(published(), KEY)
    assert rows.known(published(), KEY, [1]) == {}


def test_without_a_rule_nothing_is_kept() -> None:
    memory = MemoryStore()
    rows, unruled = ToastRows(memory), published(None)
    rows.remember(unruled, KEY, (b"1", LARGE, None))
    rows.remember_read(unruled, KEY, (b"1", LARGE, None))
    rows.forget(unruled, KEY)
    assert rows.known(unruled, KEY, [1]) == {}
    assert memory.get(TOPIC, KEY) is None
