"""What is shown of others' text."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.printable import is_visible, toml_key, toml_text, visible, visible_lines

texts = st.text(st.characters(codec="utf-8"))

HIDDEN = ["\n", "\r", "\x1b[2J", "\x7f", "\x85", "\x9b31m", "\u2028", "\u202e", "\u2066", "\u200f"]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_would_steer_a_terminal_or_begin_a_line_is_written_out(hidden: str) -> None:
    assert not is_visible(f"a{hidden}b")
    assert is_visible(visible(f"a{hidden}b"))
    assert visible(f"a{hidden}b").startswith("a\\u")


def test_what_people_read_stays_as_it_is() -> None:
    text = "Größe 東京 😀 'x' \"y\" \\ [red]:smile:"
    assert visible(text) == text


def test_a_message_of_several_lines_keeps_them() -> None:
    assert visible_lines("one\n  two\r\x1b") == "one\n  two\\u000d\\u001b"


@given(texts)
def test_any_text_is_a_string_of_toml_in_one_visible_line(text: str) -> None:
    assert is_visible(toml_text(text))
    assert tomllib.loads(f"a = {toml_text(text)}")["a"] == text


@given(texts)
def test_any_text_is_a_section_of_toml(text: str) -> None:
    assert tomllib.loads(f"[a.{toml_key(text)}]") == {"a": {text: {}}}


def test_a_plain_name_is_quoted_plainly() -> None:
    assert toml_key("public.orders") == "'public.orders'"
