"""Written by Python as by capture, read through Spark as by the jobs: the same values, to the last digit."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc.model.event import JsonValue, Position
from cdc.model.table import Table
from cdc.protocol.envelope import TAG_HEADER, TableEncoder, event_value, tag_prefix, tag_text
from jobs.executor.decode import decode
from jobs.executor.task_input import Task
from jobs.executor.window import newest, with_tags
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.source import select_records
from sinks.redis.settings import RedisSettings
from tests.builders import column, table

pytestmark = [pytest.mark.live, pytest.mark.busy]  # Spark needs a Java

TOPIC = "shop.public.values"
RECORDS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)

# Value type, PostgreSQL's text of a value, and what a sink has to get. Each of these is lost by some reader of JSON.
VALUES: Sequence[tuple[str, str | None, JsonValue]] = [
    ("int8", "9223372036854775807", 9223372036854775807),
    ("int8", "-9007199254740993", -9007199254740993),
    ("numeric", "12345678901234567890.12345678901234567890", "12345678901234567890.12345678901234567890"),
    ("numeric", "NaN", "NaN"),
    ("numeric", "1.10", "1.10"),
    ("bool", "t", True),
    ("text", "", ""),
    ("text", None, None),
    ("text", 'quote " backslash \\ newline \n tab \t nul-like \\u0000 emoji \U0001f600 \u2028', None),
    ("bytea", "\\x00ff", None),
    ("timestamptz", "infinity", None),
    ("timestamptz", "0044-03-15 12:00:00+00 BC", None),
    ("jsonb", '{"a": [1, 2.50, null], "ü": "\\u20ac"}', None),
    ("float8", "0.1", 0.1),
    ("float8", "-Infinity", None),
]


@pytest.fixture
def shape() -> Table:
    columns = [column("id", "int8")] + [column(f"v{n}", kind) for n, (kind, _, _) in enumerate(VALUES)]
    return table(*columns, key=("id",))


def written(shape: Table, texts: Sequence[str | None]) -> tuple[bytes, bytes]:
    encoder = TableEncoder(shape, server="test", database="app", version="0")
    fields = [None if text is None else text.encode() for text in texts]
    source = encoder.source(commit_time_ms=1_700_000_000_000, xid=7)
    value = event_value(b"u", tag_prefix(1, 16), 1, b"null", encoder.row(fields), source, 16, 1_700_000_000_000)
    return encoder.key(fields), value


def record(key: bytes, value: bytes | None, offset: int, tag: bytes | None = None) -> tuple[Any, ...]:
    headers = None if tag is None else [("other", b"x"), (TAG_HEADER, tag)]
    return bytearray(key), None if value is None else bytearray(value), TOPIC, 3, offset, None, 0, headers


def through_spark(spark: SparkSession, records: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Kafka's frame -> the select of the job -> Arrow -> a Python worker -> what that worker saw."""

    def see(batches: Any) -> Iterator[pa.RecordBatch]:
        seen = [
            orjson.dumps({name: _text(value) for name, value in row.items()}).decode()
            for batch in batches
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pydict({"seen": pa.array(seen, pa.string())})

    frame = select_records(spark.createDataFrame(records, RECORDS).coalesce(1))
    return [orjson.loads(text) for text in ArrowMap(see, "seen string")(frame).toArrow().column("seen").to_pylist()]


def _text(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def events(rows: Sequence[Mapping[str, Any]], shape: Table) -> list[Any]:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    bytes_of = ("key", "value", "tombstone_tag")
    columns = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "tombstone_tag": pa.binary(),
    }
    records = pa.table(
        {
            name: pa.array([raw(row[name]) if name in bytes_of else row[name] for row in rows], kind)
            for name, kind in columns.items()
        }
    )
    task = Task(
        "cache",
        RedisSettings(),
        1,
        0,
        {TOPIC: shape.name},
        {shape.name: shape},
        window_bytes=1 << 20,
        retry_s=1.0,
        run="only",
    )
    decoded = decode(newest(with_tags(records)), task).events
    return list(decoded)


def test_values_arrive_as_they_were_written(spark: SparkSession, shape: Table) -> None:
    key, value = written(shape, ["1", *(text for _, text, _ in VALUES)])
    [seen] = through_spark(spark, [record(key, value, 17)])
    assert bytes.fromhex(seen["value"]) == value
    [event] = events([seen], shape)
    assert event.key == {"id": 1}
    assert event.position == Position(TOPIC, 3, 17)
    for number, (_, text, expected) in enumerate(VALUES):
        if expected is not None or text is None:
            assert event.row[f"v{number}"] == expected


def test_a_tombstone_brings_its_tag_and_a_value_brings_none(spark: SparkSession, shape: Table) -> None:
    key, value = written(shape, ["1", *(text for _, text, _ in VALUES)])
    tag = tag_text(tag_prefix(1, 24), 2)
    put, gone = through_spark(spark, [record(key, value, 17, tag), record(key, None, 18, tag)])
    assert put["tombstone_tag"] is None
    assert bytes.fromhex(gone["tombstone_tag"]) == tag
    [event] = events([put, gone], shape)
    assert (event.row, event.tag) == (None, tag.decode())


def test_a_tombstone_without_headers_has_no_tag(spark: SparkSession) -> None:
    [seen] = through_spark(spark, [record(b"{}", None, 1)])
    assert seen["tombstone_tag"] is None
