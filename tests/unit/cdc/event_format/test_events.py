"""The bytes of an event."""

import json

import pytest

from cdc.event_format.decode import (
    LEFT_OUT,
    RowReader,
    after_of,
    before_of,
    commit_time_ms_of,
    fitting,
    op_of,
    parse_value,
    row_event,
    tag_of,
    why_left_out,
)
from cdc.event_format.encode import TableEncoder, event_value
from cdc.model.errors import LockstepError, UnsupportedChange
from cdc.model.event import Position, RowEvent
from cdc.model.table import ReplicaIdentity, Table, TableName
from cdc.model.tag import Tag, tag_prefix
from cdc.protocol.pgoutput import UNCHANGED
from tests.builders import ORDERS, column, table

AT = Position("shop.public.orders", 2, 17)


def encoder(shape: Table) -> TableEncoder:
    return TableEncoder(shape, server="shop", database="app", version="1")


def value(op: bytes = b"u", *, before: bytes = b"null", after: bytes = b'{"id":1}', seq: int = 3) -> bytes:
    source = encoder(table()).source(commit_time_ms=1000, xid=700)
    return event_value(op, tag_prefix(1, 0x1000), seq, before, after, source, 0x0FF8, 1000)


def test_a_key_follows_the_order_of_the_key_not_of_the_columns() -> None:
    shape = table(column("a", "int4"), column("b", "text"), column("c", "int4"), key=("c", "a"))
    assert encoder(shape).key((b"1", b"x", b"3")) == b'{"c":3,"a":1}'


@pytest.mark.parametrize(("fields", "name"), [((b"secret", None), "b"), ((None, b"secret"), "a")])
def test_a_null_in_a_key_is_refused_without_showing_the_row(fields: tuple[bytes | None, ...], name: str) -> None:
    shape = table(column("a"), column("b", "int4"), key=("a", "b"))
    with pytest.raises(UnsupportedChange, match=f"a row of public.orders is null in {name}") as caught:
        encoder(shape).key(fields)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["100%", "%s", "%%b", 'a"b', "back\\slash", "naïve", "😀", "a\nb", ""])
def test_a_column_may_have_any_name(name: str) -> None:
    shape = table(column("id", "int4"), column(name))
    assert json.loads(encoder(shape).row((b"1", b"x"))) == {"id": 1, name: "x"}


def test_an_append_only_table_that_lost_its_last_column_still_has_rows() -> None:
    bare = encoder(Table(ORDERS, (), (), ReplicaIdentity.FULL))
    assert (bare.key(()), bare.row(())) == (b"{}", b"{}")


@pytest.mark.parametrize("op", [b"r", b"c", b"u", b"d"])
def test_op_and_tag_are_read_without_parsing(op: bytes) -> None:
    assert op_of(value(op)) == op
    assert tag_of(value(op, seq=3)).decode() == str(Tag(1, 0x1000, 3))


def test_what_is_no_event_has_no_op() -> None:
    assert op_of(b"") == op_of(b'{"id":"u"}') == b""


def test_an_event_is_debeziums_envelope() -> None:
    shape = table()
    assert json.loads(value(before=b'{"id":1}', after=b'{"id":1,"note":"x"}')) == {
        "op": "u",
        "tag": str(Tag(1, 0x1000, 3)),
        "before": {"id": 1},
        "after": {"id": 1, "note": "x"},
        "source": {
            "version": "1",
            "connector": "postgresql",
            "name": "shop",
            "db": "app",
            "schema": "public",
            "table": "orders",
            "schema_id": shape.schema_id,
            "snapshot": "false",
            "ts_ms": 1000,
            "txId": 700,
            "lsn": 0x0FF8,
        },
        "ts_ms": 1000,
    }


def test_odd_table_names_survive_in_the_source_block() -> None:
    shape = table(name=TableName('S "1" %', "täble\\"))
    source = json.loads(encoder(shape).source(commit_time_ms=1, xid=1) + b"1}")
    assert (source["schema"], source["table"]) == ('S "1" %', "täble\\")


def test_an_event_and_a_tombstone_read_back_and_a_tombstone_of_somebody_else_is_refused() -> None:
    tag = str(Tag(1, 0x1000, 3))
    event = row_event(ORDERS, b'{"id":1}', value(after=b'{"id":1,"note":"x"}'), None, AT)
    assert event == RowEvent(ORDERS, {"id": 1}, tag, {"id": 1, "note": "x"}, AT)
    assert row_event(ORDERS, b'{"id":1}', None, tag, AT) == RowEvent(ORDERS, {"id": 1}, tag, None, AT)
    with pytest.raises(LockstepError, match="tombstone without a tag on"):
        row_event(ORDERS, b'{"id":1}', None, None, AT)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"1", b'{"op":"u"}'])
def test_a_value_that_is_no_event_is_refused(content: bytes) -> None:
    with pytest.raises(LockstepError, match="not an event"):
        parse_value(content)


def test_a_key_that_is_no_json_is_refused_with_its_position() -> None:
    with pytest.raises(LockstepError, match="partition 2, offset 17"):
        row_event(ORDERS, b"{", value(), None, AT)


@pytest.mark.parametrize(
    "before",
    [b"null", b'{"id":1,"note":"}\\",\\"after\\":{\\"source\\":{\\"version\\":\\"1\\"}"}'],
    ids=["none", "row"],
)
@pytest.mark.parametrize("after", [b"null", b'{"id":1,"note":"{,\\"source\\":{\\"version\\":"}'], ids=["none", "row"])
def test_the_row_is_found_in_its_event_whatever_it_holds(before: bytes, after: bytes) -> None:
    encoder = TableEncoder(table(), server="s", database="d", version="1")
    value = event_value(b"u", tag_prefix(1, 2), 3, before, after, encoder.source(commit_time_ms=4, xid=5), 6, 7)
    assert after_of(value) == after
    assert before_of(value) == before


def test_a_row_can_be_given_partly_as_json() -> None:
    encoder = TableEncoder(table(), server="s", database="d", version="1")
    assert encoder.row_with((b"1", UNCHANGED), {1: b'"kept"'}) == encoder.row((b"1", b"kept"))


def test_a_reader_takes_rows_and_shapes_out_of_events_of_several_shapes() -> None:
    shapes = [table(), table(column("id", "int8"), column("more"))]
    encoders = [TableEncoder(shape, server="s", database="d", version="1") for shape in shapes]
    reader = RowReader()
    for shape, encoder in [*zip(shapes, encoders, strict=True)] * 2:
        after = b'{"id":1,"note":"\\",\\"schema_id\\":\\"x"}'
        source = encoder.source(commit_time_ms=4, xid=5)
        put = event_value(b"u", tag_prefix(1, 2), 3, b"null", after, source, 6, 7)
        gone = event_value(b"d", tag_prefix(1, 2), 3, b'{"id":1}', b"null", source, 6, 7)
        assert reader.read(put) == (after, shape.schema_id)
        assert reader.read(gone) == (None, shape.schema_id)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"op":"u"}', b'{"op":"u","tag":"' + b"0" * 28 + b'"}'])
def test_a_reader_refuses_what_is_no_event(content: bytes) -> None:
    with pytest.raises(LockstepError, match="not an event"):
        RowReader().read(content)


def of_size(op: bytes, before: bytes, after: bytes) -> bytes:
    source = TableEncoder(table(), server="s", database="d", version="1").source(commit_time_ms=4, xid=5)
    return event_value(op, tag_prefix(1, 2), 3, before, after, source, 6, 7)


LARGE = b'{"id":1,"note":"%b"}' % (b'},\\"source\\":{\\"version\\":' * 1000)
SMALL = b'{"id":1,"note":"x"}'


@pytest.mark.parametrize(("op", "after", "has_key"), [(b"u", SMALL, True), (b"d", b"null", True), (b"u", SMALL, False)])
def test_an_event_fits_without_its_old_row_where_that_is_what_is_large(op: bytes, after: bytes, has_key: bool) -> None:
    assert fitting(of_size(op, LARGE, after), 1000, has_key=has_key) == of_size(op, b"null", after)


@pytest.mark.parametrize("op", [b"r", b"c", b"u"])
@pytest.mark.parametrize("before", [b"null", LARGE])
def test_a_row_that_does_not_fit_is_neither_a_row_nor_a_deletion(op: bytes, before: bytes) -> None:
    value = of_size(op, before, LARGE)
    left_out = fitting(value, 1000, has_key=True)
    assert len(left_out) < 500
    assert op_of(left_out) == LEFT_OUT
    assert tag_of(left_out) == tag_of(value)
    assert (commit_time_ms_of(left_out), RowReader().read(left_out)[1]) == (7, table().schema_id)
    assert f"{len(value):,} bytes" in why_left_out(left_out)
    with pytest.raises(LockstepError, match="too large"):
        parse_value(left_out)


def test_a_delete_of_a_table_without_a_key_is_nothing_without_its_row() -> None:
    assert op_of(fitting(of_size(b"d", LARGE, b"null"), 1000, has_key=False)) == LEFT_OUT
