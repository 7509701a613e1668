"""sinks.redis_sink: names and settings; its behaviour is in tests/contract"""

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.event import JsonValue
from sinks.redis_sink import RedisSettings, RedisSink, escape_name, key_text


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


def test_a_prefix_must_not_hold_a_separator() -> None:
    with pytest.raises(ConfigurationError, match="can't begin a key"):
        RedisSink("a:b", RedisSettings(), 1)
