"""sinks.wrappers.masks"""

import hashlib
import hmac

import pytest

from cdc.model.event import JsonValue
from sinks.wrappers.masks import Salt, Truncation, masked

SALT = Salt(b"secret")


@pytest.mark.parametrize(
    ("value", "left"), [("Alice", "Al"), ("A", "A"), ("", ""), (12345, "12"), (True, "tr"), (["a"], '["'), (None, None)]
)
def test_a_truncated_value_is_the_beginning_of_its_text(value: JsonValue, left: JsonValue) -> None:
    assert masked(value, Truncation(truncate=2), None) == left


def test_a_hash_is_keyed_and_the_same_for_equal_values() -> None:
    expected = hmac.new(b"secret", b"a@b", hashlib.sha256).hexdigest()
    assert masked("a@b", "hash", SALT) == expected
    assert masked("a@b", "hash", Salt(b"other")) != expected
    assert masked(None, "hash", SALT) is None
    assert masked(1, "hash", SALT) == masked("1", "hash", SALT)  # as their texts are


def test_a_salt_is_known_again_and_not_shown() -> None:
    assert SALT.mark == Salt(b"secret").mark != Salt(b"secreu").mark
    assert len(SALT.mark) == 16
    assert "secret" not in repr(SALT)
    assert "736563726574" not in SALT.mark
