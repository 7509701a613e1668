"""sinks.wrappers.column_names"""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import Column, Table, TableName
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.wrappers.column_names import keep_names, load_names, save_names
from sinks.wrappers.projecting import ProjectingSink
from sinks.wrappers.projection import Projection
from sinks.wrappers.renaming import Renaming
from tests.builders import ORDERS, batch, column, table, upsert


def numbered(**names: int) -> Table:
    def made(name: str, number: int) -> Column:
        return replace(column(name, "int8" if name == "id" else "text"), number=number)

    return replace(table(*(made(name, number) for name, number in names.items())), oid=7)


def opened(store: MemoryStore, renaming: Renaming | None = None) -> ProjectingSink:
    return ProjectingSink(open_memory(store), Projection(), 1, renaming=renaming, keeps_names=True)


def test_a_column_that_the_source_renames_goes_on_under_its_name() -> None:
    first = keep_names(Renaming(), [numbered(id=1, note=2)], None)
    assert first.renaming.names == {}
    second = keep_names(Renaming(), [numbered(id=1, remark=2, more=3)], first)
    assert second.renaming.names == {ORDERS: {"remark": "note"}}
    assert second.numbers == {ORDERS: {1: "id", 2: "note", 3: "more"}}
    assert second.outdated(Renaming()) == ["public.orders.remark is 'note' here"]
    third = keep_names(Renaming(), [numbered(id=1, remark=2, another=3)], second)
    assert third.renaming.names == {ORDERS: {"remark": "note", "another": "more"}}


def test_names_that_are_configured_come_first() -> None:
    configured = Renaming({ORDERS: {"note": "text"}})
    first = keep_names(configured, [numbered(id=1, note=2)], None)
    second = keep_names(configured, [numbered(id=1, remark=2)], first)
    assert second.renaming.names[ORDERS]["remark"] == "text"


def test_a_table_that_is_not_among_the_shapes_stays_as_it_is_known() -> None:
    """Such as one that is held: it goes on under its names, also where it was made again meanwhile."""
    other = replace(numbered(id=1), name=TableName("public", "other"), oid=8)
    configured = Renaming({ORDERS: {"more": "amount"}})
    first = keep_names(configured, [numbered(id=1, note=2, more=3), other], None)
    second = keep_names(configured, [numbered(id=1, remark=2, more=3), other], first)
    assert second.renaming.names == {ORDERS: {"more": "amount", "remark": "note"}}
    assert keep_names(configured, [other], second) == second
    assert keep_names(configured, [], second) == second
    anew = replace(numbered(id=1, remark=2, more=3), oid=99)
    third = keep_names(configured, [anew, other], keep_names(configured, [other], second))
    assert third.renaming == second.renaming


def test_readers_see_no_difference_when_the_source_renames_a_column() -> None:
    store = MemoryStore()
    before, after = numbered(id=1, note=2), numbered(id=1, remark=2)
    sink = opened(store)
    sink.prepare([before])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    with pytest.raises(LockstepError, match="seems to be renamed"):
        MemorySink(store, 1).prepare([after])
    opened(store).prepare([after])
    opened(store).apply(batch(upsert({"id": 2, "remark": "b"}, 2)))  # another process, which prepares nothing
    rows = {stored.key["id"]: stored.row for stored in MemorySink(store, 1).scan(before)}
    assert rows == {1: {"id": 1, "note": "a"}, 2: {"id": 2, "note": "b"}}
    assert [stored.row for stored in opened(store).rows(after, [{"id": 1}])] == [{"id": 1, "remark": "a"}]


def test_columns_that_shift_their_names_all_keep_theirs() -> None:
    first = keep_names(Renaming(), [numbered(id=1, b=2, a=3)], None)
    second = keep_names(Renaming(), [numbered(id=1, c=2, b=3)], first)
    assert second.renaming.names == {ORDERS: {"c": "b", "b": "a"}}


def test_a_column_of_the_key_is_for_the_destination_to_judge() -> None:
    before = numbered(id=1, note=2)
    first = keep_names(Renaming(), [before], None)
    after = replace(numbered(ident=1, note=2), key=("ident",))
    assert keep_names(Renaming(), [after], first).renaming.names == {}


def test_numbers_of_a_table_that_was_made_again_say_nothing() -> None:
    first = keep_names(Renaming(), [numbered(id=1, name=2, email=3)], None)
    again = replace(numbered(id=1, name=2, phone=3), oid=8)
    assert keep_names(Renaming(), [again], first).renaming.names == {}


def test_numbers_of_a_source_that_was_put_back_say_nothing_and_names_stay() -> None:
    first = keep_names(Renaming(), [numbered(id=1, name=2, email=3)], None)
    second = keep_names(Renaming(), [numbered(id=1, title=2, email=3)], first)
    put_back = replace(numbered(id=1, title=2, phone=3), epoch=1)
    third = keep_names(Renaming(), [put_back], second)
    assert third.renaming.names == {ORDERS: {"title": "name"}}
    assert keep_names(Renaming(), [replace(put_back, columns=put_back.columns[:2])], third).renaming == third.renaming


def test_what_the_destination_refuses_can_be_undone_at_the_source() -> None:
    store = MemoryStore()
    before = numbered(id=1, a=2)
    opened(store).prepare([before])
    with pytest.raises(LockstepError):
        opened(store).prepare([numbered(id=1, b=2, a=3)])
    opened(store).prepare([before])


def test_who_writes_beside_a_job_uses_the_names_that_it_has_given() -> None:
    store = MemoryStore()
    opened(store).prepare([numbered(id=1, note=2)])
    beside = opened(store)
    beside.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    opened(store).prepare([numbered(id=1, remark=2)])
    beside.fence()
    beside.apply(batch(upsert({"id": 2, "remark": "b"}, 2)))
    assert [stored.row for stored in MemorySink(store, 1).rows(table(), [{"id": 2}])] == [{"id": 2, "note": "b"}]


def test_what_is_kept_is_read_again() -> None:
    records = MemorySink(MemoryStore())
    assert load_names(records, 1) is None
    kept = keep_names(Renaming({ORDERS: {"note": "text"}}), [numbered(id=1, note=2)], None)
    save_names(records, 1, kept)
    assert load_names(records, 1) == kept
