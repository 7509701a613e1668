"""A row's bytes: the key and the value of an event. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.event_format.column_types import has_form, json_encoder
from cdc.model.errors import UnsupportedChange
from cdc.model.event import JsonValue
from cdc.model.json_numbers import INTEGERS
from cdc.model.printable import toml_key, visible
from cdc.model.table import Column, Table
from cdc.protocol.pgoutput import Field

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
    names = [f"value_{p}" for p in range(len(columns))]  # none for an append-only table that lost its last column
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
    targets = "".join(f"{name}, " for name in names)
    source = f"def encode(fields):\n    ({targets}) = fields\n    return template % ({values})\n"
    template = b"{%b}" % b",".join(orjson.dumps(columns[p].name).replace(b"%", b"%%") + b":%b" for p in positions)
    namespace: dict[str, Any] = {"template": template, "null": b"null", "absent": absent, **encoders}
    exec(source, namespace)  # noqa: S102  generated above from numbers alone
    encode: RowEncoder = namespace["encode"]
    return encode


def _no_key(_fields: Sequence[Field]) -> bytes:
    """The key of every event of a table without a key: one for all, so that they stay in order."""
    return b"{}"


def is_key(table: Table, key: Mapping[str, JsonValue]) -> bool:
    """Whether an event of this shape can have the key, as far as ``has_form`` knows the types of its columns."""
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
