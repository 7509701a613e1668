"""The text of documents is PostgreSQL's; tests/live/test_view_queries.py has PostgreSQL judge it."""

import pytest

from tests.view_queries import column
from views.documents import array_writer, has_json, jsonb_text, object_writer, to_json
from views.failures import EvaluationError
from views.values import BOOL, INT4, JSON, JSONB, NUMERIC, TEXT, TIMESTAMPTZ, from_event, type_of


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('{"bb":1,"a":2,"é":3,"a":4}', '{"a": 4, "bb": 1, "é": 3}'),
        ("[1.50, 1e2, -0, -0.0, 1.5E-3, 123456789012345678901234567890]",
         "[1.50, 100, 0, 0.0, 0.0015, 123456789012345678901234567890]"),
        ('["\\u00e9\\u0001\\n/", "\\ud83d\\ude00", true, null]', '["é\\u0001\\n/", "😀", true, null]'),
        (' "x" ', '"x"'),
        ("{}", "{}"),
        ("[[],{}]", "[[], {}]"),
    ],
)  # fmt: skip
def test_a_document_has_one_form(text: str, written: str) -> None:
    assert jsonb_text(text) == written


@pytest.mark.parametrize(
    "text",
    ["", "{", "[NaN]", "[Infinity]", '"\\u0000"', '"\\ud800"', "[1] 2", "'a'", "[" * 200 + "]" * 200, "1e999999"],
)
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises((ValueError, EvaluationError)):
        jsonb_text(text)


def test_objects_have_the_names_of_jsonb_in_order_and_those_of_json_as_they_come() -> None:
    names, of, values = ["bb", "a", "bb"], [INT4, TEXT, BOOL], [1, 'x"', None]
    assert object_writer(names, of, JSONB)(values) == '{"a": "x\\"", "bb": null}'
    assert object_writer(names, of, JSON)(values) == '{"bb" : 1, "a" : "x\\"", "bb" : null}'
    assert object_writer([], [], JSONB)([]) == "{}"
    assert array_writer([NUMERIC, NUMERIC])(["1.10", "NaN"]) == '[1.10, "NaN"]'


def test_an_instant_is_that_of_utc() -> None:
    assert (
        to_json(TIMESTAMPTZ)(from_event(TIMESTAMPTZ)("0044-03-15T10:00:00.5Z BC")) == '"0044-03-15T10:00:00.5+00:00 BC"'
    )


@pytest.mark.parametrize(
    ("described", "in_jsonb", "in_json"),
    [
        (column("v", "jsonb"), True, True),
        (column("v", "json"), False, True),
        (column("v", "float8"), True, False),
        (column("v", "character(4)", "bpchar"), True, True),
        (column("v", "mood", "text", 90000), False, False),
        (column("v", "point", "text", 600), False, False),
    ],
)
def test_types_whose_form_in_a_document_is_known(described, in_jsonb: bool, in_json: bool) -> None:
    of = type_of(described)
    assert (has_json(of, JSONB), has_json(of, JSON)) == (in_jsonb, in_json)
