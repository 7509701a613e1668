"""Keys from events back to PostgreSQL's text: the encoder's own output is what they are made from."""

import orjson
import pytest

from cdc.event_format.column_types import json_encoder
from cdc.model.event import JsonValue
from snapshot.keys import key_texts
from tests.builders import column, table

TEXTS = {
    "int8": ["-9223372036854775808", "0"],
    "oid": ["4294967295"],
    "float8": ["NaN", "-Infinity", "1e+300", "0.1", "100"],
    "numeric": ["1.50", "123456789012345678901234567890.5"],
    "text": ["", "a\tb\\n", 'q"', "\u00fc \U0001f418", "2016-11-04T00:00"],
    "timestamp": ["2016-11-04 13:51:30.123456", "0044-03-15 12:00:00 BC", "infinity", "21016-01-01 00:00:00"],
    "bytea": [r"\x00ff"],
    "uuid": ["00000000-0000-0000-0000-00000000000a"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TEXTS.items() for text in texts])
def test_a_text_comes_back_as_it_was(kind: str, text: str) -> None:
    value = orjson.loads(json_encoder(kind, is_array=False)(text.encode()))
    assert key_texts(table(column("id", kind)), {"id": value}) == (text,)


def test_a_key_of_several_columns_is_in_key_order() -> None:
    shape = table(column("b"), column("a", "int8"), column("c", "bool"), key=("c", "a", "b"))
    assert key_texts(shape, {"a": 1, "b": "x", "c": True}) == ("true", "1", "x")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("int4", [], "{}"),
        ("int4", [1, None], '{"1",NULL}'),
        ("int4", [[1], [2]], '{{"1"},{"2"}}'),
        ("text", ['a"b', "c\\", "NULL", "{,}"], r'{"a\"b","c\\","NULL","{,}"}'),
        ("int4", "[0:1]={7,8}", "[0:1]={7,8}"),
        ("timestamptz", ["2020-01-01T00:00:00Z"], '{"2020-01-01 00:00:00+00"}'),
    ],
)
def test_an_array_is_a_literal_with_every_element_quoted(kind: str, value: JsonValue, text: str) -> None:
    assert key_texts(table(column("id", kind, is_array=True)), {"id": value}) == (text,)


@pytest.mark.parametrize(
    ("kind", "is_array", "value"),
    [
        ("int8", False, None),
        ("int8", False, True),
        ("int8", False, [1]),
        ("int8", False, {"a": 1}),
        ("bool", False, 1),
        ("text", False, 1),
        ("numeric", False, 1.5),
        ("text", False, "a\0"),
        ("text", True, 5),
        ("text", True, ["\0"]),
        ("text", True, [5]),
    ],
)
def test_what_no_event_has_as_a_key_is_refused_without_showing_it(kind: str, is_array: bool, value: JsonValue) -> None:
    with pytest.raises(ValueError, match="id") as caught:
        key_texts(table(column("id", kind, is_array=is_array)), {"id": value})
    assert "1.5" not in str(caught.value)


@pytest.mark.parametrize("key", [{}, {"nr": 1}, {"id": 1, "note": "x"}])
def test_other_columns_are_no_key(key: dict[str, JsonValue]) -> None:
    with pytest.raises(ValueError, match="columns aren't id"):
        key_texts(table(), key)
