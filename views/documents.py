"""Documents as PostgreSQL writes them: the text of ``jsonb`` and ``json`` values, from values inside a view. Pure.
``jsonb`` has one form: a blank after each comma and colon, and the keys of an object in order, each once. ``json`` is
the text that PostgreSQL's functions write, with a blank before each colon too.
"""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

from views.failures import EvaluationError
from views.numerics import text_of
from views.values import FLOATS, JSONB, JsonForm, Kind, SqlType, Value, days_text, micros_text

ToJson = Callable[[Value], str]
"""A value -> its text as a part of a document."""

_DEPTH_MAX: Final = 100


def has_json(of: SqlType, within: SqlType) -> bool:
    """Whether such a value's text as a part of a document of type jsonb or json is known here."""
    if of.kind is Kind.OPAQUE:
        forms = (JsonForm.JSONB, JsonForm.TEXT, *(FLOATS if within == JSONB else [JsonForm.JSON]))
        return of.json_form in forms
    return of.kind is not Kind.UNKNOWN


def to_json(of: SqlType) -> ToJson:
    """The function that writes values of a type. ``has_json`` must be true for the type."""
    plain = _plain(of)
    return lambda value: "null" if value is None else plain(value)


def _plain(of: SqlType) -> Callable[[Any], str]:
    match of.kind:
        case Kind.BOOL:
            return lambda value: "true" if value else "false"
        case Kind.INT2 | Kind.INT4 | Kind.INT8:
            return str
        case Kind.NUMERIC:
            return lambda value: f'"{value}"' if value[-1].isalpha() else value  # NaN and the infinities
        case Kind.DATE:
            return lambda value: f'"{days_text(value)}"'
        case Kind.TIMESTAMP:
            return lambda value: f'"{micros_text(value)}"'
        case Kind.TIMESTAMPTZ:
            return lambda value: f'"{micros_text(value, "+00:00")}"'
        case Kind.CHAR:
            return lambda value: _quoted(value.ljust(of.scale or 0))
        case Kind.OPAQUE:
            return _OPAQUE[of.json_form]
        case _:
            return _quoted


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: str) -> str:
    """A float as jsonb writes it: a numeric of its shortest digits."""
    if value.startswith('"'):
        return value
    number = Decimal(value)
    return text_of(number.to_integral_value() if number == number.to_integral_value() else number)


_OPAQUE: Final[dict[JsonForm, Callable[[str], str]]] = {
    JsonForm.JSONB: orjson.loads,
    JsonForm.JSON: orjson.loads,
    JsonForm.TEXT: lambda value: _quoted(orjson.loads(value)),
    **dict.fromkeys(FLOATS, _number),
}


def document(text: str) -> str:
    """A document's text as its value inside a view."""
    return orjson.dumps(text).decode()


def object_writer(names: Sequence[str], of: Sequence[SqlType], within: SqlType) -> Callable[[Sequence[Value]], str]:
    writers = list(map(to_json, of))
    if within == JSONB:
        places = {name: place for place, name in enumerate(names)}  # the last one of equal names counts
        fields = [(f"{_quoted(name)}: ", place) for name, place in sorted(places.items(), key=_jsonb_order)]
    else:
        fields = [(f"{_quoted(name)} : ", place) for place, name in enumerate(names)]
    return lambda values: "{" + ", ".join([name + writers[place](values[place]) for name, place in fields]) + "}"


def array_writer(of: Sequence[SqlType]) -> Callable[[Sequence[Value]], str]:
    writers = list(map(to_json, of))
    return lambda values: f"[{', '.join([write(value) for write, value in zip(writers, values, strict=True)])}]"


def _jsonb_order(entry: tuple[str, Any]) -> tuple[int, bytes]:
    """The order of an object's keys: shorter ones first, then by bytes."""
    name = entry[0].encode()
    return len(name), name


def jsonb_text(text: str) -> str:
    """A document's text in jsonb's form. Raises ValueError for text that isn't JSON or isn't supported."""
    try:
        return _written(_parsed(text), 0)
    except (InvalidOperation, RecursionError) as error:
        raise ValueError("not JSON that is supported") from error


def json_member(value: str, member: str | int) -> str | None:
    """``->``: a member of a jsonb document by name, or an element by position. Raises EvaluationError."""
    return _member(value, member, lambda found: document(_written(found, 0)))


def json_member_text(value: str, member: str | int) -> str | None:
    """``->>``: the same as text; null for a JSON null. Raises EvaluationError."""
    return _member(
        value, member, lambda found: found if found is None or isinstance(found, str) else _written(found, 0)
    )


def _member(value: str, member: str | int, written: Callable[[Any], str | None]) -> str | None:
    try:
        whole = _parsed(orjson.loads(value))
        if isinstance(whole, dict):
            return written(whole[member]) if member in whole else None
        elements = whole if isinstance(whole, list) else [whole]  # PostgreSQL takes a scalar as an array of one element
        if isinstance(member, int) and -len(elements) <= member < len(elements):
            return written(elements[member])
    except (ValueError, InvalidOperation, RecursionError):
        raise EvaluationError("a document can't be read here: it is nested too deeply") from None
    return None


def _parsed(text: str) -> Any:
    def number(digits: str) -> Decimal:
        return Decimal(digits)

    def constant(name: str) -> None:
        raise ValueError(f"{name} isn't JSON")

    return json.loads(text, parse_int=number, parse_float=number, parse_constant=constant)


def _written(part: Any, depth: int) -> str:
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deeply")
    match part:
        case None:
            return "null"
        case bool():
            return "true" if part else "false"
        case Decimal():
            return text_of(part)
        case str():
            if "\0" in part or (not part.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in part)):
                raise ValueError("a character that text can't have")
            return _quoted(part)
        case list():
            return f"[{', '.join([_written(element, depth + 1) for element in part])}]"
        case _:
            entries = sorted(part.items(), key=_jsonb_order)
            return "{" + ", ".join([f"{_quoted(name)}: {_written(value, depth + 1)}" for name, value in entries]) + "}"
