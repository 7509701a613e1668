"""The decoder against messages of a real server: each is decoded whole, cut at every byte, and with a byte added."""

import json
from pathlib import Path
from typing import get_args

import pytest

from cdc.model.errors import MalformedMessage
from cdc.protocol.pgoutput import Insert, Message, Update, decode
from tests.corpus.record import CORPUS, meaning
from tests.wal import encode, insert, update

RECORDINGS = sorted(path.stem for path in CORPUS.glob("*.bin"))


def recorded(name: str) -> bytes:
    return Path(CORPUS, f"{name}.bin").read_bytes()


@pytest.fixture(params=RECORDINGS)
def message(request: pytest.FixtureRequest) -> bytes:
    return recorded(request.param)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_message_means_what_was_written_beside_it(name: str) -> None:
    expected = json.loads(Path(CORPUS, f"{name}.json").read_text(encoding="utf-8"))
    assert expected == meaning(decode(recorded(name)))


def test_nothing_of_a_message_is_dropped(message: bytes) -> None:
    assert message == encode(decode(message))


def test_a_message_that_is_cut_anywhere_is_malformed(message: bytes) -> None:
    for length in range(len(message)):
        with pytest.raises(MalformedMessage):
            decode(message[:length])


def test_a_message_with_a_byte_added_is_malformed(message: bytes) -> None:
    for byte in (b"\0", b"t", b"\xff"):
        with pytest.raises(MalformedMessage):
            decode(message + byte)


def test_every_kind_of_message_was_recorded() -> None:
    assert set(get_args(Message)) == {type(decode(recorded(name))) for name in RECORDINGS}


def test_every_recording_has_its_meaning() -> None:
    assert sorted(path.stem for path in CORPUS.glob("*.json")) == RECORDINGS


def test_the_catalogue_schema_comes_as_an_empty_name() -> None:
    relation = b"R" + b"\0\0\0\1" + b"\0" + b"pg_class\0" + b"d" + b"\0\0"
    assert decode(relation).schema == "pg_catalog"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "empty message"),
        (b"Z", "unknown message type 0x5a"),
        (b"C\1" + b"\0" * 24, "unknown commit flags 0x01"),
        (b"T" + b"\0\0\0\0" + b"\4", "unknown truncate options 0x04"),
        (b"T" + b"\xff\xff\xff\xff" + b"\0", "4294967295 relations expected"),
        (b"M\2" + b"\0" * 13, "unknown message flags 0x02"),
        (b"R\0\0\0\1s\0t\0x\0\0", "unknown replica identity"),
        (b"R\0\0\0\1s\0t\0d\0\1\2c\0" + b"\0" * 8, "unknown column flags 0x02"),
        (b"R\0\0\0\1s\0t", "string without its final zero"),
        (b"R\0\0\0\1\xff\0t\0d\0\0", "string is not UTF-8"),
        (b"I\0\0\0\1K\0\0", "new row expected"),
        (b"I\0\0\0\1N\0\1x", "unknown kind of value 0x78"),
        (b"I\0\0\0\1N\0\1b\0\0\0\1x", "unknown kind of value 0x62"),
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xff", "negative length of a value"),
        (b"I\0\0\0\1N\0\1t\0\0\0\2x", "row ends too early"),
        (b"D\0\0\0\1N\0\0", "old row or key expected"),
        (b"U\0\0\0\1K\0\0K\0\0", "new row expected"),
        (b"U\0\0\0\1K\0\0", "row image expected"),
    ],
)
def test_what_is_wrong_is_said(message: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode(message)


@pytest.mark.parametrize("damage", [lambda whole: whole[:-1], lambda whole: whole + b"x"], ids=["cut", "added"])
@pytest.mark.parametrize(
    "message", [insert(b"1", b"a secret value"), update(b"1", b"n", full=(b"1", b"a secret value"))], ids=["new", "old"]
)
def test_no_error_shows_a_rows_values(message: Insert | Update, damage: object) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(damage(encode(message)))  # type: ignore[operator]
    shown = str(caught.value) + repr(caught.value.args) + repr(caught.value.__dict__)
    assert "secret" not in shown
    assert b"secret".hex() not in shown
