"""sinks.redis.layout: templates, which of them may collide, and a row's fields"""

import re
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.event import JsonValue
from cdc.model.table import TableName
from sinks.redis.layout import Layout, TableLayout, Template, escape_name, fields_of, key_text, row_of
from tests.builders import column, table
from tests.examples import examples

LINES = TableName("public", "lines")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([42], "42"),
        (["a:b"], "a:b"),
        ([True], "true"),
        ([1, "x"], "1:x"),
        (["a:b", "c"], "a%3Ab:c"),
        (["a", "b:c"], "a:b%3Ac"),
        (["%3A", ":"], "%253A:%3A"),
        ([["a", 1]], '["a",1]'),
    ],
)
def test_key_text(values: list[JsonValue], text: str) -> None:
    assert key_text(values) == text


def test_names_with_separators_are_escaped() -> None:
    assert [escape_name(part) for part in ("orders", "a.b", "a:b", "a%2Eb")] == ["orders", "a%2Eb", "a%3Ab", "a%252Eb"]


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("order:{id}", {"id": 42}, "order:42"),
        ("order:{id}", {"id": "a:b%\n"}, "order:a%3Ab%25%0A"),
        ("{tenant}:o-{id}.v/all", {"tenant": "x", "id": 7}, "x:o-7.v/all"),
        ('{odd: "name"}', {'odd: "name"': True}, "true"),
        ("order:{id}", {"id": None}, None),
        ("order:{id}", {}, None),
        ("order:{id}", {"id": ""}, "order:"),
    ],
)
def test_a_template_makes_a_key_of_values(template: str, row: dict[str, JsonValue], text: str | None) -> None:
    parsed = Template.parse(template)
    assert parsed.text(row) == text
    if text is not None:
        assert parsed.maker(list(row))(list(row.values())) == text
        assert re.fullmatch(parsed.expression(), text)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("order", "names no column"),
        ("", "names no column"),
        ("order:{id}{line}", "put a colon between"),
        ("order:{id}-{line}", "put a colon between"),
        ("{id}:{id}", "names a column twice"),
        ("order*:{id}", "at its place 6"),
        ("order:{id", "at its place 7"),
        ("order:{}", "at its place 7"),
        ("or der:{id}", "at its place 3"),
        ("%41:{id}", "at its place 1"),
    ],
)
def test_what_is_no_template_is_refused(template: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Template.parse(template)


_PARTS = st.sampled_from(["", "a", "b", "ab", "{}", "a{}", "{}b", "a{}b", "ab{}"])
_TEMPLATES = st.lists(_PARTS, min_size=1, max_size=3)
_VALUES = ["", "a", "b", "ab", "aab", ":", "%", "a:b", "%3A", "\n"]


def _template(parts: list[str]) -> Template | None:
    text = ":".join(part.replace("{}", f"{{c{index}}}") for index, part in enumerate(parts))
    return Template.parse(text) if "{" in text else None


def _texts(template: Template) -> dict[str, tuple[str, ...]]:
    columns = template.columns
    make = template.maker(columns)
    texts: dict[str, tuple[str, ...]] = {}
    for values in product(_VALUES, repeat=len(columns)):
        assert texts.setdefault(make(values), values) == values, "two rows share a key"
    return texts


@given(template=_TEMPLATES, other=_TEMPLATES)
@settings(deadline=None, max_examples=examples(60))
def test_templates_that_may_not_be_equal_never_share_a_key(template: list[str], other: list[str]) -> None:
    first, second = _template(template), _template(other)
    if first is None or second is None:
        return
    ours, theirs = _texts(first), _texts(second)
    assert first.may_equal(second) == second.may_equal(first)
    if not first.may_equal(second):
        assert not ours.keys() & theirs.keys()
        assert not any(re.fullmatch(first.expression(), text, re.DOTALL) for text in theirs)
    assert all(re.fullmatch(first.expression(), text, re.DOTALL) and fnmatchcase(text, first.glob()) for text in ours)


@pytest.mark.parametrize(
    ("template", "other", "may"),
    [
        ("order:{id}", "order:{id}:lines", False),
        ("order:{id}", "orders:{id}", False),
        ("order:{id}", "order:all-{day}", True),
        ("order:{id}:now", "order:{id}:{line}", True),
        ("order:{id}", "{tenant}:{id}", True),
        ("a-{x}:1", "b-{x}:1", False),
        ("{x}-a", "{x}-b", False),
    ],
)
def test_whether_two_templates_collide(template: str, other: str, may: bool) -> None:
    assert Template.parse(template).may_equal(Template.parse(other)) == may


def _layout(**changes: Any) -> Layout:
    return Layout(**changes)


def _key(layout: TableLayout, **values: JsonValue) -> str:
    begin, rest = layout.key_maker(list(values))
    return begin + rest(list(values.values()))


def test_a_table_that_nothing_is_said_of_has_the_whole_name_in_its_keys() -> None:
    layout = _layout().of(LINES)
    assert layout.is_plain
    assert _key(layout, a="a:b") == "public.lines:a:b"
    assert _key(layout, a=1, b="x:y") == "public.lines:1:x%3Ay"


def test_a_template_takes_its_values_in_any_order() -> None:
    layout = _layout(keys={LINES: Template.parse("o:{order}:{line}")}).of(LINES)
    assert _key(layout, line=1, order=42) == "o:42:1"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"keys": {LINES: Template.parse("l:{a}")}}, "must have its key columns, all and no others: {a}, {b}"),
        ({"keys": {LINES: Template.parse("l:{a}:{b}:{note}")}}, "must have its key columns"),
        ({"sets": {LINES: (Template.parse("by:{colour}"),)}}, "table public.lines has no column 'colour'"),
        ({"sets": {LINES: (Template.parse("{note}"),)}}, "would have no name where 'note' is empty"),
        ({"keys": {LINES: Template.parse("public.orders:{a}:{b}")}}, "could be the same"),
        ({"sets": {LINES: (Template.parse("public.orders:{note}"),)}}, "could be the same"),
        ({"sets": {LINES: (Template.parse("s:{note}"), Template.parse("s:{b}"))}}, "could be the same"),
    ],
)
def test_what_does_not_fit_the_tables_is_reported(changes: dict[str, Any], problem: str) -> None:
    columns = (column("a"), column("b"), column("note"))
    tables = [table(*columns, name=name, key=("a", "b")) for name in (LINES, TableName("public", "orders"))]
    (told_problem,) = _layout(**changes).problems_with(tables)
    assert problem in told_problem


COLUMNS = (
    column("id", "int8"),
    column(":t"),
    column("flag", "bool"),
    column("ratio", "float8"),
    column("words", is_array=True),
    column("numbers", "int4", is_array=True),
    column("doc", "jsonb"),
    column("amount", "numeric"),
)


@pytest.mark.parametrize(
    "row",
    [
        {
            "id": 9223372036854775807,
            ":t": "text",
            "flag": True,
            "ratio": -0.0,
            "words": ["a", None],
            "numbers": [[1], [2]],
        },
        {"id": 1, ":t": "1", "flag": False, "ratio": "NaN", "words": "[0:1]={a,b}", "numbers": "[0:1]={1,2}"},
        {"id": 1, ":t": "null", "flag": None, "ratio": "-Infinity", "words": [], "doc": "null", "amount": "1.50"},
        {"id": 1, ":t": "", "ratio": 1e300, "doc": '{"a": 1.0}', "amount": "NaN"},
        {"id": 1, ":t": None, "ratio": 5e-324, "doc": '"true"', "amount": "12345678901234567890.10"},
    ],
)
def test_values_come_back_from_fields_as_they_were(row: dict[str, JsonValue]) -> None:
    flat = [part if isinstance(part, bytes) else part.encode() for part in fields_of(row)]
    decoded, lacks = row_of(dict(zip(flat[::2], flat[1::2], strict=True)), COLUMNS)
    assert {name: value for name, value in decoded.items() if name in row} == row
    assert repr(decoded["ratio"]) == repr(row["ratio"])
    assert sorted(lacks) == sorted({column.name for column in COLUMNS} - row.keys())
