"""Partitions and their files in a short text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.partition_files import packed, unpacked

_OIDS = st.integers(1, 2**32 - 1).map(str)


@given(st.dictionaries(_OIDS, st.integers(0, 2**32 - 1).map(str)))
def test_a_text_holds_all_of_it(files: dict[str, str]) -> None:
    assert unpacked(packed(files)) == files


def test_partitions_that_were_made_at_once_are_one_repetition() -> None:
    assert packed({str(oid): str(oid) for oid in range(16401, 46401, 3)}) == "16401 3*9999"
    assert packed({"5": "5", "9": "300", "7": "7"}) == "5 2 2:291"
    assert packed({}) == ""


@pytest.mark.parametrize("text", ["x", "1 -2", "1:2:3", "1*", "{}"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="partitions"):
        unpacked(text)
