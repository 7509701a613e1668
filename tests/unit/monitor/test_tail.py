"""Which records are those of a key, and which were committed before an LSN."""

from typing import cast

import pytest
from confluent_kafka import Message

from cdc.model.errors import ConfigurationError
from cdc.model.tag import TAG_HEADER, Tag
from monitor.log_start import AfterLsn
from monitor.tail import WantedKey, is_before


class _Record:
    """What is looked at of a message."""

    def __init__(self, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._value, self._headers = value, headers

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers


def _event(tag: Tag) -> Message:
    return cast(Message, _Record(b'{"op":"u","tag":"%s","after":{}}' % str(tag).encode()))


def _tombstone(tag: bytes) -> Message:
    return cast(Message, _Record(None, [(TAG_HEADER, tag)]))


AFTER = AfterLsn(0x100, epoch=1, offsets={})


@pytest.mark.parametrize(
    ("tag", "before"),
    [
        (Tag(1, 0xF8, 9), True),
        (Tag(1, 0x100, 1), False),  # begins where that ends which has this LSN as its end
        (Tag(1, 0x108, 1), False),
        (Tag(0, 0x9000, 1), True),  # of the server before
        (Tag(2, 0x8, 1), False),
    ],
)
def test_events_and_tombstones_of_before_the_lsn_are_left_out(tag: Tag, before: bool) -> None:
    assert is_before(_event(tag), AFTER) is before
    assert is_before(_tombstone(str(tag).encode()), AFTER) is before


@pytest.mark.parametrize(
    "record",
    [_Record(None), _Record(b"hello"), _Record(b'{"op":"u","tag":"t"}'), _Record(None, [(TAG_HEADER, b"\xff")])],
)
def test_what_has_no_tag_is_never_left_out(record: _Record) -> None:
    assert not is_before(cast(Message, record), AFTER)


def test_a_key_is_found_whatever_its_spaces_and_order() -> None:
    wanted = WantedKey('{ "b" : "x", "a": 123456789012345678901234567890 }')
    assert wanted.matches(b'{"a":123456789012345678901234567890,"b":"x"}')
    assert not wanted.matches(b'{"a":123456789012345678901234567891,"b":"x"}')
    assert not wanted.matches(b'{"a":123456789012345678901234567890}')
    assert not wanted.matches(None)
    assert not wanted.matches(b"1:x")


def test_other_columns_are_told_once() -> None:
    wanted = WantedKey('{"no":7}')
    assert wanted.other_columns(b'{"no":8}') is None
    assert wanted.other_columns(b'{"b":1,"a":2}') == ["a", "b"]
    assert wanted.other_columns(b'{"b":1,"a":2}') is None


@pytest.mark.parametrize("text", ["7", "{", "{}", "[1]", "", "null"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--key"):
        WantedKey(text)
