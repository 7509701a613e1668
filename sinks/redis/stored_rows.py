"""Reads rows and finds keys in a Redis server."""

import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from cdc.model.table import Table
from sinks.contract import StoredRow
from sinks.page_size import PageSize
from sinks.redis.connection import Client, pipelined
from sinks.redis.layout import TableLayout, Template, glob_text, row_of

_SCAN_COUNT: Final = 1000
_REMEMBERED: Final = 100_000
_LISTED_AT_ONCE: Final = 1000
_LENGTH: Final = struct.Struct("<I")
ROWS_MAX: Final = 1000
"""How many rows one pipeline reads at most."""


class RecentKeys:
    """The keys that came recently. SCAN repeats a key when the server's own table shrinks, and soon after the first
    time.

    Places of the larger table that become one place of the smaller are adjacent in its order.
    """

    def __init__(self) -> None:
        self._recent = set[bytes]()
        self._before = set[bytes]()

    def new(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of these keys that haven't come recently."""
        new = [key for key in dict.fromkeys(keys) if key not in self._recent and key not in self._before]
        self._recent.update(new)
        if len(self._recent) > _REMEMBERED:
            self._recent, self._before = set(), self._recent
        return new


def read_rows(
    client: Client, keys: Sequence[bytes | str], table: Table, layout: TableLayout, page_size: PageSize
) -> Iterator[StoredRow]:
    """The live rows of these keys. Each request has a bounded number of bytes."""
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
    """The replies about hashes. Raises as ``of_ours`` does."""
    return (reply for reply in map(of_ours, replies) if reply is not None)


def of_ours(reply: Any) -> Any:
    """A reply about a key; None if the key is another application's. Raises the client's error for anything else."""
    if isinstance(reply, Exception):
        if "WRONGTYPE" not in str(reply):
            raise reply
        return None  # the row was rejected
    return reply


def keys_of(client: Client, prefix: str, templates: Sequence[Template]) -> Iterator[tuple[int, list[bytes]]]:
    """Walk once for the keys that these templates make after the prefix. Yields groups, each with its template's index.

    A key may come twice. No two templates may make the same key.
    """
    pattern = glob_text(prefix) + (templates[0].glob() if len(templates) == 1 else "*")
    index_of = _index_of(prefix, templates)
    for keys in scan_keys(client, pattern):
        portions: dict[int, list[bytes]] = {}
        for key in keys:
            index = index_of(key)
            if index is not None:
                portions.setdefault(index, []).append(key)
        yield from portions.items()


def _index_of(prefix: str, templates: Sequence[Template]) -> Callable[[bytes], int | None]:
    """A function that finds the template that has made a key. Pure."""
    begin = len(prefix.encode())
    # There may be thousands of templates, and most have a table's name before the first colon.
    open_ones: dict[bytes, int] = {}
    named: dict[bytes, list[int]] = {}
    others: list[int] = []
    for index, template in enumerate(templates):
        first = template.segments[0]
        if first.column is not None:
            others.append(index)
        elif template.is_open and len(template.segments) == 1:
            open_ones[first.before.encode()] = index  # no other template's, as prepare has checked
        else:
            named.setdefault(first.before.encode(), []).append(index)
    fits = [re.compile(template.expression().encode(), re.DOTALL).fullmatch for template in templates]

    def index_of(key: bytes) -> int | None:
        text = key[begin:]
        first, colon, _ = text.partition(b":")
        if colon and first in open_ones:
            return open_ones[first]
        return next((index for index in (*named.get(first, ()), *others) if fits[index](text)), None)

    return index_of


def scan_keys(client: Client, pattern: str) -> Iterator[list[bytes]]:
    """All keys that match the pattern, in groups. A key may come twice."""
    cursor = 0
    while True:
        cursor, keys = client.scan(cursor, match=pattern, count=_SCAN_COUNT)
        if keys:
            yield keys
        if cursor == 0:
            return


class KeyLists:
    """The keys of several templates, each once, found by one walk; later keys may be missing. In a temporary file."""

    def __init__(self, client: Client, prefix: str, templates: Sequence[Template]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - close does it
        self._places: list[list[tuple[int, int]]] = [[] for _ in templates]
        waiting: dict[int, list[bytes]] = {}
        recent = RecentKeys()
        for index, keys in keys_of(client, prefix, templates):
            of_index = waiting.setdefault(index, [])
            of_index += recent.new(keys)
            if len(of_index) >= _LISTED_AT_ONCE:
                self._write(index, waiting.pop(index))
        for index, keys in waiting.items():
            self._write(index, keys)

    def keys(self, index: int) -> Iterator[list[bytes]]:
        """The keys of one template, in groups. May be called again."""
        for begin, length in self._places[index]:
            self._file.seek(begin)
            yield _unpacked(self._file.read(length))

    def close(self) -> None:
        self._file.close()

    def _write(self, index: int, keys: list[bytes]) -> None:
        begin = self._file.seek(0, os.SEEK_END)
        self._file.write(_packed(keys))
        self._places[index].append((begin, self._file.tell() - begin))


def _packed(keys: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(key)) + key for key in keys)


def _unpacked(packed: bytes) -> list[bytes]:
    keys = []
    begin = 0
    while begin < len(packed):
        begin += _LENGTH.size
        end = begin + _LENGTH.unpack_from(packed, begin - _LENGTH.size)[0]
        keys.append(packed[begin:end])
        begin = end
    return keys
