"""An event's bytes read back: mostly without parsing, since jobs read every event. Pure."""

from dataclasses import dataclass
from typing import Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import TableName
from cdc.model.tag import TEXT_LENGTH

TAG_START: Final = len('{"op":"u","tag":"')
TAG_END: Final = TAG_START + TEXT_LENGTH
TAG_LABEL: Final = b'","tag":"'
"""Where the tag is, and what comes before it, for code that slices a whole column of events. Other code calls
``tag_of``."""

_START: Final = b'{"op":"'

DELETED: Final = b"d"
EMPTIED: Final = b"t"
LEFT_OUT: Final = b"x"
"""What ``op_of`` returns for events without a row."""

LEFT_OUT_START: Final = _START + LEFT_OUT
"""For code that compares a whole column of events."""


def op_of(value: bytes) -> bytes:
    """The event's ``op``, one letter; empty if the value doesn't begin like an event."""
    at = len(_START)
    return value[at : at + 1] if value.startswith(_START) else b""


def tag_of(value: bytes) -> bytes:
    """The event's tag, 28 hex digits. If the value may be no event, check with ``op_of`` first."""
    return value[TAG_START:TAG_END]


_BEFORE: Final = b'","before":'
_NO_BEFORE: Final = b'","before":null,"after":'
_AFTER: Final = b',"after":'
_SOURCE: Final = b',"source":{"version":'
_SCHEMA_ID: Final = b'","schema_id":"'


def after_of(value: bytes) -> bytes:
    """The bytes of ``after`` in an event that ``event_value`` made. Raises LockstepError for anything else."""
    begin, end = _after_range(value)
    return value[begin:end]


def before_of(value: bytes) -> bytes:
    """The bytes of ``before``. Raises as ``after_of``."""
    begin, _ = _after_range(value)
    return value[TAG_END + len(_BEFORE) : begin - len(_AFTER)]


def fitting(value: bytes, bytes_max: int, *, has_key: bool) -> bytes:
    """The event to publish in place of one that is too large: without its old row, if that is enough. Otherwise an
    event of kind ``x``, which has the row's size. A deletion always only loses its old row, except in a table without a
    key, where the old row is what sinks get."""
    begin, end = _after_range(value)
    source = value[end:]
    if has_key or op_of(value) != DELETED:
        smaller = value[:TAG_END] + _NO_BEFORE + value[begin:]
        if len(smaller) <= bytes_max or op_of(value) == DELETED:
            return smaller
    about, time = source[:-1].rsplit(b"}", 1)
    left = b'null%b,"bytes":%d}%b}' % (about, len(value), time)
    return _START + LEFT_OUT + value[len(_START) + 1 : TAG_END] + _NO_BEFORE + left


def why_left_out(value: bytes) -> str:
    """The reason in an event that stands for a row that was left out."""
    size = orjson.loads(value)["source"].get("bytes")
    return "the row is too large for its topic, and capture left it out" + (f": {size:,} bytes" if size else "")


def _after_range(value: bytes) -> tuple[int, int]:
    """Where ``after`` begins and ends, searched from outside in. A text in the row can't hold an unescaped quote, so
    the last ``source`` is the real one. No value in a row is an object, so the first brace before an ``after`` closes
    ``before``."""
    end = value.rfind(_SOURCE)
    if value.startswith(_NO_BEFORE, TAG_END):
        begin = TAG_END + len(_NO_BEFORE)
    else:
        begin = TAG_END + len(_BEFORE)
        if not value.startswith(_BEFORE, TAG_END):
            end = -1
        else:
            if value.startswith(b"null", begin):
                begin += len(b"null")
            else:
                close = value.find(b"}" + _AFTER, begin)
                begin = close + 1 if close >= 0 else len(value)
            end = end if value.startswith(_AFTER, begin) else -1
            begin += len(_AFTER)
    if end < 0:
        raise LockstepError(
            "a record on a table's topic is not an event of this version",
            hint="only Lockstep may write to its topics; find out who else does",
        )
    return begin, end


def schema_id_of(value: bytes) -> str:
    """The schema id of an event that ``event_value`` made; empty for anything else."""
    start = value.rfind(_SCHEMA_ID) + len(_SCHEMA_ID)
    return value[start : value.find(b'"', start)].decode() if start >= len(_SCHEMA_ID) else ""


def commit_time_ms_of(value: bytes) -> int:
    """An event's commit time in milliseconds since 1970, without parsing; 0 if the value doesn't end in one."""
    # ``ts_ms`` is the last member: ``...,"ts_ms":1700000000000}``.
    digits = value[value.rfind(b":") + 1 : -1]
    return int(digits) if digits.isdigit() else 0


class RowReader:
    """Takes rows and schema ids out of events' bytes without parsing. The ``source`` blocks of events of one shape
    begin alike, so the schema id is looked up once and then compared."""

    def __init__(self) -> None:
        self.beginning = b"\0"
        """The start of the last event's source block, up to the end of the schema id. The initial value matches no
        event."""
        self._schema_id = ""

    def read(self, value: bytes) -> tuple[bytes | None, str]:
        """The JSON of the row, None for a deletion, and the schema id. Raises LockstepError if it isn't an event."""
        begin, end = _after_range(value)
        if not value.startswith(self.beginning, end):
            self._schema_id = schema_id_of(value)
            if not self._schema_id:
                raise LockstepError(
                    "a record on a table's topic is not an event of this version",
                    hint="only Lockstep may write to its topics; find out who else does",
                )
            self.beginning = value[end : value.rfind(_SCHEMA_ID) + len(_SCHEMA_ID) + len(self._schema_id.encode()) + 1]
        row = value[begin:end]
        return (None if row == b"null" else row), self._schema_id


@dataclass(frozen=True, slots=True)
class Envelope:
    """A parsed value. ``after`` is None for a delete."""

    op: str
    tag: str
    after: dict[str, JsonValue] | None
    commit_time_ms: int


def parse_value(value: bytes) -> Envelope:
    """The envelope's bytes -> Envelope. Raises LockstepError for anything else, and for a row that was left out."""
    if op_of(value) == LEFT_OUT:  # no row, and no deletion either
        raise LockstepError(
            why_left_out(value),
            hint="make the row smaller; or raise kafka.topics.max_message_bytes, and run `lockstep snapshot table`",
        )
    try:
        parsed = orjson.loads(value)
        return Envelope(parsed["op"], parsed["tag"], parsed["after"], parsed["ts_ms"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise LockstepError(
            "a record on a table's topic is not an event",
            hint="only Lockstep may write to its topics; find out who else does",
        ) from error


def row_event(table: TableName, key: bytes, value: bytes | None, tombstone_tag: str | None, at: Position) -> RowEvent:
    """A record of a table's topic -> RowEvent. Raises LockstepError if it isn't an event."""
    try:
        key_values = orjson.loads(key)
    except orjson.JSONDecodeError as error:
        raise LockstepError(
            f"a record on {at.topic} has a key that is not JSON (partition {at.partition}, offset {at.offset})"
        ) from error
    if value is None:
        if tombstone_tag is None:
            raise LockstepError(
                f"a tombstone without a tag on {at.topic} (partition {at.partition}, offset {at.offset})"
            )
        return RowEvent(table, key_values, tombstone_tag, None, at)
    envelope = parse_value(value)
    return RowEvent(table, key_values, envelope.tag, envelope.after, at)
