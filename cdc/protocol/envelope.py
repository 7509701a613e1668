"""An event's bytes: Debezium's envelope as JSON, written here and read back by the jobs.

Key: the key columns in key order, ``{"id":42}``. Value::

    {"op":"u","tag":"<28 hex digits>","before":null,"after":{...},"source":{...},"ts_ms":...}

``op`` is ``r`` (snapshot), ``c``, ``u`` or ``d``; ``t`` means that a table without a key was emptied, and ``x`` that a
row is left out because it is too large for the topic. ``op`` and ``tag`` have fixed offsets, so readers compare tags
without parsing. ``ts_ms`` is the commit time, not the time of publishing: the same WAL must give the same bytes. A
tombstone follows each delete: a null value with the tag in the header ``tag``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, UnsupportedChange
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.printable import toml_key, visible
from cdc.model.table import Column, Table, TableName
from cdc.model.tag import TEXT_LENGTH, transaction_prefix
from cdc.model.value_types import INTEGERS
from cdc.protocol.pgoutput import Field
from cdc.protocol.pgvalues import has_form, json_encoder

TAG_HEADER: Final = "tag"
"""Header of a tombstone: its tag, 28 hex digits."""

TAG_START: Final = len('{"op":"u","tag":"')
TAG_END: Final = TAG_START + TEXT_LENGTH
"""Where the tag is, for code that slices a whole column of events. Other code calls ``tag_of``."""

_EVENT_START: Final = b'{"op":"'

DELETED: Final = b"d"
EMPTIED: Final = b"t"
LEFT_OUT: Final = b"x"
"""What ``op_of`` returns for events without a row."""

LEFT_OUT_START: Final = _EVENT_START + LEFT_OUT
"""For code that compares a whole column of events."""

CONNECTOR: Final = "postgresql"
"""``source.connector``, by which readers of Debezium's format recognise the types."""

RowEncoder = Callable[[Sequence[Field]], bytes]


def _object_encoder(
    columns: Sequence[Column], positions: Sequence[int], absent: Callable[[int], bytes] | None = None
) -> RowEncoder:
    """Values of a row -> JSON object of the columns at ``positions``. Raises ValueError for a wrong number of values.

    ``absent`` supplies the text for a null at a position; the default is JSON's null.

    The function is generated, as in ``dataclasses``, because it runs for every row: unpacking into names with one ``%``
    at the end takes half the time of a loop. The generated source contains no name from the table.
    """
    names = [f"value_{p}" for p in range(len(columns))]
    encoders = {
        f"encode_{p}": json_encoder(columns[p].value_type, columns[p].is_array)
        for p in positions
        if columns[p].is_array or columns[p].value_type not in INTEGERS
    }
    parts = [
        f"{'null' if absent is None else f'absent({p})'} if {names[p]} is None"
        f" else {f'encode_{p}({names[p]})' if f'encode_{p}' in encoders else names[p]}"
        for p in positions
    ]
    values = "".join(f"{part}, " for part in parts)
    source = f"def encode(fields):\n    ({', '.join(names)},) = fields\n    return template % ({values})\n"
    template = b"{%b}" % b",".join(orjson.dumps(columns[p].name).replace(b"%", b"%%") + b":%b" for p in positions)
    namespace: dict[str, Any] = {"template": template, "null": b"null", "absent": absent, **encoders}
    exec(source, namespace)  # noqa: S102  generated above from numbers alone
    encode: RowEncoder = namespace["encode"]
    return encode


def _no_key(_fields: Sequence[Field]) -> bytes:
    """The key of every event of a table without a key: one for all, so that they stay in order."""
    return b"{}"


def is_key(table: Table, key: Mapping[str, JsonValue]) -> bool:
    """Whether an event of this shape can have the key, as far as JSON shows: several types are text."""
    return tuple(key) == table.key and all(
        has_form(key[column.name], column.value_type, column.is_array) for column in table.key_columns
    )


class TableEncoder:
    """Encodes the rows of one table shape: ``key`` and ``row`` take one value per column, in the columns' order.
    UNCHANGED must have been resolved before: it has no JSON, on purpose. ``key`` raises UnsupportedChange for a null,
    since rows with a null key can't be told apart."""

    def __init__(self, table: Table, *, server: str, database: str, version: str) -> None:
        position = {column.name: p for p, column in enumerate(table.columns)}
        self.table = table
        self.key_positions = tuple(position[name] for name in table.key)
        self.key: RowEncoder = _object_encoder(table.columns, self.key_positions, self._null_in_key)
        self.row: RowEncoder = _object_encoder(table.columns, range(len(table.columns)))
        if not table.key:
            self.key = _no_key
        self._columns = [json_encoder(column.value_type, column.is_array) for column in table.columns]
        self._names = [orjson.dumps(column.name) for column in table.columns]
        self._about = (server, database, version)
        self._source = orjson.dumps(
            {
                "version": version,
                "connector": CONNECTOR,
                "name": server,
                "db": database,
                "schema": table.name.schema,
                "table": table.name.name,
                "schema_id": table.schema_id,
            }
        )[:-1]

    def of(self, table: Table) -> "TableEncoder":
        """The encoder of another shape, with the same server, database and version."""
        server, database, version = self._about
        return TableEncoder(table, server=server, database=database, version=version)

    def _null_in_key(self, position: int) -> bytes:
        name, column = self.table.name, visible(self.table.columns[position].name)
        raise UnsupportedChange(
            f"a row of {name} is null in {column}, which is in its key, so the key doesn't identify it",
            hint=f"give the table another key in lockstep.toml ([source.options.{toml_key(str(name))}] key = [...], or"
            " none for its primary key), then start again: the table is copied again. Or make the column not null, then"
            " run `lockstep recover`, which copies the tables again. Nothing was skipped",
        )

    def column(self, index: int, value: bytes) -> bytes:
        return self._columns[index](value)

    def row_with(self, fields: Sequence[Field], known_json: Mapping[int, bytes]) -> bytes:
        """``row``, with the JSON of some columns given. Raises ValueError for a wrong number of fields."""
        if len(fields) != len(self._columns):
            raise ValueError("another number of values")
        parts = []
        for index, value in enumerate(fields):
            json = known_json.get(index)
            if json is None:
                json = b"null" if value is None else self._columns[index](value)  # type: ignore[arg-type]  # none is UNCHANGED
            parts.append(self._names[index] + b":" + json)
        return b"{" + b",".join(parts) + b"}"

    def source(self, *, commit_time_ms: int, xid: int, snapshot: bool = False) -> bytes:
        """The start of the ``source`` block that all events of one transaction share; the LSN follows."""
        return self._source + b',"snapshot":"%b","ts_ms":%d,"txId":%b,"lsn":' % (
            b"true" if snapshot else b"false",
            commit_time_ms,
            b"null" if snapshot else b"%d" % xid,
        )


def tag_prefix(epoch: int, commit_lsn: int) -> bytes:
    """The start of the tag that all events of one transaction share."""
    return transaction_prefix(epoch, commit_lsn).encode()


def tag_text(prefix: bytes, seq: int) -> bytes:
    return b"%b%08x" % (prefix, seq)


def event_value(
    op: bytes, prefix: bytes, seq: int, before: bytes, after: bytes, source: bytes, lsn: int, commit_time_ms: int
) -> bytes:
    """The envelope's bytes. ``before`` and ``after`` are JSON; ``source`` comes from ``TableEncoder.source``."""
    return b'{"op":"%b","tag":"%b%08x","before":%b,"after":%b,"source":%b%d},"ts_ms":%d}' % (
        op,
        prefix,
        seq,
        before,
        after,
        source,
        lsn,
        commit_time_ms,
    )


def op_of(value: bytes) -> bytes:
    """The event's ``op``, one letter; empty if the value doesn't begin like an event."""
    at = len(_EVENT_START)
    return value[at : at + 1] if value.startswith(_EVENT_START) else b""


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
    return _EVENT_START + LEFT_OUT + value[len(_EVENT_START) + 1 : TAG_END] + _NO_BEFORE + left


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
