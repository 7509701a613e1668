"""Which names a pattern stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.table import TableName
from cdc.model.table_pattern import TablePattern, is_pattern

pytestmark = pytest.mark.unit

_NAMES = st.builds(TableName, *[st.text('aB*."\\[]?\n', min_size=1, max_size=6)] * 2)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("public.*", ["public.a", 'public."B.c"', 'public."*"'], ["other.a", '"Public".a']),
        ("sales.order_*", ["sales.order_", "sales.order_1"], ["sales.orders", "sales.Order_1", "sales.an_order_1"]),
        ("*.*", ["a.b", '"A b"."c.d"'], []),
        ('"My Schema".*_old', ['"My Schema".t_old'], ['"My Schema".t', "my_schema.t_old"]),
        ('public."a*"', ['public."a*"'], ["public.ab"]),
        ("public.Order*", ['public."Orders"', 'public."Order"'], ["public.orders"]),
        ("*.a*c", ["x.ac", "x.abc", 'x."a\nc"'], ["x.abcd"]),
    ],
)
def test_a_star_stands_for_any_characters_and_everything_else_for_itself(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    parsed = TablePattern.parse(pattern)
    assert [text for text in [*matching, *others] if parsed.matches(TableName.parse(text))] == matching


@pytest.mark.parametrize("text", ["public", "*", "a.b.c", "", "public.", '"a.b', "public.a.*"])
def test_what_is_no_schema_and_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a table name"):
        TablePattern.parse(text)


@given(_NAMES, _NAMES)
def test_a_name_as_it_is_written_is_no_pattern_and_matches_itself_alone(name: TableName, other: TableName) -> None:
    assert not is_pattern(str(name))
    assert TablePattern.parse(str(name)).matches(name)
    assert TablePattern.parse(str(name)).matches(other) is (name == other)
