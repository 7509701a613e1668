"""The form in which two rows are compared: canonical JSON, so that equal means the same value of the same type. Pure.

``1``, ``1.0``, ``true`` and ``"1"`` are four different values. Null differs from an empty text, and from a missing
column.
"""

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Final

import orjson

from cdc.model.errors import ConfigurationError
from cdc.model.event import JsonValue
from cdc.model.json_numbers import FLOATS, INTEGERS
from cdc.model.table import Column, Table

Row = Mapping[str, JsonValue]

Key = bytes
"""A key as canonical JSON: the key columns in key order."""

Fingerprint = bytes
"""16 bytes that depend on the key and the row; in practice no two different rows have the same."""

FINGERPRINT_BYTES: Final = 16


def key_of(table: Table, values: Row) -> Key:
    # Copied, since many are kept: orjson's bytes hold on to its whole buffer of some kilobytes.
    return bytes(memoryview(orjson.dumps({name: values[name] for name in table.key})))


def key_values(key: Key) -> dict[str, JsonValue]:
    """The key columns' values; the inverse of ``key_of``."""
    values: dict[str, JsonValue] = orjson.loads(key)
    return values


def portions(keys: Collection[Key], size: int) -> Iterator[list[Key]]:
    """The keys in lists of at most ``size``."""
    remaining = iter(keys)
    while portion := list(islice(remaining, size)):
        yield portion


def fingerprint(table: Table, key: Key, row: Row) -> Fingerprint:
    """A fingerprint of the table's columns and no others."""
    present = {column.name: row[column.name] for column in table.columns if column.name in row}
    return blake2b(key + orjson.dumps(present), digest_size=FINGERPRINT_BYTES).digest()


def differing_columns(table: Table, expected: Row, actual: Row) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if not _is_same(column.name, expected, actual))


def _is_same(name: str, expected: Row, actual: Row) -> bool:
    # As JSON: Python considers 1, 1.0 and True equal.
    if name not in expected or name not in actual:
        return name not in expected and name not in actual
    return orjson.dumps(expected[name]) == orjson.dumps(actual[name])


def parse_keys(table: Table, texts: tuple[str, ...]) -> list[Key]:
    """Keys as somebody typed them, ``{"id": 42}`` or a list of such objects. Raises ConfigurationError. A value of
    another JSON type than events have is refused: no row has such a key, so it would seem equal."""
    keys: dict[Key, None] = {}
    for text in texts:
        try:
            given = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ConfigurationError(f"--keys: {text!r} is not JSON: {error}", hint=_example(table)) from None
        for values in given if isinstance(given, list) else [given]:
            if not isinstance(values, dict) or values.keys() != set(table.key):
                raise ConfigurationError(
                    f"--keys: {orjson.dumps(values).decode()} is not a key of table {table.name}", hint=_example(table)
                )
            for column in table.key_columns:
                if not _has_the_type(values[column.name], column):
                    raise ConfigurationError(
                        f"--keys: {column.name!r} of table {table.name} is {column.type_name},"
                        f" written as {_written(column)}",
                        hint=_example(table),
                    )
            keys[key_of(table, values)] = None
    if texts and not keys:
        raise ConfigurationError("--keys names no key", hint=_example(table))
    return list(keys)


def key_of_text(table: Table, text: str) -> Key:
    """A key as events have it, or its only value. Raises ConfigurationError."""
    given = [text]
    if len(table.key) == 1 and not text.lstrip().startswith("{"):
        quoted = orjson.dumps(text).decode()
        column = orjson.dumps(table.key[0]).decode()
        given = [f"{{{column}: {text}}}", f"{{{column}: {quoted}}}"]
    for attempt in given:
        try:
            keys = parse_keys(table, (attempt,))
        except ConfigurationError:
            continue
        if len(keys) == 1:
            return keys[0]
    names = ", ".join(table.key)
    raise ConfigurationError(
        f"that is no key of {table.name}", hint=f"write it as events have it, a JSON object with {names}"
    )


def _has_the_type(value: JsonValue, column: Column) -> bool:
    if column.is_array:
        return isinstance(value, list | str)
    if column.value_type in INTEGERS:
        return isinstance(value, int) and not isinstance(value, bool)
    if column.value_type in FLOATS:
        return isinstance(value, int | float | str) and not isinstance(value, bool)
    if column.value_type == "bool":
        return isinstance(value, bool)
    return isinstance(value, str)


def _written(column: Column) -> str:
    if column.is_array:
        return "a JSON array"
    if column.value_type in INTEGERS or column.value_type in FLOATS:
        return "a JSON number"
    return "true or false" if column.value_type == "bool" else "a JSON text"


def _example(table: Table) -> str:
    values = ", ".join(
        f'"{column.name}": {42 if column.value_type in INTEGERS else chr(34) + "..." + chr(34)}'
        for column in table.key_columns
    )
    return f"write keys as events have them: --keys '{{{values}}}'"
