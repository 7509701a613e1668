"""Rows of ``COPY ... TO STDOUT`` in text format -> the values' texts, as the stream has them. Layout: PostgreSQL
documentation, "COPY", section "Text Format"."""

import re

from cdc.protocol.pgoutput import Fields

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_CONTROL = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _unescape(match: re.Match[bytes]) -> bytes:
    character = match.group(1)
    return _CONTROL.get(character, character)


def split_row(line: bytes) -> Fields:
    """One line without its newline -> one value per column; NULL is None."""
    values = line.split(b"\t")
    if b"\\" not in line:
        return tuple(values)
    return tuple(
        None if value == b"\\N" else _ESCAPED.sub(_unescape, value) if b"\\" in value else value for value in values
    )
