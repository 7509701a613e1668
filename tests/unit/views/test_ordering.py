"""Encoded rows have the order that the rows have in SQL."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from views.numerics import text_of
from views.ordering import Direction, encoder, order_encoder, row_encoder
from views.values import BOOL, DATE, INT4, INT8, NUMERIC, TEXT, SqlType

_DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=None, min_value=-(10**30), max_value=10**30)
_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
_VALUES: list[tuple[SqlType, st.SearchStrategy[Any], Any]] = [
    (INT8, st.integers(-(2**63), 2**63 - 1), lambda value: value),
    (BOOL, st.booleans(), lambda value: value),
    (TEXT, _TEXTS, lambda value: value.encode()),
    (NUMERIC, _DECIMALS.map(text_of), Decimal),
]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize(("of", "values", "rank"), _VALUES, ids=[of.name for of, _, _ in _VALUES])
def test_the_order_of_bytes_is_that_of_values(
    of: SqlType, values: st.SearchStrategy[Any], rank: Any, descending: bool, nulls_first: bool
) -> None:
    encode = encoder(of, descending=descending, nulls_first=nulls_first)

    @given(st.one_of(st.none(), values), st.one_of(st.none(), values))
    def check(one: Any, other: Any) -> None:
        if one is None or other is None:
            expected = (one is not None, other is not None) if nulls_first else (one is None, other is None)
        else:
            expected = (rank(other), rank(one)) if descending else (rank(one), rank(other))
        encoded = encode(one), encode(other)
        assert (encoded[0] < encoded[1], encoded[0] == encoded[1]) == (
            expected[0] < expected[1], expected[0] == expected[1],
        )  # fmt: skip

    check()


@given(st.lists(st.tuples(_TEXTS, st.one_of(st.none(), st.integers(-5, 5)), _DECIMALS.map(text_of)), max_size=8))
def test_rows_are_in_the_order_of_their_columns(rows: list[tuple[str, int | None, str]]) -> None:
    encode = row_encoder([TEXT, INT8, NUMERIC])

    def rank(row: tuple[str, int | None, str]) -> Any:
        return row[0].encode(), row[1] is None, row[1] or 0, Decimal(row[2])

    assert [rank(row) for row in sorted(rows, key=encode)] == [rank(row) for row in sorted(rows, key=rank)]


_DIRECTIONS = st.builds(Direction, st.sampled_from([INT4, INT8, DATE, TEXT]), st.booleans(), st.booleans())


@given(st.data(), st.lists(_DIRECTIONS, max_size=4))
def test_columns_together_are_the_bytes_of_each(data: st.DataObject, directions: list[Direction]) -> None:
    numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
    row = [data.draw(st.none() | _TEXTS if of.type is TEXT else numbers) for of in directions]
    encoders = [encoder(of.type, descending=of.descending, nulls_first=of.nulls_first) for of in directions]
    expected = b"".join(encode(value) for encode, value in zip(encoders, row, strict=True))
    assert order_encoder(directions)(row) == expected


@pytest.mark.parametrize("forms", [("1", "1.0", "1.00"), ("0", "0.00"), ("-120", "-120.0"), ("0.05", "0.0500")])
def test_a_numeric_is_one_key_whatever_its_scale(forms: tuple[str, ...]) -> None:
    assert len({encoder(NUMERIC)(form) for form in forms}) == 1
