"""Value texts to JSON. What each text means is PostgreSQL's business; ``tests/live/test_values.py`` asks it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.event_format.column_types import has_form, json_encoder


def encoded(text: str, value_type: str, *, is_array: bool = False) -> str:
    return json_encoder(value_type, is_array)(text.encode()).decode()


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        ("bool", "t", "true"),
        ("bool", "f", "false"),
        ("int8", "9223372036854775807", "9223372036854775807"),
        ("oid", "4000000000", "4000000000"),
        ("float8", "1e+20", "1e+20"),
        ("float8", "0.1", "0.1"),
        ("float8", "-0", "-0.0"),
        ("float4", "NaN", '"NaN"'),
        ("float8", "-Infinity", '"-Infinity"'),
        ("numeric", "1.10", '"1.10"'),
        ("numeric", "NaN", '"NaN"'),
        ("date", "infinity", '"infinity"'),
        ("date", "0044-03-15 BC", '"0044-03-15 BC"'),
        ("time", "24:00:00", '"24:00:00"'),
        ("timestamp", "2016-11-04 13:51:30.123456", '"2016-11-04T13:51:30.123456"'),
        ("timestamp", "-infinity", '"-infinity"'),
        ("timestamptz", "2016-11-04 11:51:30+00", '"2016-11-04T11:51:30Z"'),
        ("timestamptz", "21016-11-04 06:51:30+00", '"21016-11-04T06:51:30Z"'),
        ("timestamptz", "0044-02-01 10:00:00+00 BC", '"0044-02-01T10:00:00Z BC"'),
        ("timestamptz", "infinity", '"infinity"'),
        ("text", 'a "quoted" \\ text', '"a \\"quoted\\" \\\\ text"'),
        ("jsonb", '{"a": "\\u0001"}', '"{\\"a\\": \\"\\\\u0001\\"}"'),
    ],
)
def test_a_scalar_is_exact(value_type: str, text: str, expected: str) -> None:
    assert encoded(text, value_type) == expected


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        ("int4", "{}", "[]"),
        ("int4", "{1,NULL,3}", "[1,null,3]"),
        ("int4", "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
        ("text", '{NULL,"NULL",null}', '[null,"NULL","null"]'),
        ("text", '{a,"",b}', '["a","","b"]'),
        ("text", r'{"a\"b","c\\d","{e}","f,g"}', r'["a\"b","c\\d","{e}","f,g"]'),
        ("text", r'{"\\\\\""}', r'["\\\\\""]'),
        ("float8", "{-0,NaN,1.5}", '[-0.0,"NaN",1.5]'),
        ("bool", "{t,f,NULL}", "[true,false,null]"),
        ("timestamptz", '{"2016-11-04 11:51:30+00",infinity}', '["2016-11-04T11:51:30Z","infinity"]'),
        ("box", "{(1,1),(0,0);(3,3),(2,2)}", '["(1,1),(0,0)","(3,3),(2,2)"]'),
    ],
)
def test_an_array_is_an_array_of_its_elements(value_type: str, text: str, expected: str) -> None:
    assert encoded(text, value_type, is_array=True) == expected


def test_an_array_with_bounds_of_its_own_stays_text() -> None:
    assert encoded("[0:1]={7,8}", "int4", is_array=True) == '"[0:1]={7,8}"'


elements = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8) | st.sampled_from(
    ["NULL", "null", "", "{", "}", ",", '"', "\\", '\\"', " a ", "a b"]
)


def array_literal(values: list[str | None]) -> str:
    """As PostgreSQL writes an array, with quotes around every element."""
    quoted = ["NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values]
    return "{" + ",".join(quoted) + "}"


@given(st.lists(st.none() | elements, max_size=6))
def test_every_array_of_texts_reads_back(values: list[str | None]) -> None:
    assert json.loads(encoded(array_literal(values), "text", is_array=True)) == values


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_every_text_reads_back(text: str) -> None:
    assert json.loads(encoded(text, "text")) == text


@pytest.mark.parametrize("text", ["", "1", "{1", '{"a', "1}", "{{1}"])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an array"):
        encoded(text, "text", is_array=True)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        json_encoder("text", False)(b"\xff")


OF_OTHER_TYPES = {
    "uuid": ("abc", "00000000-0000-0000-0000-00000000000G", 1),
    "date": ("2020-01-01T00:00:00", "2020-01-01T00:00:00Z", "today"),
    "time": ("10:00", "10:00:00+00", "2020-01-01T10:00:00"),
    "timestamp": ("2020-01-01", "2020-01-01T00:00:00Z"),
    "timestamptz": ("2020-01-01", "2020-01-01T00:00:00"),
    "numeric": (1, "1e3", "one", ""),
    "bytea": ("abc", "\\xABC"),
}


@pytest.mark.parametrize("value_type", OF_OTHER_TYPES)
def test_a_value_of_a_type_that_a_column_had_before_is_told_from_its_own(value_type: str) -> None:
    assert not any(has_form(value, value_type, False) for value in OF_OTHER_TYPES[value_type])
    assert not any(has_form([value], value_type, True) for value in OF_OTHER_TYPES[value_type])
