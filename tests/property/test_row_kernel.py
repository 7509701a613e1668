"""Whatever frames come, capture does the same with the compiled kernel as without it: events, batches, states, errors.

Python is the reference. The frames are golden messages, rows of random tables, and all of these cut and damaged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.event_format.column_types import SCALARS
from cdc.event_format.compiled import RowEncoding
from cdc.event_format.encode import TableEncoder
from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from cdc.model.table import Table
from cdc.protocol.pgoutput import UNCHANGED, Commit, Message, Relation, decode
from cdc.toast.rule import ColumnFacts, ToastRule
from snapshot.row_events import RowEvents
from tests.builders import column, table
from tests.copy_lines import copy_line
from tests.corpus.record import CORPUS
from tests.history import relations
from tests.row_kernels import COMMIT_LSN, Outcome, compiled, framed, name, outcome
from tests.wal import COMMIT_TIME_US, RELATION_ID, History, data_frame, delete, encode, insert, update

COMMIT = encode(Commit(Lsn(COMMIT_LSN), Lsn(COMMIT_LSN + 0x30), COMMIT_TIME_US))

GOLDEN = sorted(path.stem for path in CORPUS.glob("*.bin") if path.name.startswith(("insert", "update", "delete")))
GOLDEN_SHAPES = {
    "plain": table(column("id", "int4"), column("name"), column("amount", "numeric"), name=name(1)),
    "typed": table(column("id", "int4"), column("mood"), name=name(2)),
    "wide": table(column("id", "int4"), column("large"), column("small"), name=name(3)),
    "whole": table(column("id", "int4"), column("name"), column("large"), name=name(4), identity="f"),
}


@pytest.fixture(scope="module", name="kernel")
def kernel_fixture() -> RowEncoding:
    return compiled()


def same(frames: Sequence[bytes], shapes: Sequence[Table], encoding: RowEncoding, **options: Any) -> Outcome:
    """What comes of the frames both ways."""
    encoded = outcome(frames, shapes, encoding, **options)
    options.pop("encoded", None)
    assert encoded == outcome(frames, shapes, None, **options)
    return encoded


def golden(recording: str) -> tuple[bytes, Table]:
    """A recorded row and the table that it fits, whose relation id is the tests' own."""
    message = (CORPUS / f"{recording}.bin").read_bytes()
    decoded: Any = decode(message)
    count = len(decoded.new if hasattr(decoded, "new") else decoded.old.fields)
    of = "whole" if "full" in recording else "wide" if "toast" in recording else "plain" if count == 3 else "typed"
    return message[:1] + RELATION_ID.to_bytes(4, "big") + message[5:], GOLDEN_SHAPES[of]


@pytest.mark.parametrize("recording", GOLDEN)
def test_a_recorded_row_comes_out_the_same(kernel: RowEncoding, recording: str) -> None:
    message, shape = golden(recording)
    assert same(framed([message, message, COMMIT], [shape]), [shape], kernel).states or "toast" in recording


@pytest.mark.parametrize("recording", GOLDEN)
def test_a_recorded_row_fails_the_same_wherever_it_is_cut_and_with_a_byte_more(
    kernel: RowEncoding, recording: str
) -> None:
    message, shape = golden(recording)
    for end in [*range(len(message))[:50], *range(len(message))[50:-50:100], *range(len(message))[50:][-50:]]:
        assert same(framed([message[:end], COMMIT], [shape]), [shape], kernel).error
        for byte in (b"\0", b"n", b"t", b"\xff"):
            longer = message[:end] + byte + message[end:]
            same(framed([message, longer, COMMIT], [shape]), [shape], kernel)
    assert same(framed([message + b"n", COMMIT], [shape]), [shape], kernel).error


def test_ordinary_rows_are_encoded_by_the_kernel(kernel: RowEncoding) -> None:
    rows: list[int] = []
    history = History([insert(b"1", b"x"), update(b"1", b"y"), delete(b"1", None), insert(b"2", None)])
    frames = [data_frame(message, lsn) for lsn, message in history.messages(*relations())]
    assert len(same(frames, [table()], kernel, encoded=rows).events) == 5
    assert [count for count in rows if count] == [2, 1]


def texts(value_type: str) -> st.SearchStrategy[bytes]:
    """Values of a type as PostgreSQL writes them, and others that it never writes."""
    likely = {
        "bool": [b"t", b"f"],
        "float8": [b"-0", b"0", b"1e-300", b"NaN", b"-Infinity", b"1.5", b"-0.5", b"-1"],
        "float4": [b"-0", b"1e+20", b"Infinity"],
        "timestamp": [b"2016-11-04 13:51:30.123456", b"infinity", b"0044-03-15 12:00:00 BC", b"21016-01-01 00:00:00"],
        "timestamptz": [b"2016-11-04 13:51:30+00", b"-infinity", b"0044-03-15 12:00:00+00 BC", b"+00 +00"],
    }.get(value_type, [b"1", b"-1", b"00000000-0000-0000-0000-000000000000", b"{1,NULL}", b"[0:1]={7,8}", b"{}"])
    text = st.text(st.characters(codec="utf-8"), max_size=20).map(str.encode)
    return st.one_of(
        st.sampled_from(likely),
        text,
        st.sampled_from([b'"', b"\\", b"\n\r\t\b\f\x00\x1f\x7f", "\u2028 \u00e9 \U0001f600".encode(), b"", b"x" * 300]),
        st.binary(max_size=12),
    )


TYPES = [*sorted(SCALARS), "text", "jsonb", "bytea", "an_enum"]
NAMES = ["id", "a", 'q"uote', "per%cent", "\u00fc\u00f1", "back\\slash", "line\nbreak", "x" * 63]


@st.composite
def shapes(draw: st.DrawFn, *, number: int = 0) -> Table:
    """A table of any columns; arrays are rare, since Python alone encodes a table that has one."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    columns = [column(each, draw(st.sampled_from(TYPES)), is_array=draw(st.integers(0, 19)) == 0) for each in names]
    key = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    return table(*columns, name=name(number), key=key, identity=draw(st.sampled_from("ddddf")))


@st.composite
def messages_of(draw: st.DrawFn, shape: Table, relation_id: int) -> bytes:
    """A row of a table, seldom with another number of values."""

    def row(*rare: object) -> tuple[Any, ...]:
        values = [
            draw(st.one_of(texts(each.value_type), *([st.none()] if each.name not in shape.key else []), *rare))
            for each in shape.columns
        ]
        return tuple(values[: draw(st.sampled_from([len(values)] * 9 + [len(values) - 1]))])

    kind = draw(st.sampled_from(["insert"] * 4 + ["update"] * 4 + ["hole", "key", "full", "delete"]))
    match kind:
        case "insert":
            return encode(insert(*row(), of=relation_id))
        case "update":
            return encode(update(*row(), of=relation_id))
        case "hole":
            return encode(update(*row(st.just(UNCHANGED)), of=relation_id))
        case "key":
            return encode(update(*row(), key=row(), of=relation_id))
        case "full":
            return encode(update(*row(), full=row(), of=relation_id))
        case _:
            return encode(delete(*row(), of=relation_id))


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Table], list[bytes]]:
    """Tables and messages of them, in one transaction."""
    tables = [draw(shapes(number=number)) for number in range(draw(st.integers(1, 2)))]
    body = []
    for _ in range(draw(st.integers(1, 12))):
        number = draw(st.integers(0, len(tables) - 1))
        body.append(draw(messages_of(tables[number], RELATION_ID + number)))
    return tables, body


@given(streams(), st.data())
def test_random_rows_come_out_the_same(kernel: RowEncoding, stream: Any, data: st.DataObject) -> None:
    tables, body = stream
    lsn = data.draw(st.sampled_from([0, 9, 0x1234_5678_9ABC_DEF0, 2**64 - 1]))
    limits = {"batch_rows": data.draw(st.integers(1, 8)), "batch_bytes": data.draw(st.integers(1024, 4096))}
    same(framed([*body, COMMIT], tables, lsn=lsn), tables, kernel, **limits)


@given(streams(), st.data())
def test_damaged_rows_come_out_the_same(kernel: RowEncoding, stream: Any, data: st.DataObject) -> None:
    tables, body = stream
    number = data.draw(st.integers(0, len(body) - 1))
    damaged = bytearray(body[number])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged)))
        match data.draw(st.sampled_from(["cut", "add", "flip"])):
            case "cut":
                del damaged[place:]
            case "add":
                damaged[place:place] = data.draw(st.binary(min_size=1, max_size=4))
            case _ if place < len(damaged):
                damaged[place] = data.draw(st.integers(0, 255))
    body[number] = bytes(damaged)
    same(framed([*body, COMMIT], tables), tables, kernel)


def copied(lines: Sequence[bytes], shape: Table, encoding: RowEncoding | None) -> object:
    """What comes of lines of a copy, by Python where there is no ``encoding``: the events, or the error."""
    encoder = TableEncoder(shape, server="shop", database="d", version="1")
    kernel = None if encoding is None else encoding.kernel(encoder)
    events = RowEvents(encoder, kernel, epoch=3, consistent_point=2**64 - 1, commit_time_ms=COMMIT_TIME_US)
    try:
        return events.of_lines(list(lines))
    except (LockstepError, IndexError) as error:  # of a value that PostgreSQL never writes
        return type(error), str(error)


@st.composite
def copies(draw: st.DrawFn) -> tuple[Table, list[bytes]]:
    """A table and lines of its rows, of which seldom one has another number of values, or is damaged."""
    shape = draw(shapes())
    lines = []
    for _ in range(draw(st.integers(1, 8))):
        row = [draw(st.one_of(texts(each.value_type), st.none())) for each in shape.columns]
        line = copy_line(row[: draw(st.sampled_from([len(row)] * 9 + [len(row) - 1]))])
        if draw(st.integers(0, 9)) == 0:
            place = draw(st.integers(0, len(line) - 1))
            line = (
                line[:place] + draw(st.sampled_from([b"\\", b"\t", b"\\N", b"\\x", b"\\\t", b"\n", b""])) + line[place:]
            )
        lines.append(line)
    return shape, lines


@given(copies())
def test_random_copied_rows_come_out_the_same(kernel: RowEncoding, made: tuple[Table, list[bytes]]) -> None:
    shape, lines = made
    for part in (lines, *([line] for line in lines)):
        assert copied(part, shape, kernel) == copied(part, shape, None)


LARGE_FACTS = (ColumnFacts("id", "int8", 8, "d"), ColumnFacts("note", "text", -1, "i"))
notes = st.sampled_from([b"a", b"b" * 500, b"c" * 1900, b"c" * 2100, b"d" * 3000]) | st.none()
small_ids = st.sampled_from([b"1", b"2", b"3"])
changes: st.SearchStrategy[Message] = st.one_of(
    st.builds(insert, small_ids, notes),
    st.builds(update, small_ids, notes),
    st.builds(update, small_ids, st.just(UNCHANGED)),
    st.builds(delete, small_ids, st.none()),
)


@given(st.lists(st.lists(changes, min_size=1, max_size=8), min_size=1, max_size=4))
def test_the_same_is_remembered_of_large_values(kernel: RowEncoding, bodies: list[list[Message]]) -> None:
    shape = table()
    rule = ToastRule(LARGE_FACTS, attributes=2)
    frames = [data_frame(message, lsn) for lsn, message in History(*bodies).messages(*relations(shape))]
    same(frames, [shape], kernel, rules=[rule])


def test_a_short_row_that_takes_the_key_of_a_long_one_leaves_nothing_remembered(kernel: RowEncoding) -> None:
    rule = ToastRule(LARGE_FACTS, attributes=2)
    history = History([insert(b"1", b"c" * 3000), insert(b"2", b"c" * 3000), update(b"1", b"short")])
    frames = [data_frame(message, lsn) for lsn, message in history.messages(*relations())]
    remembered: Any = same(frames, [table()], kernel, rules=[rule]).remembered
    assert [key for _, key in remembered] == [b'{"id":2}']


def without_key(shape: Relation) -> Relation:
    return replace(shape, columns=tuple(replace(each, in_identity=False) for each in shape.columns))


def test_an_update_of_a_table_whose_key_isnt_delivered_fails_the_same(kernel: RowEncoding) -> None:
    shape = table()
    history = History([insert(b"1", b"x"), update(b"1", b"y")])
    described = without_key(relations(shape)[0])
    frames = [data_frame(message, lsn) for lsn, message in history.messages(described)]
    rows: list[int] = []
    assert same(frames, [shape], kernel, encoded=rows).error
    assert sum(rows) == 1
