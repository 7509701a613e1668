"""An event's keys -> the text by which PostgreSQL reads them: what undoes ``cdc.event_format.column_types``. Pure."""

import re
from collections.abc import Mapping

from cdc.model.event import JsonValue
from cdc.model.json_numbers import FLOATS, INTEGERS
from cdc.model.table import Column, Table

KeyTexts = tuple[str, ...]
"""A key's values in PostgreSQL's own text, in key order."""

_NUMBERS = INTEGERS | FLOATS
_DATE_AND_T = re.compile(r"(\d+-\d\d-\d\d)T")


def key_texts(table: Table, key: Mapping[str, JsonValue]) -> KeyTexts:
    """The texts of one key. Raises ValueError if it isn't a key of the table; the error never shows a value."""
    if key.keys() != set(table.key):
        raise ValueError(f"its columns aren't {', '.join(table.key)}")
    return tuple(_text(column, key[column.name]) for column in table.key_columns)


def _text(column: Column, value: JsonValue) -> str:
    if isinstance(value, list):
        if not column.is_array:
            raise ValueError(f"{column.name} is no array")
        return _array(column, value)
    if column.is_array:
        # Arrays with explicit bounds are text in an event.
        if not isinstance(value, str):
            raise ValueError(f"{column.name} is an array")
        return _storable(column, value)
    return _scalar(column, value)


def _scalar(column: Column, value: JsonValue) -> str:
    kind = column.value_type
    if kind == "bool":
        if isinstance(value, bool):
            return "true" if value else "false"
    elif kind in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    elif isinstance(value, str):  # also for numbers: float8 has "NaN"
        text = _storable(column, value)
        if kind in ("timestamp", "timestamptz"):
            text = _DATE_AND_T.sub(r"\1 ", text, count=1)
            if kind == "timestamptz":
                text = text.replace("Z", "+00", 1)
        return text
    raise ValueError(f"the value of {column.name} isn't one of type {column.type_name}")


def _storable(column: Column, text: str) -> str:
    if "\0" in text:
        raise ValueError(f"the value of {column.name} has a NUL character")
    return text


def _array(column: Column, items: list[JsonValue]) -> str:
    """An array literal. Every element is quoted, so that none has a special meaning."""
    return "{" + ",".join(_element(column, item) for item in items) + "}"


def _element(column: Column, item: JsonValue) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return _array(column, item)
    return '"' + re.sub(r'(["\\])', r"\\\1", _scalar(column, item)) + '"'
