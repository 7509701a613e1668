"""The table of types in the docs says what the code does."""

from cdc.event_format import column_types
from tests.types_table import _EXAMPLES, in_page, rows


def test_the_page_has_the_table_that_the_code_makes() -> None:
    assert in_page() == rows()


def test_every_type_with_a_form_of_its_own_is_in_the_table() -> None:
    shown = {value_type for _, value_type, _ in _EXAMPLES}
    assert column_types.SCALARS.keys() - shown == {"macaddr8"}
