"""sinks.opensearch.ids"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.event import JsonValue
from sinks.opensearch.ids import IdTemplate, document_id


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([42], "42"),
        (["a/b c"], "a/b c"),
        ([1, "x"], '[1,"x"]'),
        ([""], "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ],
)
def test_document_id(values: list[JsonValue], text: str) -> None:
    assert document_id(values) == text


def test_a_long_key_is_hashed_and_a_key_that_looks_hashed_too() -> None:
    hashed = document_id(["x" * 513])
    assert len(hashed) == len("sha256:") + 64
    assert document_id([hashed]) != hashed
    assert document_id(["x" * 512]) == "x" * 512


@pytest.mark.parametrize(
    ("template", "key", "text"),
    [
        ("order-{id}", {"id": 42}, "order-42"),
        ("{name}", {"name": "a/b c%"}, "a/b c%"),
        ("{{{id}}}", {"id": 7}, "{7}"),
        ("{a}-{b}", {"a": -1, "b": "2-%3"}, "%2d1-2%2d%253"),
        ("{b}:{a}/x", {"a": "x/y", "b": "ü:1"}, "ü%3a1:x/y/x"),
        ("{flag}", {"flag": True}, "true"),
        ("{list}", {"list": [1, 2]}, "[1,2]"),
    ],
)
def test_an_id_is_made_from_a_template(template: str, key: dict[str, JsonValue], text: str) -> None:
    assert IdTemplate.parse(template).maker()(key) == text


def test_an_empty_or_long_id_is_hashed() -> None:
    make = IdTemplate.parse("{id}").maker()
    assert make({"id": ""}) == document_id([""])
    assert make({"id": "x" * 513}) == document_id(["x" * 513])
    assert len(IdTemplate.parse("a{id}").maker()({"id": "x" * 512})) == len("sha256:") + 64


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("order", "no key column"),
        ("order-{id", "no partner at '{id'"),
        ("}-{id}", "no partner at '}-{id}'"),
        ("{a}{b}", r"between \{a\} and \{b\}"),
        ("{a}x{b}%{c}", r"between \{a\} and \{b\}.*between \{b\} and \{c\}"),
        ("{a}-{a}", r"it has \{a\} twice"),
    ],
)
def test_a_template_that_cannot_be_is_refused(template: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        IdTemplate.parse(template)


_VALUES = st.one_of(st.text("ab-:%02d{é", max_size=4), st.integers(-20, 20))


@given(
    template=st.sampled_from(["{a}-{b}", "x{b}::{a}-", "{a}0-0{b}", "{{{a}%-{b}}}"]),
    keys=st.lists(st.tuples(_VALUES, _VALUES), min_size=2, max_size=6),
)
def test_different_keys_have_different_ids(template: str, keys: list[tuple[JsonValue, JsonValue]]) -> None:
    make = IdTemplate.parse(template).maker()
    # A column has one type, so 1 and "1" never meet.
    distinct = {(str(a), str(b)) for a, b in keys}
    assert len({make({"a": a, "b": b}) for a, b in keys}) == len(distinct)
