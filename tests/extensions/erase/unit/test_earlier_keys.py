"""extensions.erase.earlier_keys"""

from dataclasses import replace

from cdc.protocol.control_records import SchemaRecord
from extensions.erase.earlier_keys import EarlierKeys
from tests.builders import column, table

ID, NOTE = replace(column("id", "int8"), number=1), replace(column("note"), number=2)
FIRST = SchemaRecord(table(ID, NOTE), 1)
RENAMED = SchemaRecord(replace(table(replace(ID, name="uid"), NOTE), key=("uid",)), 2)
BY_NOTE = SchemaRecord(replace(table(ID, NOTE), key=("note",)), 0)


def test_a_table_with_one_key_has_none_before() -> None:
    assert not EarlierKeys.of([FIRST], {"id": 1})


def test_a_renamed_key_is_that_of_the_row() -> None:
    earlier = EarlierKeys.of([FIRST, RENAMED], {"uid": 1})
    assert earlier.of_the_row == {b'{"id":1}'}
    assert not earlier.is_of_others(b'{"id":1}')


def test_a_key_of_other_columns_may_be_any_rows() -> None:
    earlier = EarlierKeys.of([BY_NOTE, FIRST, RENAMED], {"uid": 1})
    assert earlier.of_the_row == {b'{"id":1}'}
    assert earlier.is_of_others(b'{"note":"x"}')
    assert not earlier.is_of_others(b'{"uid":1}')
    assert not earlier.is_of_others(b"no key")
