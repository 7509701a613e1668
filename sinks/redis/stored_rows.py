"""Reads rows and finds keys in a Redis server."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from cdc.model.table import Table
from sinks.contract import StoredRow
from sinks.redis.connection import Client, pipelined
from sinks.redis.layout import TableLayout, Template, glob_text, row_of

_SCAN_COUNT: Final = 1000


def read_rows(client: Client, keys: Sequence[bytes | str], table: Table, layout: TableLayout) -> Iterator[StoredRow]:
    """The live rows of these keys."""
    if layout.has_fields:
        yield from _read_fields(client, keys, table, layout)
        return
    replies = pipelined(client, [("HMGET", key, "t", "v") for key in keys])
    for reply in _ours(replies):
        tag, value = reply
        if value is not None:
            stored = orjson.loads(value)
            row = {column.name: stored.get(column.name) for column in table.columns}
            lacks = [name for name in row if name not in stored]
            yield StoredRow({name: row[name] for name in table.key}, row, tag.decode(), lacks)


def _read_fields(client: Client, keys: Sequence[bytes | str], table: Table, layout: TableLayout) -> Iterator[StoredRow]:
    tag_field, deletion = f"{layout.mark}t".encode(), f"{layout.mark}x".encode()
    for reply in _ours(pipelined(client, [("HGETALL", key) for key in keys])):
        fields = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
        if tag_field in fields and deletion not in fields:
            row, lacks = row_of(fields, table.columns)
            yield StoredRow({name: row[name] for name in table.key}, row, fields[tag_field].decode(), lacks)


def _ours(replies: Iterable[Any]) -> Iterator[Any]:
    """The replies about hashes. Raises the client's error for what is no reply."""
    for reply in replies:
        if isinstance(reply, Exception):
            if "WRONGTYPE" not in str(reply):
                raise reply
            continue  # somebody else's; the row was rejected
        yield reply


def keys_of(client: Client, prefix: str, template: Template) -> Iterator[list[bytes]]:
    """The keys of this template after the prefix, in portions. A key may come twice."""
    pattern = glob_text(prefix) + template.glob()
    if template.is_open:  # its first segment is nobody else's, as prepare has made sure
        yield from scan_keys(client, pattern)
        return
    fits = re.compile((re.escape(prefix) + template.expression()).encode(), re.DOTALL).fullmatch
    for keys in scan_keys(client, pattern):
        ours = [key for key in keys if fits(key)]
        if ours:
            yield ours


def scan_keys(client: Client, pattern: str) -> Iterator[list[bytes]]:
    """All keys that the pattern fits, in portions. A key may come twice."""
    cursor = 0
    while True:
        cursor, keys = client.scan(cursor, match=pattern, count=_SCAN_COUNT)
        if keys:
            yield keys
        if cursor == 0:
            return
