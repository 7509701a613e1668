"""PostgreSQL's text of a value -> its JSON in an event. Exact: no digit, bit or instant is lost.

==============================  ===========================================================================
type                            in the event
==============================  ===========================================================================
bool                            ``true``, ``false``
int2 int4 int8 oid              number, every digit (a reader with doubles must take care beyond 2**53)
float4 float8                   number with PostgreSQL's shortest exact digits, or text: ``"NaN"``,
                                ``"Infinity"``, ``"-Infinity"``
timestamp                       text, ISO 8601: ``"2016-11-04T13:51:30.123456"``; `` BC`` and ``infinity`` as
                                PostgreSQL has them
timestamptz                     the same in UTC with ``Z``
arrays                          JSON array of the element's form, nested for several dimensions;
                                with explicit bounds (``[0:1]={7,8}``) PostgreSQL's text, since JSON arrays have none
everything else                 PostgreSQL's own text: numeric, date, time, uuid, jsonb, bytea (``\\x...``),
                                interval, ...
==============================  ===========================================================================

The text must come from a session with ``SESSION_SETTINGS``; else the same value has other texts.
"""

import re
from collections.abc import Callable
from typing import Final

import orjson

from cdc.model.json_numbers import FLOATS, INTEGERS

SESSION_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "client_encoding": "UTF8",
    # The text of regclass and similar types, and the names of types.
    "quote_all_identifiers": "off",
    # The same. Also security: a role that may create functions in a schema of the path could make us run them, with a
    # signature that fits our arguments better than that of the function we mean.
    "search_path": "pg_catalog",
}
"""Set on every connection that reads values. Role, database and server defaults would change the bytes otherwise."""

JsonEncoder = Callable[[bytes], bytes]

_ZERO, _NINE = ord("0"), ord("9")


def _verbatim(value: bytes) -> bytes:
    return value


def _float(value: bytes) -> bytes:
    if value == b"-0":  # in JSON, -0 would be the integer zero, which has no sign
        return b"-0.0"
    # NaN, Infinity and -Infinity end in a letter, numbers in a digit.
    return value if _ZERO <= value[-1] <= _NINE else b'"' + value + b'"'


_BOOLS: Final[dict[bytes, bytes]] = {b"t": b"true", b"f": b"false"}


def _bool(value: bytes) -> bytes:
    try:
        return _BOOLS[value]
    except KeyError:
        raise ValueError("not a boolean") from None


def _safe_text(value: bytes) -> bytes:
    """For types whose text never needs escaping in JSON."""
    return b'"' + value + b'"'


def _text(value: bytes) -> bytes:
    return orjson.dumps(value.decode())


def _timestamp(value: bytes) -> bytes:
    return b'"' + value.replace(b" ", b"T", 1) + b'"'


def _timestamptz(value: bytes) -> bytes:
    return b'"' + value.replace(b" ", b"T", 1).replace(b"+00", b"Z", 1) + b'"'


SCALARS: Final[dict[str, JsonEncoder]] = {
    "bool": _bool,
    **dict.fromkeys(sorted(INTEGERS), _verbatim),
    **dict.fromkeys(sorted(FLOATS), _float),
    "numeric": _safe_text,
    "date": _safe_text,
    "time": _safe_text,
    "timetz": _safe_text,
    "interval": _safe_text,
    "uuid": _safe_text,
    "inet": _safe_text,
    "cidr": _safe_text,
    "macaddr": _safe_text,
    "macaddr8": _safe_text,
    "bit": _safe_text,
    "varbit": _safe_text,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
}


_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})

_DATE, _TIME = r"\d{4,}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?"
_TEXT_FORMS: Final = {
    name: re.compile(form)
    for name, form in {
        "numeric": r"-?\d+(\.\d+)?|NaN|-?Infinity",
        "date": rf"{_DATE}( BC)?|-?infinity",
        "time": _TIME,
        "timetz": rf"{_TIME}[+-][\d:]+",
        "timestamp": rf"{_DATE}T{_TIME}( BC)?|-?infinity",
        "timestamptz": rf"{_DATE}T{_TIME}Z( BC)?|-?infinity",
        "uuid": r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}",
        "bytea": r"\\x([\da-f]{2})*",
    }.items()
}
"""All texts of a type's values, for types to which keys are altered from text or from each other."""


def has_form(value: object, value_type: str, is_array: bool) -> bool:
    """Whether an event can have this parsed JSON as a value of the type; True where only the database knows. Null
    doesn't count."""
    if is_array:
        if isinstance(value, list):
            return all(each is None or has_form(each, value_type, isinstance(each, list)) for each in value)
        return isinstance(value, str) and value.startswith("[")  # with explicit bounds
    if isinstance(value, bool) or value_type == "bool":
        return isinstance(value, bool) and value_type == "bool"
    if value_type in INTEGERS:
        return isinstance(value, int)
    if value_type in FLOATS:
        return isinstance(value, int | float) or value in _NOT_FINITE
    form = _TEXT_FORMS.get(value_type)
    return isinstance(value, str) and (form is None or form.fullmatch(value) is not None)


def json_encoder(value_type: str, is_array: bool) -> JsonEncoder:
    """The function that turns a value's text into its JSON. Types without an entry become text, which is always exact.
    An array's function raises ValueError if the text isn't an array literal."""
    scalar = SCALARS.get(value_type, _text)
    if not is_array:
        return scalar
    # box is the only built-in type whose array elements are separated by a semicolon.
    delimiter = ";" if value_type == "box" else ","

    def array(value: bytes) -> bytes:
        return _array(value, scalar, delimiter)

    return array


def _array(value: bytes, element: JsonEncoder, delimiter: str) -> bytes:
    """An array literal, ``{1,NULL,"a b"}``, -> JSON array. Raises ValueError if it isn't one."""
    text = value.decode()
    if text.startswith("["):  # explicit lower bounds
        return orjson.dumps(text)
    if value == b"{}":
        return b"[]"
    pieces: list[str] = []
    position = 0
    depth = 0
    end = len(text)
    while position < end:
        character = text[position]
        if character == "{":
            depth += 1
            pieces.append("[")
            position += 1
        elif character == "}":
            depth -= 1
            pieces.append("]")
            position += 1
        elif character == delimiter:
            pieces.append(",")
            position += 1
        elif character == '"':
            content, position = _quoted(text, position + 1)
            pieces.append(element(content.encode()).decode())
        else:
            start = position
            while position < end and text[position] not in (delimiter, "}"):
                position += 1
            content = text[start:position]
            pieces.append("null" if content == "NULL" else element(content.encode()).decode())
    if depth or not pieces or pieces[0] != "[":
        raise ValueError("not an array literal")
    return "".join(pieces).encode()


def _quoted(text: str, position: int) -> tuple[str, int]:
    """The content of a quoted element, unescaped, and the position after its closing quote."""
    content: list[str] = []
    while True:
        quote = text.find('"', position)
        if quote < 0:
            raise ValueError("not an array literal")
        backslash = text.find("\\", position, quote)
        if backslash < 0:
            content.append(text[position:quote])
            return "".join(content), quote + 1
        content.append(text[position:backslash])
        content.append(text[backslash + 1])
        position = backslash + 2
