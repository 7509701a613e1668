"""Which tables a sink gets."""

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from jobs.run import tables_of

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def test_a_sink_that_names_no_tables_gets_all() -> None:
    assert tables_of("search", (), [ORDERS, ITEMS]) == [ORDERS, ITEMS]


def test_a_sink_gets_the_tables_it_names() -> None:
    assert tables_of("search", ("public.items",), [ORDERS, ITEMS]) == [ITEMS]


def test_a_table_that_nobody_captures_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks.search.tables: public.users is not captured"):
        tables_of("search", ("public.users",), [ORDERS])
