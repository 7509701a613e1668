"""Lines of ``COPY ... TO STDOUT`` as PostgreSQL writes them, and the values that a snapshot's reader reads."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from cdc.model.table import Table
from cdc.protocol.copy_text import split_row
from cdc.protocol.pgoutput import Fields

_ESCAPES = {b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v"}

_ESCAPED = re.compile(b"[" + b"".join(map(re.escape, _ESCAPES)) + b"]")


def escaped(value: bytes | None) -> bytes:
    """A value as PostgreSQL writes it."""
    if value is None:
        return b"\\N"
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], value)


def copy_line(row: Sequence[Any]) -> bytes:
    return b"\t".join(map(escaped, row)) + b"\n"


def snapshot_rows(reader: Any, table: Table, **options: Any) -> Iterator[Fields]:
    for lines in reader.lines(table, **options):
        for line in lines:
            yield split_row(bytes(line)[:-1])
