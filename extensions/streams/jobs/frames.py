"""Records of a stream -> its events as typed columns, or the reason why a record isn't an event.

Late events are dropped at one defined place. The first stateful operator over every stream is Spark's de-duplication
within the watermark. It drops exactly those events whose time isn't later than the watermark of the batch before, so
all later operators see only later events. ``side_frame`` applies the same test to the same records.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from extensions.streams.executor.topics import side_room
from extensions.streams.settings import (
    CLOCK_OFFSET,
    PRIVATE,
    RECEIVED,
    StreamSettings,
    spark_type,
)

LATE: Final = "late"
MALFORMED: Final = "malformed"

_EVENT: Final = PRIVATE + "event"
_CORRUPT: Final = PRIVATE + "corrupt"
_PROBLEM: Final = PRIVATE + "problem"
_TIME: Final = PRIVATE + "time"
POSITION: Final = (PRIVATE + "topic", PRIVATE + "partition", PRIVATE + "offset")
"""The columns of an event with the place of its record."""
_KIND: Final = PRIVATE + "kind"

_JSON_BYTES_MAX: Final = 6
"""The most bytes of a character in JSON: a control character, as \\u0001."""

_LATE_ENOUGH: Final = "1970-01-01 00:00:00"
"""Spark's watermark begins here, and drops what isn't later."""


def parsed(records: DataFrame, stream: StreamSettings) -> DataFrame:
    """A frame of Kafka's source -> the stream's columns, and ``_PROBLEM``: why a record isn't an event, or null. With
    ``sent``, the event's time is corrected by the offset of the device's clock: received minus sent. If the corrected
    time is outside of Spark's range, it is null and a problem: an error would stop the query at this record for ever.
    """
    members = ", ".join(f"`{name}` {spark_type(kind)}" for name, kind in stream.columns.items())
    text = f.try_validate_utf8(f.col("value").cast("string"))
    event = f.from_json(
        text, f"{members}, `{_CORRUPT}` string", {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    )
    frame = records.select(
        *[f.col(name).alias(PRIVATE + name) for name in ("key", "value", "topic", "partition", "offset")],
        f.col("timestamp").alias(RECEIVED),
        event.alias(_EVENT),
    )
    own, row = {name: f.col(_EVENT).getField(name) for name in stream.columns}, f.col(_EVENT)
    added: dict[str, Column] = {}
    if stream.sent is not None:
        offset = f.try_subtract(f.unix_micros(f.col(RECEIVED)), f.unix_micros(own[stream.sent]))
        time = f.timestamp_micros(f.try_add(f.unix_micros(own[stream.time]), offset))
        added[CLOCK_OFFSET] = f.expr(f"unix_micros({RECEIVED}) div 1000") - f.unix_millis(own[stream.sent])
        own[stream.time] = time
    else:
        time = own[stream.time]
    ahead = f.make_dt_interval(hours=f.lit(1))
    missing = {
        name: f"it has no {name}" for name in dict.fromkeys((stream.time, *(filter(None, [stream.sent])), *stream.id))
    }
    problem = f.when(f.col(PRIVATE + "value").isNull(), f.lit("the record has no value"))
    problem = problem.when(
        row.isNull() | row.getField(_CORRUPT).isNotNull(), f.lit("it isn't a JSON object whose members fit the columns")
    )
    for name, reason in missing.items():
        problem = problem.when(row.getField(name).isNull(), f.lit(reason))
    problem = problem.when(time.isNull(), f.lit("its clock is so far off that its time can't be corrected"))
    problem = problem.when(time <= f.lit(_LATE_ENOUGH).cast("timestamp"), f.lit("it happened before 1970"))
    problem = problem.when(
        time > f.try_add(f.col(RECEIVED), ahead),  # null if the sum is out of range; nothing is later
        f.lit("it happened more than an hour after it was received"),
    )
    columns = [value.alias(name) for name, value in (own | added).items()]
    return frame.select(
        *[f.col(PRIVATE + name) for name in ("key", "value", "topic", "partition", "offset")],
        *columns,
        f.col(RECEIVED),
        time.alias(_TIME),
        problem.alias(_PROBLEM),
    )


def events(records: DataFrame, stream: StreamSettings, *, is_ordered: bool) -> DataFrame:
    """A streaming frame of Kafka's source -> the stream's events in time, each once. With ``is_ordered``, the earliest
    of a batch's events with one ``id`` is taken, and among those the one with the lowest partition and offset.
    Otherwise the first to reach its task is taken, which may be another one when the batch is repeated.
    """
    return events_with_position(records, stream, is_ordered=is_ordered).drop(*POSITION)


def events_with_position(records: DataFrame, stream: StreamSettings, *, is_ordered: bool) -> DataFrame:
    """The same, with the place of each event's record."""
    frame = parsed(records, stream)
    names = [name for name in frame.columns if not name.startswith(PRIVATE)]
    frame = frame.where(f.col(_PROBLEM).isNull()).withWatermark(stream.time, stream.late)
    same = list(stream.id or POSITION)
    if stream.id and is_ordered:
        frame = frame.repartition(*map(quoted, same)).sortWithinPartitions(_TIME, *POSITION)
    return frame.dropDuplicatesWithinWatermark(same).select(*map(quoted, names), *POSITION)


def side_frame(
    records: DataFrame, name: str, stream: StreamSettings, *, generation: int, watermark_ms: int | None, bytes_max: int
) -> DataFrame:
    """Records without a part in a batch, as ``key``, ``value`` and ``kind`` for the side topic. These are records that
    aren't events, and events that aren't later than the watermark of build ``generation``; in another build an event
    may be in time. Values that make a record longer than ``bytes_max`` are cut; the record gives their length.
    """
    frame = parsed(records, stream)
    watermark = f.timestamp_millis(f.lit(watermark_ms or 0))
    is_late = f.col(_PROBLEM).isNull() & (f.col(_TIME) <= watermark)
    kind = f.when(f.col(_PROBLEM).isNotNull(), f.lit(MALFORMED)).when(is_late, f.lit(LATE))
    late = f.when(f.col(_KIND) == f.lit(LATE), f.lit(True))
    topic, partition, offset = map(f.col, POSITION)
    key_room, value_room = side_room(bytes_max)
    facts = f.struct(
        f.col(_KIND).alias("kind"),
        f.lit(generation).alias("generation"),
        f.lit(name).alias("stream"),
        f.coalesce(f.col(_PROBLEM), f.lit("it came after the watermark had passed its time")).alias("reason"),
        topic.alias("topic"),
        partition.alias("partition"),
        offset.alias("offset"),
        _iso(f.col(RECEIVED)).alias("received_at"),
        f.when(late, _iso(f.col(_TIME))).alias("event_time"),
        f.when(late, _iso(watermark)).alias("watermark"),
        f.when(late, f.lit(watermark_ms or 0) - f.unix_millis(_TIME)).alias("late_ms"),
        *_kept("key", key_room),
        *_kept("value", value_room),
    )
    return (
        frame.withColumn(_KIND, kind)
        .where(f.col(_KIND).isNotNull())
        .select(
            f.to_json(f.struct(topic.alias("topic"), partition.alias("partition"), offset.alias("offset")))
            .cast("binary")
            .alias("key"),
            f.to_json(facts, {"ignoreNullFields": "true"}).cast("binary").alias("value"),
            f.col(_KIND).alias("kind"),
        )
    )


def _kept(name: str, room: int) -> list[Column]:
    """A record's ``name`` as text or base64. If it is cut to ``room`` bytes, its length in bytes is added."""
    whole = f.col(PRIVATE + name)
    text = f.try_validate_utf8(whole.cast("string"))
    length = f.octet_length(whole)
    part = _fitting(text, room)
    base64_bytes = room * 3 // 4 // 3 * 3
    is_cut = f.when(text.isNull(), length > base64_bytes).otherwise(f.length(part) < f.length(text))
    return [
        part.alias(name),
        f.when(text.isNull(), f.base64(f.substring(whole, 1, base64_bytes))).alias(f"{name}_base64"),
        f.when(is_cut, length).alias(f"{name}_bytes"),
    ]


def _fitting(text: Column, room: int) -> Column:
    """A text, or as much of its beginning as takes at most ``room`` bytes in JSON."""

    def bytes_of(part: Column) -> Column:
        return f.octet_length(f.to_json(f.struct(part.alias("v")))) - len('{"v":""}')

    # Most texts are far from the limit, and needn't be written as JSON to see that.
    fitting = f.when(f.octet_length(text) * _JSON_BYTES_MAX <= room, text).when(bytes_of(text) <= room, text)
    for share in range(1, _JSON_BYTES_MAX):
        part = text.substr(1, room // share)
        fitting = fitting.when(bytes_of(part) <= room, part)
    return fitting.otherwise(text.substr(1, room // _JSON_BYTES_MAX))


def union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.union, frames)


def _iso(time: Column) -> Column:
    """A time in the form that a timestamptz has in events."""
    return f.concat(f.regexp_replace(time.cast("string"), " ", "T"), f.lit("Z"))


def result_texts(result: DataFrame) -> DataFrame:
    """A query's rows as JSON in one column ``row``: every value as text, in the form that its type has in events. The
    partitioning stays, so all rows of a key are in one partition.
    """
    texts = []
    for field in result.schema.fields:
        value, kind = f.col(quoted(field.name)), field.dataType.simpleString()
        text = _iso(value) if kind == "timestamp" else value.cast("string")
        if kind == "timestamp_ntz":
            text = f.regexp_replace(text, " ", "T")
        texts.append(text.alias(field.name))
    return result.select(f.to_json(f.struct(*texts), {"ignoreNullFields": "false"}).alias("row"))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
