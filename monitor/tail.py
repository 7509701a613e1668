"""``lockstep tail``: a table's events as they come, readable."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdc.event_format.decode import op_of, tag_of
from cdc.kafka.client import new_client
from cdc.kafka.consumer import close_consumer, find_leaders
from cdc.kafka.topic_admin import TopicAdmin, reason
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.printable import visible
from cdc.model.table import TableName
from cdc.model.tag import TAG_HEADER, Tag
from cdc.pipeline_settings import Pipeline
from monitor.log_start import AfterLsn, offsets_after, offsets_since

_OPERATIONS = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete", "t": "truncate", "x": "left out"}

_QUIET_S: Final = 5.0
"""A consumer that gets nothing for so long is replaced."""


@dataclass(frozen=True, slots=True)
class FromNext:
    """Begin with the next event."""


@dataclass(frozen=True, slots=True)
class FromStart:
    """Begin with the oldest event in the topic."""


@dataclass(frozen=True, slots=True)
class FromLsn:
    """Begin with what was committed after this LSN of the present server."""

    lsn: int


@dataclass(frozen=True, slots=True)
class FromTime:
    """Begin with what was published at this time, in milliseconds since 1970, or later."""

    time_ms: int


Start = FromNext | FromStart | FromLsn | FromTime


class WantedKey:
    """One key of a table, whatever the order and the spaces in its JSON."""

    def __init__(self, text: str) -> None:
        """Raises ConfigurationError for text that isn't a key."""
        key = _exact_json(text)
        if not isinstance(key, dict) or not key:
            raise ConfigurationError(f"--key: {text!r} is not a JSON object", hint='for example {"id":42}')
        self._key = key
        self.columns = sorted(key)
        self._has_reported = False

    def matches(self, key: object) -> bool:
        return isinstance(key, bytes) and _exact_json(key) == self._key

    def other_columns(self, key: object) -> list[str] | None:
        """The columns of a key whose columns differ from the wanted one's. Returned only once."""
        if self._has_reported or not isinstance(key, bytes):
            return None
        other = _exact_json(key)
        if not isinstance(other, dict) or sorted(other) == self.columns:
            return None
        self._has_reported = True
        return sorted(other)


@dataclass(frozen=True, slots=True)
class Line:
    """An event, or a remark about a record that isn't one."""

    text: str
    is_remark: bool = False


def follow(
    pipeline: Pipeline,
    table: str,
    *,
    start: Start,
    key: str | None = None,
    count: int | None,
    as_json: bool,
    stopping: Callable[[], bool],
) -> Iterator[Line]:
    """Every committed event of the table from ``start`` on, until ``stopping`` or ``count``. ``key`` is the JSON of one
    key: then only its events, and nothing of other records. Raises LockstepError. A message that isn't an event of ours
    yields a remark with its position, or a line of JSON."""
    name, topic = _captured(pipeline, table)
    wanted = None if key is None else WantedKey(key)
    positions, after = _positions(pipeline, topic, start)
    shown = 0
    for message in new_messages(pipeline.kafka.client(), positions, stopping=stopping):
        if wanted is not None and not wanted.matches(message.key()):
            if (other := wanted.other_columns(message.key())) is not None:
                columns = f"{', '.join(other)}; --key has {', '.join(wanted.columns)}"
                yield Line(f"keys of {name} have the columns {columns}", is_remark=True)
            continue
        if after is not None and is_before(message, after):
            continue
        line = _line(message, as_json=as_json)
        if line is not None:
            yield Line(line)
            shown += 1
        elif as_json:
            position = {"partition": message.partition(), "offset": message.offset()}
            yield Line(orjson.dumps({**position, "foreign": True}).decode())
        else:
            text = f"{message.partition()}:{message.offset()} of {topic} isn't an event of ours"
            yield Line(text, is_remark=True)
        if shown == count:
            return


def _captured(pipeline: Pipeline, table: str) -> tuple[TableName, str]:
    """The table of this name, and its topic. Raises ConfigurationError."""
    try:
        name = TableName.parse(table)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    topic = pipeline.topics().get(name)
    if topic is None:
        captured = ", ".join(str(name) for name in pipeline.source.table_names)
        raise ConfigurationError(f"{name} is not captured", hint=f"captured tables: {captured}")
    return name, topic


def _positions(pipeline: Pipeline, topic: str, start: Start) -> tuple[Mapping[tuple[str, int], int], AfterLsn | None]:
    """The offsets to read from. Some of what begins there may be from before an LSN."""
    cluster = TopicAdmin(pipeline.kafka.client())
    partitions = cluster.partition_counts([topic], must_see=True).get(topic)
    if partitions is None:
        raise LockstepError(f"topic {topic} doesn't exist yet", hint="start `lockstep capture` first")
    at = [(topic, partition) for partition in range(partitions)]
    match start:
        case FromLsn(lsn):
            # Progress is published once per batch of capture: the offsets for an LSN are those of the batch that has
            # it.
            after = offsets_after(pipeline, [topic], lsn)
            return after.offsets, after
        case FromTime(time_ms):
            return offsets_since(pipeline, [topic], time_ms), None
        case FromStart():
            return dict.fromkeys(at, 0), None
        case FromNext():
            return cluster.committed_ends(at), None


def new_messages(
    client: Mapping[str, str | int], positions: Mapping[tuple[str, int], int], *, stopping: Callable[[], bool]
) -> Iterator[Message]:
    """The committed messages of each (topic, partition) from an offset on, until ``stopping``. Raises Unavailable."""
    following = dict(positions)
    while not stopping():
        # A consumer may get nothing for ever from a restarted broker; a new one does.
        yield from _until_quiet(client, following, stopping)


def _until_quiet(
    client: Mapping[str, str | int], following: dict[tuple[str, int], int], stopping: Callable[[], bool]
) -> Iterator[Message]:
    """What one consumer gets, until nothing has come for a while. Moves ``following`` past each message."""
    consumer = new_client(
        Consumer,
        {
            **client,
            "group.id": "lockstep-tail",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        },
    )
    try:
        find_leaders(consumer, {topic for topic, _ in following})
        consumer.assign([TopicPartition(*at, offset) for at, offset in following.items()])
        heard = time.monotonic()
        while not stopping() and time.monotonic() - heard < _QUIET_S:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                raise KafkaException(message.error())  # noqa: TRY301  translated below like all others
            heard = time.monotonic()
            following[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
            yield message
    except KafkaException as error:
        raise Unavailable(f"Kafka doesn't answer: {reason(error)}") from error
    finally:
        close_consumer(consumer)


def is_before(message: Message, after: AfterLsn) -> bool:
    """Whether an event or a tombstone of ours was committed before the LSN. A commit's own LSN is where its record
    begins. A record that begins where another one ends was committed after that."""
    value = message.value()
    if value is None:
        text = dict(message.headers() or []).get(TAG_HEADER)
    else:
        text = tag_of(value) if isinstance(value, bytes) and op_of(value) else None
    try:
        tag = Tag.parse(text.decode()) if isinstance(text, bytes) else None
    except ValueError:
        return False
    return tag is not None and (tag.epoch, tag.commit_lsn) < (after.epoch, after.lsn)


def _line(message: Message, *, as_json: bool) -> str | None:
    """An event or a tombstone as one line; None if it isn't one of ours."""
    key, value = message.key(), message.value()
    if not isinstance(key, bytes) or not isinstance(_json(key), dict):
        return None
    if value is None:
        tag = dict(message.headers() or []).get(TAG_HEADER)
        if not isinstance(tag, bytes):
            return None
        text = tag.decode(errors="replace")
        if as_json:
            return orjson.dumps({"key": _json(key), "tombstone": True, "tag": text}).decode()
        return f"{visible(text)} tombstone {visible(key.decode())}"
    try:
        return _event_line(key, _json(value), as_json=as_json)
    except TypeError:  # nested deeper than any row
        return None


def _event_line(key: bytes, value: Any, *, as_json: bool) -> str | None:
    match value:
        case {"op": str(op), "tag": str(tag), "after": after, **_rest} as event if op in _OPERATIONS:
            if as_json:
                return orjson.dumps({"key": _json(key), "value": event}).decode()
            row = "" if after is None else orjson.dumps(after).decode()
            return f"{visible(tag)} {_OPERATIONS[op]:9} {visible(key.decode())} {row}".rstrip()
    return None


def _exact_json(text: str | bytes) -> Any:
    """The value of JSON, with numbers of any length; None for text that isn't JSON."""
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None


def _json(text: str | bytes) -> Any:
    """The value of JSON; None for text that isn't JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
