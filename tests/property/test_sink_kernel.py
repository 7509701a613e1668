"""Whatever the log holds, sinks are sent the same with the compiled kernel as without it, and errors are the same.

Python is the reference. The rows are random ones in JSON, and all of these cut and damaged.
"""

import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.event_format.encode import event_value
from cdc.model.errors import LockstepError
from cdc.model.event import Events, Position, TableEvents
from cdc.protocol.compiled_code import VARIABLE
from jobs.executor.decode import decode
from jobs.executor.task_input import Task
from jobs.executor.window import with_tags
from sinks.columns.shape import Shape
from sinks.contract import Rejection, TableVersions
from sinks.opensearch.bulk_writer import BulkWriter, Item
from sinks.opensearch.documents import Target
from sinks.redis.calls import Calls
from sinks.redis.keys import RedisKeys
from sinks.redis.settings import RedisSettings
from sinks.warehouse.dialect import UnknownColumn
from sinks.warehouse.postgres.history import HistoryStatements
from sinks.warehouse.postgres.staging import Staging
from sinks.warehouse.postgres.tables import Rows
from tests.builders import column, table, tag
from tests.row_kernels import compiled_sink_kernel

NAMES = ["id", "no\"te'", "ü", "a"]
SHAPE = table(*(column(name) for name in NAMES), key=("id",))

texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(['"', "\\", "\n\r\t\b\f\x01\x7f", "\\N"])
# Not all of it is JSON, and some only PostgreSQL or others write so.
ODD = (
    *(b"-0", b"-0.0", b"1.50", b"1e5", b"1E-7", b"1e400", b"-1e400", b"1e-400", b"01", b"1.", b"0.1e+2", b"1e"),
    *(b"123456789012345678", b"1234567890123456789", b"-9223372036854775808", b"-9223372036854775809"),
    *(b"18446744073709551616", b"0.30000000000000004", b"NaN", b"tru", b"nulll", b" 1", b"{}", b'{"a":1}'),
    *(b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\/"', b'"\\x"', b'"\t"', b'"\xff"', b'"\xed\xa0\x80"', b'"'),
)
values = (
    st.one_of(texts, st.floats(), st.integers(-(2**63), 2**64 - 1), st.integers(-99, 99), st.booleans(), st.none())
    | st.lists(texts | st.integers(0, 9), max_size=2)
).map(orjson.dumps) | st.sampled_from(ODD)


@st.composite
def objects(draw: st.DrawFn, *names: str) -> bytes:
    """An object with these columns, seldom without one of them, in another order or damaged."""
    chosen = list(names)
    match draw(st.integers(0, 19)):
        case 0:
            chosen = draw(st.permutations(chosen))
        case 1:
            chosen = draw(st.lists(st.sampled_from(chosen), max_size=5))
        case 2:
            chosen.append("other")
    text = b"{%b}" % b",".join(orjson.dumps(name) + b":" + draw(values) for name in chosen)
    return draw(damaged(text)) if draw(st.integers(0, 9)) == 0 else text


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """Cut, with bytes more, or with other bytes."""
    place = draw(st.integers(0, len(text)))
    match draw(st.sampled_from(["cut", "add", "flip"])):
        case "cut":
            return text[:place]
        case "add":
            return text[:place] + draw(st.sampled_from([b'"', b"\\", b"}", b",", b"\0", b" ", b"\x80"])) + text[place:]
        case _:
            return text[:place] + draw(st.binary(min_size=1, max_size=1)) + text[place + 1 :]


def sound_keys(*names: str) -> st.SearchStrategy[bytes]:
    """As capture writes most of them."""
    return st.fixed_dictionaries(dict.fromkeys(names, st.integers(0, 99) | texts)).map(orjson.dumps)


@st.composite
def table_events(draw: st.DrawFn, *key: str) -> TableEvents:
    rows = draw(st.lists(objects(*NAMES) | st.none(), min_size=1, max_size=6))
    keys = [draw(objects(*key) | sound_keys(*key)) for _ in rows]
    tags = [
        draw(st.sampled_from([tag(1), tag(1, 2**13), tag(2, 3), tag(1)[:20] + "0000000A", "\\" * 28])) for _ in rows
    ]
    return TableEvents.from_log(SHAPE.name, keys, tags, rows, lambda index: Position("t", 0, index))


def outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or the error."""
    try:
        return work()
    except LockstepError as error:
        return type(error), str(error), error.hint
    except (UnknownColumn, AssertionError, ValueError) as error:  # of what capture never writes
        return type(error), error.args


def by_both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """What comes of it with compiled code and with Python."""
    with patch.dict(os.environ, {VARIABLE: "require"}):
        compiled = outcome(work)
    with patch.dict(os.environ, {VARIABLE: "off"}):
        return compiled, outcome(work)


@pytest.fixture(scope="module", autouse=True)
def _kernel() -> None:
    compiled_sink_kernel()


@given(table_events("id"))
def test_lines_of_copy_are_the_same(events: TableEvents) -> None:
    for part in (events, *(events[index : index + 1] for index in range(len(events)))):
        compiled, python = by_both(partial(_lines, part))
        assert compiled == python


def _lines(events: TableEvents) -> bytes:
    return b"".join(Rows(Shape.of(SHAPE)).blocks(events))


@given(table_events("id"), st.data())
def test_lines_of_a_history_are_the_same(events: TableEvents, data: st.DataObject) -> None:
    operations = data.draw(st.lists(st.sampled_from("cudr\t"), min_size=len(events), max_size=len(events)))
    versions = TableVersions(events, operations, [1_700_000_000_000 + index // 2 for index in range(len(events))])

    def blocks() -> bytes:
        return b"".join(HistoryStatements("t", Shape.of(SHAPE), Staging("s", "t")).version_blocks(versions))

    compiled, python = by_both(blocks)
    assert compiled == python


@given(table_events("id") | table_events("id", "a"), st.booleans(), st.integers(1, 80))
def test_arguments_of_redis_are_the_same(events: TableEvents, keeps_rows: bool, value_bytes_max: int) -> None:
    mode = "materialise" if keeps_rows else "invalidate"
    settings = RedisSettings.model_validate(
        {"type": "redis", "url": "redis://h", "prefix": "p", "mode": mode, "max_value_bytes": value_bytes_max}
    )

    def calls() -> Any:
        rejections: list[Rejection] = []
        made = Calls(settings, RedisKeys("p", 1)).pipelines(Events([events]), rejections, overwrite_equal_tags=False)
        sent = [
            (call.indexes, call.script, call.bytes, [_wire(argument) for argument in call.arguments])
            for pipeline in made
            for call in pipeline
        ]
        return sent, rejections

    compiled, python = by_both(calls)
    assert compiled == python


def _wire(argument: str | bytes | int) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()


@given(table_events("id"), st.booleans(), st.sampled_from([1, 2, 10_000]), st.sampled_from([1, 300, 1 << 20]))
def test_bulk_requests_are_the_same(events: TableEvents, markers: bool, documents_max: int, bytes_max: int) -> None:
    indexes: Any = SimpleNamespace(client=None, targets={SHAPE.name: Target("w", Shape.of(SHAPE), markers)})
    items = [Item(events, index) for index in range(len(events))]

    def requests() -> Any:
        writer = BulkWriter(indexes)
        writer.bulk_bytes = bytes_max
        return list(writer.requests(items, documents_max, overwrite_equal_tags=False, is_whole=True))

    compiled, python = by_both(requests)
    assert compiled == python


@st.composite
def logs(draw: st.DrawFn) -> list[bytes | None]:
    """Values of a topic's records, mostly of one shape; seldom a tombstone, an old row, or damage behind the tag."""
    found: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.integers(0, 19))
        schema_id = SHAPE.schema_id if kind else draw(st.sampled_from(["a", '{"', ""]))
        source = b'{"version":"%d","schema_id":"%b","lsn":' % (kind == 1, schema_id.encode())
        before = draw(objects("id")) if kind == 2 else b"null"
        after = b"null" if kind == 3 else draw(objects(*NAMES))
        value = event_value(b"u", b"0" * 20, 1, before, after, source, 9, 9)
        if kind == 4:
            value = value[:45] + draw(damaged(value[45:]))
        found.append(None if kind == 5 else value)
    return found


@given(logs())
def test_rows_of_the_log_are_the_same(log: list[bytes | None]) -> None:
    count = len(log)
    records = with_tags(
        pa.table(
            {
                "key": pa.array([b'{"id":"%d"}' % index for index in range(count)], pa.binary()),
                "value": pa.array(log, pa.binary()),
                "topic": pa.array(["t"] * count),
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
                "tombstone_tag": pa.array([b"0" * 28] * count, pa.binary()),
            }
        )
    )
    settings = RedisSettings.model_validate({"type": "redis", "url": "redis://h"})
    task = Task("s", settings, 1, 0, {"t": SHAPE.name}, {SHAPE.name: SHAPE}, 1 << 30, 0, "run")

    def rows() -> Any:
        decoded = decode(records, task)
        [events] = decoded.events.tables
        return events.rows, events.tags, decoded.has_translated

    compiled, python = by_both(rows)
    assert compiled == python


def test_most_rows_are_the_kernels() -> None:
    kernel = compiled_sink_kernel().LineKernel([orjson.dumps(name) for name in NAMES])
    row = orjson.dumps(dict(zip(NAMES, (1, 'a"\\\n', None, 1.5), strict=True)))
    assert kernel.lines([b""], [tag(1)], [row], ["f"], 0, 1)[1] == 1


@pytest.mark.parametrize(
    "row", [b'{"id":-12,"no\\"te":"a\\\\\xc3\xbc","\xc3\xbc":-1.5e+300,"a":[]}', b'{"id":true,"a":null}']
)
def test_a_row_that_is_cut_at_any_byte_fails_the_same(row: bytes) -> None:
    for end in range(len(row)):
        for text in (row[:end], row[:end] + b"}", row[:end] + b'"}', row[:end] + b"\0"):
            for key, value in ((b"{}", text), (text, None)):
                events = TableEvents.from_log(SHAPE.name, [key], [tag(1)], [value], lambda _: Position("t", 0, 0))
                compiled, python = by_both(partial(_lines, events))
                assert compiled == python, text
