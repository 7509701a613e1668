"""From the records of topics to the values that a restarted capture needs."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.event_format.decode import fitting
from cdc.event_format.encode import TableEncoder, event_value
from cdc.model.errors import LockstepError
from cdc.model.tag import tag_prefix
from cdc.toast import catch_up as module
from cdc.toast.catch_up import catch_up
from cdc.toast.memory import LEFT_OUT_ROW, MemoryStore, Offsets, Position
from cdc.toast.rule import ColumnFacts, ToastRule
from tests.builders import column, table

TOPIC = "shop.public.orders"
ENCODER = TableEncoder(
    table(column("id", "int8"), column("note"), column("scores", "float8", is_array=True), column("code")),
    server="shop", database="app", version="1",
)  # fmt: skip
RULE = ToastRule(
    [
        ColumnFacts("id", "int8", 8, "d"),
        ColumnFacts("note", "text", -1, "i"),
        ColumnFacts("scores", "_float8", -1, "d", element_name="float8", element_length=8),
        ColumnFacts("code", "text", -1, "i"),
    ],
    attributes=4,
)


def event(op: bytes, *fields: bytes | None, before: bytes = b"null") -> bytes:
    after = b"null" if op == b"d" else ENCODER.row(fields)
    return event_value(op, tag_prefix(1, 8), 1, before, after, ENCODER.source(commit_time_ms=1, xid=1), 8, 1)


def record(offset: int, key: bytes, value: bytes | None, partition: int = 0):
    return TOPIC, partition, offset, key, value


LONG = b"n" * 3000
ROW = event(b"r", b"1", LONG, b"{1.50,-0,NaN}", b"x")
VALUES = {"note": b'"' + LONG + b'"', "scores": b'[1.50,-0.0,"NaN"]'}


def test_values_are_kept_as_they_are_in_the_event() -> None:
    memory = MemoryStore()
    assert catch_up([record(7, b"1", ROW)], memory, {TOPIC: RULE}) == 1
    assert memory.get(TOPIC, b"1") == VALUES


def test_nothing_is_known_of_a_row_that_was_left_out() -> None:
    """What came before it on the topic is older than what an update leaves out."""
    memory = MemoryStore()
    left_out = fitting(event(b"u", b"1", b"m" * 5000, None, None), 1000, has_key=True)
    catch_up([record(7, b"1", ROW), record(8, b"1", left_out)], memory, {TOPIC: RULE})
    assert memory.get(TOPIC, b"1") == LEFT_OUT_ROW


def test_a_value_of_a_small_row_is_kept_since_it_may_have_been_moved_when_the_row_was_larger() -> None:
    memory = MemoryStore()
    catch_up([record(7, b"1", event(b"u", b"1", b"n" * 25, None, b"x"))], memory, {TOPIC: RULE})
    assert memory.get(TOPIC, b"1") == {"note": b'"' + b"n" * 25 + b'"'}


@pytest.mark.parametrize("gone", [None, event(b"d", before=b'{"id":1}'), event(b"u", b"1", b"short", None, b"x")])
def test_a_row_that_is_gone_or_small_is_forgotten(gone: bytes | None) -> None:
    memory = MemoryStore()
    catch_up([record(7, b"1", ROW), record(8, b"2", ROW), record(9, b"1", gone)], memory, {TOPIC: RULE})
    assert (memory.get(TOPIC, b"1"), memory.get(TOPIC, b"2")) == (None, VALUES)


def test_the_old_row_in_an_event_doesnt_matter() -> None:
    memory = MemoryStore()
    old = ENCODER.row((b"1", b"o" * 4000, None, b'"after":{"note":1}'))
    catch_up([record(7, b"1", event(b"u", b"1", LONG, b"{1.50,-0,NaN}", b"x", before=old))], memory, {TOPIC: RULE})
    assert memory.get(TOPIC, b"1") == VALUES


def test_offsets_are_those_after_the_last_records_and_there_is_no_position() -> None:
    memory = MemoryStore()
    memory.commit((5, 5), {(TOPIC, 2): 3})
    catch_up([record(7, b"1", ROW), record(3, b"2", ROW, 1), record(9, b"1", None)], memory, {TOPIC: RULE})
    assert (memory.offsets(), memory.position()) == ({(TOPIC, 0): 10, (TOPIC, 1): 4, (TOPIC, 2): 3}, None)


def test_topics_without_a_rule_are_passed_over() -> None:
    memory = MemoryStore()
    catch_up([record(7, b"1", b"anything")], memory, {})
    assert (memory.get(TOPIC, b"1"), memory.offsets()) == (None, {(TOPIC, 0): 8})


rows = st.tuples(
    st.just(b"1"), *[st.none() | st.text().map(str.encode) | st.sampled_from([b',"source":{', b'"after":{'])] * 2
)


@given(
    rows,
    st.sampled_from(
        [b"null", b'{"id":1}', b'{"after":{"note":1},"source":{}}', ENCODER.row([b"1", b'",', None, None])]
    ),
)
def test_the_row_is_found_wherever_it_is(row: tuple[bytes | None, ...], before: bytes) -> None:
    value = event(b"u", row[0], row[1], None, row[2], before=before)
    values = {name: orjson.dumps(member) for name, member in orjson.loads(value)["after"].items()}
    expected = {name: json for name, json in values.items() if name != "id" and json != b"null" and len(json) + 4 > 24}
    memory = MemoryStore()
    catch_up([record(7, b"1", value)], memory, {TOPIC: RULE})
    assert (memory.get(TOPIC, b"1") or {}) == expected


class Interrupted(Exception):
    pass


class Counting(MemoryStore):
    """Counts what is held between commits."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0

    def put(self, topic: str, key: bytes, values: dict[str, bytes]) -> None:  # type: ignore[override]
        super().put(topic, key, values)
        self.held += sum(map(len, values.values()))
        self.most = max(self.most, self.held)

    def commit(self, position: Position | None, bounds: Offsets | None = None) -> None:
        super().commit(position, bounds)
        self.held = 0


def test_it_holds_a_bounded_amount_and_goes_on_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 20_000)
    records = [record(offset, b"%d" % (offset % 70), ROW if offset % 3 else None, offset % 2) for offset in range(300)]

    def until(end: int) -> object:
        yield from records[:end]
        raise Interrupted

    memory = Counting()
    for end in (100, 150, 260):
        with pytest.raises(Interrupted):
            catch_up(until(end), memory, {TOPIC: RULE})  # type: ignore[arg-type]
        memory.discard()
        memory.held = 0
        offsets = memory.offsets()
        records = [record for record in records if record[2] >= offsets.get((TOPIC, record[1]), 0)]
        assert len(records) < 300
    catch_up(records, memory, {TOPIC: RULE})
    expected = MemoryStore()
    catch_up([record(o, b"%d" % (o % 70), ROW if o % 3 else None, o % 2) for o in range(300)], expected, {TOPIC: RULE})
    keys = [b"%d" % number for number in range(70)]
    assert [memory.get(TOPIC, key) for key in keys] == [expected.get(TOPIC, key) for key in keys]
    assert memory.most < 20_000 + 2 * len(LONG)


@pytest.mark.parametrize("value", [b"{}", b'{"op":"u"}', b'{"op":"u","after":1}', b'{"op":"u","tag":"'])
def test_what_isnt_an_event_is_refused_with_its_place(value: bytes) -> None:
    with pytest.raises(LockstepError, match=r"shop.public.orders/0/7 is not an event"):
        catch_up([record(7, b"1", value)], MemoryStore(), {TOPIC: RULE})
