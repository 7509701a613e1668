"""Values of events -> PostgreSQL's COPY text format (pure).

An event holds numbers, booleans and arrays as JSON and everything else as PostgreSQL's own text, so the JSON value alone says
how it is written.
"""

from collections.abc import Iterable

from cdc.model.event import JsonValue

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_NULL = "\\N"


def copy_line(values: Iterable[JsonValue]) -> str:
    """One row."""
    return "\t".join(map(_field, values)) + "\n"


def _field(value: JsonValue) -> str:
    if value is None:
        return _NULL
    if isinstance(value, list):
        return array_literal(value).translate(_ESCAPES)
    return plain_text(value).translate(_ESCAPES)


def plain_text(value: JsonValue) -> str:
    """A value that is no array, as PostgreSQL reads it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | float):
        return repr(value)
    raise AssertionError("an event's value is never null here, an object or a list")


def array_literal(values: list[JsonValue]) -> str:
    """A JSON array as PostgreSQL's array literal; nested lists are further dimensions. Text is quoted always."""
    pieces = []
    for value in values:
        if value is None:
            pieces.append("NULL")
        elif isinstance(value, list):
            pieces.append(array_literal(value))
        elif isinstance(value, str):
            pieces.append('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
        else:
            pieces.append(plain_text(value))
    return "{" + ",".join(pieces) + "}"
