"""The records of the control topics read back as they were written."""

from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest

from cdc.model.errors import ForeignRecord, LockstepError
from cdc.model.table import TableName
from cdc.protocol.control_records import (
    FORMAT,
    CaptureState,
    Gap,
    ProgressRecord,
    PublishedPart,
    SchemaRecord,
    ShapeChange,
    SnapshotPhase,
    StreamedTransaction,
    TableCopy,
    TableTexts,
    TopicIdentity,
    is_schema_key,
    selection_of,
)
from cdc.protocol.membership import Recorded
from tests.builders import table
from tests.history import state

WHAT = "the record at offset 12 of topic shop.__x"


def test_a_state_reads_back_as_it_was_written() -> None:
    topics = {"shop.public.orders": TopicIdentity("Uo3yZ2JnQ8G1vB7fV0s4hA", 6)}
    written = replace(state(), phase=SnapshotPhase.COPYING, copied={TableName('S "1"', "é"): 3}, topics=topics)
    assert CaptureState.from_bytes(written.to_bytes(), WHAT) == written
    paused = replace(written, first_copy_paused=True)
    assert CaptureState.from_bytes(paused.to_bytes(), WHAT) == paused
    captured = (TableName('S "1"', "é"), TableName("public", "orders"))
    told = replace(written, captured=captured, append_only=captured[1:])
    assert CaptureState.from_bytes(told.to_bytes(), WHAT) == told
    none_left, untold = replace(written, captured=()), replace(written, captured=None)
    assert CaptureState.from_bytes(none_left.to_bytes(), WHAT) == none_left
    assert CaptureState.from_bytes(untold.to_bytes(), WHAT) == untold, "as an earlier version has written it"


def test_the_texts_of_earlier_states_change_no_bytes() -> None:
    orders, items = TableName("public", "orders"), TableName("public", "items")
    first = replace(
        state(),
        copied={orders: 3, items: 4},
        memberships={orders: "a", items: "b"},
        topics={"shop.public.orders": TopicIdentity("Uo3yZ2JnQ8G1vB7fV0s4hA", 6)},
    )
    states = [
        first,
        replace(first, commit_lsn=0x3000),
        first.to_be_copied([orders]),
        first.never_copied([orders]),
        replace(first, memberships={orders: "a", items: "c"}),
        replace(first, topics={}),
        replace(first, captured=(orders,)),
        replace(first, captured=(items,)),
        replace(first, captured=(items,), append_only=(items,)),
        replace(first, captured=()),
        first,
    ]
    texts = TableTexts()
    assert [one.to_bytes(texts) for one in states] == [one.to_bytes() for one in states]
    assert [CaptureState.from_bytes(one.to_bytes(texts), WHAT) for one in states] == states


def test_a_state_of_which_no_table_is_to_be_copied_stays_the_same_one() -> None:
    """So that its tables are known to be those of the state before."""
    orders, items = TableName("public", "orders"), TableName("public", "items")
    before = replace(state(), copied={orders: 3}, memberships={orders: "a"})
    assert before.to_be_copied([items]).never_copied([items]) is before
    moved = replace(before, commit_lsn=1).never_copied(())
    assert (moved.copied, moved.memberships) == (before.copied, before.memberships)
    assert moved.memberships is before.memberships


def test_a_begun_transaction_counts_as_published_and_is_read_again() -> None:
    before = state()
    last = StreamedTransaction(0x2000, 700, 5000, only_local=False)
    begun = StreamedTransaction(0x200_0000, 701, 6000, only_local=False)
    moved = {"commit_lsn": 0x2000, "seq": 7, "end_lsn": 0x2030, "commit_time_ms": 5}
    after = replace(before, **moved, last_transaction=last, begun=begun)
    assert after.published_lsn == 0x200_0000  # of a TRUNCATE, before its last delete counts
    assert CaptureState.from_bytes(after.to_bytes(), WHAT) == after
    assert (before.resume_lsn, after.resume_lsn) == (before.end_lsn, 0x2000)


def test_what_is_published_of_a_transaction_is_beside_what_earlier_versions_read_of_it() -> None:
    begun = StreamedTransaction(0x200_0000, 701, 6000, only_local=False, part=PublishedPart(4, 5))
    written = replace(state(), begun=begun).to_bytes()
    assert orjson.loads(written)["begun"] == [0x200_0000, 701, 6000, False]
    assert CaptureState.from_bytes(written, WHAT).begun == begun
    assert "begun_part" not in orjson.loads(replace(state(), begun=begun._replace(part=None)).to_bytes())


def test_a_gap_begins_where_all_was_published_and_ends_where_the_next_slot_begins() -> None:
    noticed = state().with_gap("slot s is gone", now_ms=5)
    first = Gap(state().published_lsn, 0, 5, "slot s is gone")
    assert noticed.gaps == (first,)
    assert noticed.with_gap("another reason", now_ms=6) == noticed
    went_on = noticed.handed_over(0x9000, now_ms=7)
    assert went_on.gaps == (first._replace(to_lsn=0x9000),)
    assert CaptureState.from_bytes(went_on.to_bytes(), WHAT) == went_on
    again = went_on.with_gap("slot s is lost", now_ms=8)
    assert again.gaps == (*went_on.gaps, Gap(0x9000, 0, 8, "slot s is lost"))
    assert again.open_gap == again.gaps[-1]
    assert went_on.open_gap is None


def test_a_state_without_a_gap_is_one_of_an_earlier_release() -> None:
    fields = orjson.loads(state().to_bytes())
    del fields["gaps"]
    assert CaptureState.from_bytes(orjson.dumps(fields), WHAT) == state()


def test_progress_says_with_which_tables_it_was_written() -> None:
    first, other = table().name, TableName("public", "items")
    assert selection_of([first, other]) == selection_of([other, first]) != selection_of([first])
    assert selection_of([TableName("a", "b.c")]) != selection_of([TableName("a.b", "c")])
    assert selection_of([]) not in ("", selection_of([first])), "whoever has tables learns that the last one left"
    assert selection_of(None) == "", "as in records of an earlier release"
    assert ProgressRecord.from_bytes(ProgressRecord(1, 2, {}).to_bytes(), WHAT).selection == ""
    texts, captured = TableTexts(), replace(state(), captured=(first,))
    assert [texts.selection(each) for each in (captured, captured, state())] == [selection_of([first])] * 2 + [""]


@pytest.mark.parametrize("gaps", [[Gap(1, 2, 1 << 62, "why")], [Gap(1, 0, 3, "why"), Gap(4, 5, 6, "why")]])
def test_a_gap_of_no_time_and_one_that_no_recovery_closed_are_foreign(gaps: list[Gap]) -> None:
    written = replace(state(), gaps=tuple(gaps))
    with pytest.raises(ForeignRecord, match=WHAT):
        CaptureState.from_bytes(written.to_bytes(), WHAT)


RECORDS = {
    "__state": replace(
        state(),
        memberships={table().name: '["16384", "1", "", {}]'},
        topics={"shop.public.orders": TopicIdentity("Uo3yZ2JnQ8G1vB7fV0s4hA", 6)},
        last_transaction=StreamedTransaction(1, 2, 3, only_local=False),
        gaps=(Gap(1, 2, 3, "why"),),
    ),
    "__progress": ProgressRecord(1, 1000, {"shop.public.orders": (4,)}, 2, ("shop.public.items",), "5a0c"),
    "__schema": SchemaRecord(table(), 1, ShapeChange({"id": "nr"}, {"id": 1}, "why"), 2, 3),
}


@pytest.mark.parametrize("topic", RECORDS)
@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_record_of_another_format_is_refused_with_the_way_out(topic: str, other: int) -> None:
    record = RECORDS[topic]
    fields = orjson.loads(record.to_bytes())
    assert fields["format"] == FORMAT
    with pytest.raises(LockstepError, match=f"{WHAT} was written by another version") as caught:
        type(record).from_bytes(orjson.dumps(fields | {"format": other}), WHAT)
    assert not isinstance(caught.value, ForeignRecord)
    assert "pipeline of another name" in (caught.value.hint or "")


@pytest.mark.parametrize("topic", RECORDS)
@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b"null", b"\xff", b"[" * 2000, b"{}", b'{"format":null}', b'{"format":"4"}']
)
def test_what_no_version_wrote_is_a_foreign_record(topic: str, content: bytes | None) -> None:
    with pytest.raises(ForeignRecord, match=WHAT):
        type(RECORDS[topic]).from_bytes(content, WHAT)


DEEP = orjson.Fragment(b"[" * 600 + b"]" * 600)
FORGED = [None, True, -1, 1.5, 1 << 63, 1e300, "x", "", [], ["x"], [1], [[1]], [["x"]], [["a", "b", "c"]], [{}]]
FORGED += [{}, {"x": 1}, {"x": ["y"]}, {"x": [-1]}, {"id": DEEP}, [{"id": DEEP}], DEEP]


def _parts(value: object) -> Iterator[tuple[object, object]]:
    """Every container within a JSON value, with each of its keys or indexes."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _parts(value[key])


@pytest.mark.parametrize("topic", RECORDS)
def test_a_record_with_anything_in_any_place_is_read_or_is_foreign(topic: str) -> None:
    record = RECORDS[topic]
    places = len(list(_parts(orjson.loads(record.to_bytes()))))
    for place in range(places):
        for forged in FORGED:
            fields = orjson.loads(record.to_bytes())
            container, key = list(_parts(fields))[place]
            container[key] = forged  # type: ignore[index]
            _read(type(record), fields)
        fields = orjson.loads(record.to_bytes())
        container, key = list(_parts(fields))[place]
        del container[key]  # type: ignore[attr-defined]
        _read(type(record), fields)


def _read(kind: type[CaptureState | ProgressRecord | SchemaRecord], fields: object) -> None:
    try:
        read = kind.from_bytes(orjson.dumps(fields), WHAT)
    except LockstepError:
        return
    # What reads it may rely on what it is.
    assert kind.from_bytes(read.to_bytes(), WHAT) == read
    if isinstance(read, SchemaRecord):
        assert is_schema_key(read.key())
        assert [column.name for column in read.table.key_columns] == list(read.table.key)
    if isinstance(read, CaptureState):
        for told in read.memberships.values():
            Recorded.from_text(told)


@pytest.mark.parametrize("key", [b"", b"x", b"7", b"{}", b"[]", b'["a","b"]', b'["a","b",1,2,3]', b"\xff"])
def test_the_key_of_a_shape_is_known(key: bytes) -> None:
    assert not is_schema_key(key)
    assert is_schema_key(b'["public","orders","0a1b2c3d"]')


def test_a_progress_record_reads_back_as_it_was_written() -> None:
    written = ProgressRecord(0x16_B374D848, 1000, {"shop.public.orders": (4, 0, 17)})
    assert ProgressRecord.from_bytes(written.to_bytes(), WHAT) == written


def test_a_schema_record_without_a_change_reads_as_one_that_has_none() -> None:
    written = orjson.loads(SchemaRecord(table(), 7).to_bytes())
    for name in ("renamed", "defaults", "rewritten", "from_seq"):
        del written[name]
    assert SchemaRecord.from_bytes(orjson.dumps(written), WHAT) == SchemaRecord(table(), 7)


def test_a_table_whose_copy_somebody_asks_for_completes_updates_until_something_else_speaks_for_it() -> None:
    name = table().name
    asked = state().asked_to_copy(name)
    assert name not in asked.copied
    assert asked.outdated([name]) == set()
    assert asked.to_be_copied([name]).outdated([name]) == {name}
    assert state().outdated([name]) == set()
    assert state().to_be_copied([name]).outdated([name]) == {name}


def test_a_table_has_its_copy_until_another_one_begins_or_has_to() -> None:
    name = table().name
    asked = state().asked_to_copy(name)
    assert state().has_copy(name)
    assert asked.has_copy(name)
    assert not asked.to_be_copied([name]).has_copy(name)
    assert not asked.to_be_copied([name]).asked_to_copy(name).has_copy(name)
    assert not asked.with_copy(name, TableCopy(since=7, copied_before=3)).has_copy(name)


def test_a_table_that_is_being_copied_beside_the_stream_isnt_outdated() -> None:
    name = table().name
    begun = state().to_be_copied([name]).with_copy(name, TableCopy(since=7))
    assert begun.outdated([name]) == set()


def test_a_shape_of_another_epoch_takes_nobodys_place() -> None:
    orders = table()
    keys = {SchemaRecord(orders, 8, from_seq=1, from_epoch=epoch).key() for epoch in (0, 1, 2)}
    assert len(keys) == 3
    name = orders.name
    assert SchemaRecord(orders, 8).key() == orjson.dumps([name.schema, name.name, orders.schema_id, 8, 0])
