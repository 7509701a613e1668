"""Values inside a view, by SQL type: None, bool, int or str, so that equal values are equal in Python as well. Pure.

=========================  ==========================================================================
SQL type                   inside a view
=========================  ==========================================================================
bool                       ``True``, ``False``
int2, int4, int8           int
numeric                    PostgreSQL's text, every digit of its scale
text, varchar              the text
char(n)                    the text without the blanks at its end, which don't count
date                       days since 2000-01-01
timestamp, timestamptz     microseconds since 2000-01-01, in UTC
uuid                       its text
everything else            the JSON of the event, as text: views only pass it on
=========================  ==========================================================================

``infinity`` and ``-infinity`` are greater and less than every other date.
"""

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final

import orjson

from cdc.model.calendar import date_of, days_of
from cdc.model.event import JsonValue
from cdc.model.table import Column
from views.failures import EvaluationError

Value = bool | int | str | None
Row = tuple[Value, ...]


class Kind(StrEnum):
    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    NUMERIC = "numeric"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    CHAR = "char"
    OPAQUE = "opaque"
    UNKNOWN = "unknown"
    """A literal in quotes, or null, whose type isn't known yet."""


class JsonForm(StrEnum):
    """The form of an opaque value as a part of a document."""

    JSONB = "jsonb"
    JSON = "json"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    TEXT = "text"
    UNKNOWN = "unknown"


INTEGERS: Final = (Kind.INT2, Kind.INT4, Kind.INT8)


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type. ``scale`` is the scale that all values of a numeric have, or the length of ``char(n)``. ``name`` is the
    type's name in messages. ``is_user_text`` marks an opaque type of the source, such as an enum, whose event is the
    type's text.
    """

    kind: Kind
    name: str = field(compare=False)
    scale: int | None = None
    is_user_text: bool = False
    json_form: JsonForm = JsonForm.UNKNOWN

    @property
    def has_one_form(self) -> bool:
        """Whether values that are equal in SQL have the same text, so that any row can give a group's value."""
        return self.kind not in (Kind.OPAQUE, Kind.UNKNOWN) and (
            self.kind is not Kind.NUMERIC or self.scale is not None
        )

    @property
    def is_same_in_events(self) -> bool:
        """Whether a value is the same inside a view and in an event."""
        return self.kind not in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.CHAR, Kind.OPAQUE)

    @property
    def is_comparable(self) -> bool:
        """Whether views can compare two values for equality."""
        return self.kind not in (Kind.OPAQUE, Kind.UNKNOWN)


def sql_type(kind: Kind, scale: int | None = None) -> SqlType:
    """A type without a name of its own."""
    return SqlType(kind, kind.value if scale is None else f"numeric with {scale} decimals", scale)


BOOL, INT2, INT4, INT8, NUMERIC, TEXT, DATE, TIMESTAMP, TIMESTAMPTZ, UUID, UNKNOWN = map(
    sql_type,
    (
        Kind.BOOL, Kind.INT2, Kind.INT4, Kind.INT8, Kind.NUMERIC, Kind.TEXT, Kind.DATE, Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ, Kind.UUID, Kind.UNKNOWN,
    ),
)  # fmt: skip

JSONB = SqlType(Kind.OPAQUE, "jsonb", json_form=JsonForm.JSONB)
JSON = SqlType(Kind.OPAQUE, "json", json_form=JsonForm.JSON)
FLOAT8 = SqlType(Kind.OPAQUE, "double precision", json_form=JsonForm.FLOAT8)
FLOATS: Final = (JsonForm.FLOAT4, JsonForm.FLOAT8)

_KINDS: Final = {
    kind.value: kind for kind in Kind if kind not in (Kind.OPAQUE, Kind.UNKNOWN, Kind.TEXT, Kind.CHAR)
}  # text is recognized by the type's OID: other types' values are text as well
_JSON_FORMS: Final = {
    "jsonb": JsonForm.JSONB,
    "json": JsonForm.JSON,
    "float4": JsonForm.FLOAT4,
    "float8": JsonForm.FLOAT8,
    **dict.fromkeys(
        ("bpchar", "bytea", "interval", "time", "timetz", "inet", "cidr", "macaddr", "macaddr8", "bit", "varbit"),
        JsonForm.TEXT,
    ),
}
_FIRST_USER_OID: Final = 16384
_TEXT_OIDS: Final = (25, 1043)
_FIXED_NUMERIC = re.compile(r"numeric\(\d+(?:,(-?\d+))?\)")
_CHAR = re.compile(r"char(?:acter)?\((\d+)\)")


def type_of(column: Column) -> SqlType:
    name = column.type_name + "[]" * column.is_array
    if column.is_array:
        return SqlType(Kind.OPAQUE, name)
    if column.value_type == "varchar" or (column.value_type == "text" and column.type_oid in _TEXT_OIDS):
        return SqlType(Kind.TEXT, name)
    if column.value_type == "text":
        return SqlType(Kind.OPAQUE, name, is_user_text=column.type_oid >= _FIRST_USER_OID)
    if column.value_type == "bpchar" and (match := _CHAR.fullmatch(column.type_name)):
        return SqlType(Kind.CHAR, name, int(match[1]))
    kind = _KINDS.get(column.value_type, Kind.OPAQUE)
    scale = None
    if kind is Kind.NUMERIC and (match := _FIXED_NUMERIC.fullmatch(column.type_name)):
        scale = max(0, int(match[1] or 0))
    form = _JSON_FORMS.get(column.value_type, JsonForm.UNKNOWN) if kind is Kind.OPAQUE else JsonForm.UNKNOWN
    return SqlType(kind, name, scale, json_form=form)


def float_order(number: float) -> int:
    """An integer with PostgreSQL's order of floats: NaN equals itself and is the greatest, -0 equals 0."""
    bits: int = struct.unpack(">q", struct.pack(">d", number))[0]
    return bits if bits >= 0 else -(bits & INFINITY)


# --- events and values ---

FromEvent = Callable[[JsonValue], Value]
ToEvent = Callable[[Value], JsonValue]

INFINITY: Final = 2**63 - 1
"""``infinity`` of dates and timestamps. ``-infinity`` is its negative."""

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001  a timestamp without a time zone
_TIMESTAMP = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?Z?)?( BC)?")
_ORDINARY_TIMESTAMP = re.compile(r"[1-9]\d{3}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?Z?", re.ASCII)
"""Tuned: Python's own parser reads these with the same result, and faster."""

_MINUTE_TEXTS: Final = [f"{minute // 60:02}:{minute % 60:02}:" for minute in range(24 * 60)]
_SECOND_TEXTS: Final = [f"{second:02}" for second in range(60)]
_DAYS_MAX: Final = 10_000
_INSTANTS_MAX: Final = 256
"""How many texts of days and of instants are cached. A row that many others join has one instant in all of them, one
after the other. For many instants in random order, a cache is slower than writing the text.
"""

_FLOAT_EXPONENT_MIN: Final = 1e15
"""From here on, PostgreSQL writes a float with an exponent."""

_INFINITIES: Final = {"infinity": INFINITY, "-infinity": -INFINITY}
_INFINITY_TEXTS: Final = {value: text for text, value in _INFINITIES.items()}


def parse_days(text: str) -> int:
    """A date's text -> its value. Raises ValueError."""
    if text in _INFINITIES:
        return _INFINITIES[text]
    match = _TIMESTAMP.fullmatch(text)
    if match is None or match[4] is not None:
        raise ValueError("not a date in ISO 8601")
    year = int(match[1])
    return days_of(1 - year if match[8] else year, int(match[2]), int(match[3]))


def parse_micros(text: str) -> int:
    """A timestamp's text in an event -> its value. Raises ValueError."""
    if text in _INFINITIES:
        return _INFINITIES[text]
    if _ORDINARY_TIMESTAMP.fullmatch(text) is not None:
        since = datetime.fromisoformat(text.removesuffix("Z")) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp in ISO 8601")
    year, month, day, hour, minute, second, fraction, bc = match.groups()
    days = days_of(1 - int(year) if bc else int(year), int(month), int(day))
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("not a time of day")
    return days * _DAY_US + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((fraction or "0").ljust(6, "0"))


def _year_text(year: int) -> tuple[str, str]:
    return (f"{year:04}", "") if year > 0 else (f"{1 - year:04}", " BC")


def days_text(days: int) -> str:
    """A date as PostgreSQL writes it in ISO style."""
    if days in _INFINITY_TEXTS:
        return _INFINITY_TEXTS[days]
    return "".join(_date_and_era(days))


@lru_cache(_DAYS_MAX)
def _date_and_era(days: int) -> tuple[str, str]:
    year, month, day = date_of(days)
    digits, era = _year_text(year)
    return f"{digits}-{month:02}-{day:02}", era


@lru_cache(_INSTANTS_MAX)
def micros_text(micros: int, zone: str = "", separator: str = "T") -> str:
    """A timestamp as in an event. ``zone`` is ``Z`` for one with a time zone."""
    if micros in _INFINITY_TEXTS:
        return _INFINITY_TEXTS[micros]
    days, of_day = divmod(micros, _DAY_US)
    seconds, fraction = divmod(of_day, 1_000_000)
    date_text, era = _date_and_era(days)
    end = f".{fraction:06}".rstrip("0") + zone if fraction else zone
    return f"{date_text}{separator}{_MINUTE_TEXTS[seconds // 60]}{_SECOND_TEXTS[seconds % 60]}{end}{era}"


def float_json(number: float) -> str:
    """A float8 as in an event: its shortest digits, an integer without a point."""
    if not math.isfinite(number):
        return {math.inf: '"Infinity"', -math.inf: '"-Infinity"'}.get(number, '"NaN"')
    if number.is_integer() and abs(number) < _FLOAT_EXPONENT_MIN and (number or math.copysign(1, number) > 0):
        return str(int(number))
    return orjson.dumps(number).decode()


def from_event(of: SqlType) -> FromEvent:
    """The function that converts a column's value from an event. It raises EvaluationError for another type."""
    if (python := event_class(of)) is not None:
        return _checked(of, python)
    match of.kind:
        case Kind.OPAQUE:
            return _opaque
        case Kind.CHAR:
            return _without_blanks
        case Kind.DATE:
            return _parsed(of, parse_days)
        case _:
            return _parsed(of, parse_micros)


def event_class(of: SqlType) -> type | None:
    """The Python class of values that are the same in an event and inside a view; None if the type's values differ."""
    match of.kind:
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ | Kind.CHAR | Kind.OPAQUE:
            return None
        case Kind.BOOL:
            return bool
        case Kind.INT2 | Kind.INT4 | Kind.INT8:
            return int
        case _:
            return str


def _opaque(value: JsonValue) -> Value:
    return None if value is None else orjson.dumps(value).decode()


def _without_blanks(value: JsonValue) -> Value:
    if value is None or isinstance(value, str):
        return value if value is None else value.rstrip(" ")
    raise EvaluationError("a value of type char has another form than that type's")


def _checked(of: SqlType, python: type) -> FromEvent:
    def checked(value: JsonValue) -> Value:
        if value is None or value.__class__ is python:
            return value  # type: ignore[return-value]  # it is what the class says
        raise EvaluationError(f"a value of type {of.name} has another form than that type's")

    return checked


def _parsed(of: SqlType, parse: Callable[[str], int]) -> FromEvent:
    def parsed(value: JsonValue) -> Value:
        if value is None:
            return None
        try:
            return parse(value)  # type: ignore[arg-type]  # anything else than text isn't matched
        except (ValueError, TypeError):
            raise EvaluationError(f"a value of type {of.name} has another form than that type's") from None

    return parsed


def to_event(of: SqlType) -> ToEvent:
    """The function that converts a value to the form that its type has in an event."""
    match of.kind:
        case Kind.DATE:
            return lambda value: None if value is None else days_text(value)  # type: ignore[arg-type]  # an int
        case Kind.TIMESTAMP:
            return lambda value: None if value is None else micros_text(value)
        case Kind.TIMESTAMPTZ:
            return lambda value: None if value is None else micros_text(value, "Z")
        case Kind.CHAR:
            length = of.scale or 0
            return lambda value: None if value is None else str(value).ljust(length)
        case Kind.OPAQUE:
            return lambda value: None if value is None else orjson.loads(value)  # type: ignore[arg-type]  # its JSON
        case _:
            return lambda value: value
