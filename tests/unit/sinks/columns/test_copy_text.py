"""sinks.columns.copy_text"""

import pytest

from cdc.event_format.column_types import json_encoder
from cdc.model.event import JsonValue
from cdc.protocol.copy_text import split_row
from sinks.columns.copy_text import array_literal, copy_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\\N"),
        ("", ""),
        ("\\N", "\\\\N"),
        ("a\tb\nc\rd\\e", "a\\tb\\nc\\rd\\\\e"),
        (True, "t"),
        (False, "f"),
        (9223372036854775807, "9223372036854775807"),
        (-0.0, "-0.0"),
        (1e300, "1e+300"),
        ("NaN", "NaN"),
        ([1, None, 2], "{1,NULL,2}"),
        (['a"b', "c\\d"], '{"a\\\\"b","c\\\\\\\\d"}'),
    ],
)
def test_a_field(value: JsonValue, text: str) -> None:
    assert copy_line([value]) == text + "\n"


@pytest.mark.parametrize("special", ["\\", "\t", "\n", "\r", "\\N", "\\t"])
@pytest.mark.parametrize("index", range(3))
def test_nulls_and_odd_text_are_side_by_side(special: str, index: int) -> None:
    """Whichever way a row is written, it reads back as it was."""
    values: list[JsonValue] = ["N", None, "N"]
    values[index] = special
    for row in (values, ["N", None, "N"]):
        line = copy_line(row)
        assert line.endswith("\n")
        fields = split_row(line[:-1].encode())
        assert [None if text is None else bytes(text).decode() for text in fields] == row


@pytest.mark.parametrize(
    ("values", "literal"),
    [
        ([], "{}"),
        ([[1, 2], [3, 4]], "{{1,2},{3,4}}"),
        (["NULL", "", " a", "{}"], '{"NULL",""," a","{}"}'),
        ([True, False], "{t,f}"),
    ],
)
def test_an_array(values: list[JsonValue], literal: str) -> None:
    assert array_literal(values) == literal


@pytest.mark.parametrize(
    "values", [["a", 'q"', "b\\c", None, "NULL", "", "x,y", "{", "tab\t", "nl\n"], [["a", None], ["b", "c"]]]
)
def test_what_is_written_reads_back_as_the_same_array(values: list[JsonValue]) -> None:
    import json

    (field,) = split_row(copy_line([values]).encode()[:-1])
    assert isinstance(field, bytes)
    assert json.loads(json_encoder("text", True)(field)) == values
