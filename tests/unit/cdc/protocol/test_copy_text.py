"""COPY's text format, against an escaping written from the documentation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.copy_text import split_row
from tests.copy_lines import escaped

# Bytes that escaping is about come up often.
values = st.none() | st.lists(st.sampled_from(b"\\\t\n\r\b\f\vNnat.x") | st.integers(1, 255), max_size=8).map(bytes)


@given(st.lists(values, min_size=1, max_size=6))
def test_every_row_reads_back_as_it_was(row: list[bytes | None]) -> None:
    assert split_row(b"\t".join(map(escaped, row))) == tuple(row)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"", (b"",)),
        (b"1\t", (b"1", b"")),
        (b"\\N", (None,)),
        (b"\\\\N", (b"\\N",)),
        (b"x\\\\Ny", (b"x\\Ny",)),
        (b"\\\\.", (b"\\.",)),
        (b"NULL\t\\N\tnull", (b"NULL", None, b"null")),
        (b"a\\tb\tc\\\\td", (b"a\tb", b"c\\td")),
        (b"\\\\\\\\\\n", (b"\\\\\n",)),
    ],
)
def test_escapes_that_are_easily_confused(line: bytes, row: tuple[bytes | None, ...]) -> None:
    assert split_row(line) == row
