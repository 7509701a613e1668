"""The members of a JSON object byte for byte: a number that is parsed and printed again may get other digits."""

import re
from typing import Final

import orjson

_SHORT_MEMBER: Final = re.compile(rb'\s*+"([^"]*+)"\s*+:\s*+("[^"]{0,99}+"|[^\s"\[\]{},:]++)\s*+([,}])')
"""Most members, at once. Long strings are searched differently, twenty times as fast as by a regular expression."""
_KEY: Final = re.compile(rb'\s*+"([^"]*+)"\s*+:\s*+')
_LITERAL: Final = re.compile(rb"[^\s,}\]]++")
_NEXT: Final = re.compile(rb"\s*+([,}])")
_TOKEN: Final = re.compile(rb'"[^"]*+"|[\[\]{}]')
_DIMENSIONS: Final = 6
"""The most that PostgreSQL's arrays have; a json value is text in an event, so nothing is nested deeper."""


def _nested() -> re.Pattern[bytes]:
    inner = rb'[^"\[\]{}]++|"[^"]*+"'
    level = rb"\[(?:%b)*+\]|\{(?:%b)*+\}" % (inner, inner)
    for _ in range(_DIMENSIONS - 1):
        level = rb"\[(?:%b|%b)*+\]" % (inner, level)
    return re.compile(level)


_NESTED: Final = _nested()
_START: Final = re.compile(rb"\s*+\{\s*+(\})?")
_QUOTE, _BRACKET, _BRACE, _COMMA = b'"[{,'


def split_object(json: bytes) -> dict[str, bytes]:
    """The top-level members of a JSON object, values as slices of it. Raises ValueError if it isn't an object. It finds
    where values end and doesn't validate their content."""
    # Escapes are masked at the same length; then every remaining quote begins or ends a string.
    escaped = b"\\" in json
    masked = json.replace(rb"\\", b"..").replace(rb"\"", b"..") if escaped else json
    start = _START.match(masked)
    if start is None:
        raise ValueError("not a JSON object")
    members: dict[str, bytes] = {}
    position = start.end()
    closed = start.group(1) is not None
    while not closed:
        short = _SHORT_MEMBER.match(masked, position)
        if short is not None:
            key_start, key_end = short.span(1)
            begin, end = short.span(2)
            position = short.end()
        else:
            key = _KEY.match(masked, position)
            if key is None:
                raise ValueError("not a JSON object")
            key_start, key_end = key.span(1)
            begin = key.end()
            end = _value_end(masked, begin)
            following = _NEXT.match(masked, end)
            if following is None:
                raise ValueError("not a JSON object")
            position = following.end()
        name = json[key_start:key_end]
        members[orjson.loads(b'"%b"' % name) if escaped and b"\\" in name else name.decode()] = json[begin:end]
        closed = masked[position - 1] != _COMMA
    if masked[position:].strip():
        raise ValueError("more than a JSON object")
    return members


def _value_end(masked: bytes, begin: int) -> int:
    """Where the value that begins here ends. Raises ValueError."""
    first = masked[begin : begin + 1]
    if first == b'"':
        end = masked.find(b'"', begin + 1)
        if end < 0:
            raise ValueError("an open string in JSON")
        return end + 1
    if first in (b"[", b"{"):
        return _nested_end(masked, begin)
    literal = _LITERAL.match(masked, begin)
    if literal is None:
        raise ValueError("a missing value in JSON")
    return literal.end()


def _nested_end(masked: bytes, begin: int) -> int:
    # Nearly always an array of numbers, of any length.
    end = masked.find(b"]" if masked[begin] == _BRACKET else b"}", begin + 1)
    if not any(masked.find(inner, begin + 1, end) >= 0 for inner in (b'"', b"[", b"{")):
        if end < 0:
            raise ValueError("an open array or object in JSON")
        return end + 1
    nested = _NESTED.match(masked, begin)
    if nested is not None:
        return nested.end()
    depth = 0
    for token in _TOKEN.finditer(masked, begin):
        first = masked[token.start()]
        if first == _QUOTE:
            continue
        if first in (_BRACKET, _BRACE):
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError("an open array or object in JSON")
