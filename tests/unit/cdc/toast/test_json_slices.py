"""Slices of a JSON object: what orjson reads in it, byte for byte as it is there."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.toast.json_slices import split_object

texts = st.text(st.sampled_from('"\\/[]{},:\n\0 \x7fe1é€𝄞') | st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=20
)
objects = st.dictionaries(texts, values, max_size=6)


def parsed(slices: dict[str, bytes]) -> dict[str, Any]:
    return {name: orjson.loads(value) for name, value in slices.items()}


@given(objects)
def test_slices_are_the_members_that_orjson_reads(value: dict[str, Any]) -> None:
    encoded = orjson.dumps(value)
    slices = split_object(encoded)
    assert (list(slices), parsed(slices)) == (list(value), orjson.loads(encoded))


@given(objects)
def test_slices_joined_are_the_object(value: dict[str, Any]) -> None:
    encoded = orjson.dumps(value)
    assert b"{%b}" % b",".join(orjson.dumps(n) + b":" + v for n, v in split_object(encoded).items()) == encoded


@given(objects, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_white_space_and_escapes_of_other_writers(value: dict[str, Any], indent: Any, ascii_only: bool) -> None:
    encoded = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    slices = split_object(b" " + encoded + b"\n")
    assert {name: json.loads(slice_) for name, slice_ in slices.items()} == json.loads(encoded)
    assert all(slice_ == slice_.strip() for slice_ in slices.values())


@given(objects, st.data())
def test_what_is_cut_off_is_refused(value: dict[str, Any], data: st.DataObject) -> None:
    encoded = orjson.dumps(value)
    with pytest.raises(ValueError):
        split_object(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_numbers_keep_their_digits() -> None:
    assert split_object(b'{"a":1.50,"b":-0.0,"c":12345678901234567890.1,"d":[1e2,1.0]}') == {
        "a": b"1.50", "b": b"-0.0", "c": b"12345678901234567890.1", "d": b"[1e2,1.0]",
    }  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 6, 7, 50])
def test_arrays_of_any_depth(depth: int) -> None:
    array = b"[" * depth + b'1,"]",{"a":[]}' + b"]" * depth
    assert split_object(b'{"a":%b,"b":[[1],["}"]]}' % array) == {"a": array, "b": b'[[1],["}"]]'}


@pytest.mark.parametrize(
    "value", [b"", b"null", b"[]", b'"a"', b"{", b'{"a"}', b'{"a":}', b'{"a":1 2}', b'{"a":1}}', b'{"a":1},',
        b'{,"a":1}',
              b'{"a":1,}', b'{"a":"\\"}', b'{"a":[1}', b"{'a':1}"],
)  # fmt: skip
def test_what_isnt_an_object_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        split_object(value)


def test_large_values() -> None:
    value = {"text": 'x"\\' * 300_000, "numbers": list(range(100_000)), "words": ["a,]"] * 100_000, "end": 1}
    assert split_object(orjson.dumps(value)) == {name: orjson.dumps(member) for name, member in value.items()}
