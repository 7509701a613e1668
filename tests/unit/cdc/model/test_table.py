"""Table names and shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.printable import is_visible
from cdc.model.table import Table, TableName, sql_literal
from tests.builders import column, table

# What PostgreSQL takes as an identifier: anything but NUL and lone surrogates, at least one character.
identifiers = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
names = st.builds(TableName, identifiers, identifiers)


@given(names)
def test_every_name_reads_back_as_itself(name: TableName) -> None:
    assert TableName.parse(str(name)) == name


@given(names)
def test_the_sql_form_of_a_name_reads_back_as_itself(name: TableName) -> None:
    assert TableName.parse(name.sql) == name


@given(names)
def test_every_name_is_shown_in_one_line(name: TableName) -> None:
    assert is_visible(str(name))
    assert is_visible(name.sql)


def test_a_name_with_hidden_characters_is_written_as_postgresql_reads_it() -> None:
    name = TableName("public", 'a\nb"\\\x1b')
    assert str(name) == r'public.U&"a\000ab""\\\001b"'
    assert name.sql == r'"public".U&"a\000ab""\\\001b"'
    assert sql_literal("it's\n\\") == r"E'it''s\u000a\\'"
    assert sql_literal("it's") == "'it''s'"


def test_only_the_part_of_a_name_that_needs_quotes_has_them() -> None:
    assert str(TableName("public", "orders")) == "public.orders"
    assert str(TableName("My Schema", "t")) == '"My Schema".t'
    assert str(TableName("public", "Orders")) == 'public."Orders"'
    assert TableName.parse("public.Orders") == TableName("public", "Orders")


@pytest.mark.parametrize("text", ["", "orders", ".", "a.", ".b", "a.b.c", '"a.b', 'a"b.c', '"".t', '"a"x.t'])
def test_anything_else_than_schema_and_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a table name"):
        TableName.parse(text)


@pytest.mark.parametrize(
    "other",
    [
        table(column("id", "int8"), column("note"), column("more")),
        table(column("note"), column("id", "int8")),
        table(column("id", "int4"), column("note")),
        table(column("id", "int8"), column("remark")),
        table(column("id", "int8"), column("note", type_modifier=54)),
        table(column("id", "int8"), column("note"), key=("note",)),
        table(column("id", "int8"), column("note"), key=("note", "id")),
    ],
    ids=["column added", "order", "type", "name", "modifier", "key", "key columns"],
)
def test_the_schema_id_changes_with_the_shape(other: Table) -> None:
    assert table().schema_id != other.schema_id


def test_a_column_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        table().column("missing")
