"""Reads rows and finds keys in a Redis server."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from cdc.model.table import Table
from sinks.contract import StoredRow
from sinks.page_size import PageSize
from sinks.redis.connection import Client, pipelined
from sinks.redis.layout import TableLayout, Template, glob_text, row_of

_SCAN_COUNT: Final = 1000
_REMEMBERED: Final = 100_000
ROWS_MAX: Final = 1000
"""How many rows one pipeline asks for at most."""


class RecentKeys:
    """The keys that came lately. SCAN names a key again where the server's own table shrinks, and soon after.

    Its order is such that all places of the larger table that become one of the smaller are next to each other.
    """

    def __init__(self) -> None:
        self._recent = set[bytes]()
        self._before = set[bytes]()

    def new(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of these keys that haven't come lately."""
        new = [key for key in dict.fromkeys(keys) if key not in self._recent and key not in self._before]
        self._recent.update(new)
        if len(self._recent) > _REMEMBERED:
            self._recent, self._before = set(), self._recent
        return new


def read_rows(
    client: Client, keys: Sequence[bytes | str], table: Table, layout: TableLayout, page_size: PageSize
) -> Iterator[StoredRow]:
    """The live rows of these keys, a bounded number of bytes at a time."""
    command, fields, stored = ("HGETALL", (), _of_fields) if layout.has_fields else ("HMGET", ("t", "v"), _of_json)
    begin = 0
    while portion := keys[begin : begin + page_size.rows]:
        begin += len(portion)
        replies = list(_ours(pipelined(client, [(command, key, *fields) for key in portion])))
        for reply in replies:
            row = stored(reply, table, layout)
            if row is not None:
                yield row
        page_size.learn(len(portion), sum(map(_size, replies)))


def _of_json(reply: Any, table: Table, _: TableLayout) -> StoredRow | None:
    tag, value = reply
    if value is None:
        return None
    stored = orjson.loads(value)
    row = {column.name: stored.get(column.name) for column in table.columns}
    lacks = [name for name in row if name not in stored]
    return StoredRow({name: row[name] for name in table.key}, row, tag.decode(), lacks)


def _of_fields(reply: Any, table: Table, layout: TableLayout) -> StoredRow | None:
    tag_field, deletion = f"{layout.mark}t".encode(), f"{layout.mark}x".encode()
    fields = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
    if tag_field not in fields or deletion in fields:
        return None
    row, lacks = row_of(fields, table.columns)
    return StoredRow({name: row[name] for name in table.key}, row, fields[tag_field].decode(), lacks)


def _size(reply: Any) -> int:
    values = reply.values() if isinstance(reply, dict) else reply
    return sum(len(value) for value in values if value is not None)


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
