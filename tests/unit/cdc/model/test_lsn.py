"""LSNs as PostgreSQL writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.lsn import Lsn, format_lsn, parse_lsn


def test_both_halves_are_hexadecimal_and_not_padded() -> None:
    assert Lsn(0x16_B374D848) == parse_lsn("16/B374D848")
    assert format_lsn(0x1_0000000A) == "1/A"
    assert parse_lsn("FFFFFFFF/FFFFFFFF") == 2**64 - 1


@given(st.integers(0, 2**64 - 1))
def test_every_lsn_reads_back_as_itself(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "16",
        "16/",
        "/16",
        "1/2/3",
        "g/0",
        "100000000/0",
        "0/100000000",
        "-1/0",
        "0/+1",
        " 1/0",
        "0/1_0",
        "0x1/0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_lsn(text)
