"""What counts as the same row, and as the same key."""

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.verify.canonical import differing_columns, fingerprint, key_of, key_values, parse_keys
from tests.builders import column, table

SHAPE = table(column("id", "int8"), column("value"))


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        (1.0, 1),
        (1, True),
        (0, False),
        (-0.0, 0.0),
        ("1", 1),
        (None, ""),
        ([], None),
        ([1], [True]),
        ("e\u0301", "\u00e9"),
    ],
    ids=repr,
)
def test_values_that_python_or_people_take_for_equal_are_different(wanted, actual):
    key = key_of(SHAPE, {"id": 1})
    rows = {"id": 1, "value": wanted}, {"id": 1, "value": actual}

    assert fingerprint(SHAPE, key, rows[0]) != fingerprint(SHAPE, key, rows[1])
    assert differing_columns(SHAPE, *rows) == ("value",)


def test_a_column_that_is_not_there_is_not_null():
    key = key_of(SHAPE, {"id": 1})
    rows = {"id": 1, "value": None}, {"id": 1}

    assert fingerprint(SHAPE, key, rows[0]) != fingerprint(SHAPE, key, rows[1])
    assert differing_columns(SHAPE, *rows) == ("value",)


def test_the_order_of_columns_does_not_matter():
    key = key_of(SHAPE, {"id": 1})
    rows = {"id": 1, "value": "a"}, {"value": "a", "id": 1}

    assert fingerprint(SHAPE, key, rows[0]) == fingerprint(SHAPE, key, rows[1])


def test_the_same_row_under_another_key_is_another():
    row = {"id": 1, "value": "a"}

    assert fingerprint(SHAPE, b'{"id":1}', row) != fingerprint(SHAPE, b'{"id":2}', row)


def test_a_key_is_in_key_order():
    shape = table(column("line", "int2"), column("order_id", "int8"), key=("order_id", "line"))

    assert key_of(shape, {"line": 2, "order_id": 1}) == b'{"order_id":1,"line":2}'
    assert key_values(b'{"order_id":1,"line":2}') == {"order_id": 1, "line": 2}


def test_keys_may_come_one_by_one_or_in_a_list():
    assert parse_keys(SHAPE, ('{"id": 1}', '[{"id":2}, {"id": 1}]')) == [b'{"id":1}', b'{"id":2}']


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "no key"),
        ("7", "not a key"),
        ('{"value": "a"}', "not a key"),
        ('{"id": 1, "value": "a"}', "not a key"),
        ('{"id": "1"}', "written as a JSON number"),
        ('{"id": true}', "written as a JSON number"),
        ('{"id": 1.5}', "written as a JSON number"),
        ('{"id": null}', "written as a JSON number"),
    ],
)
def test_keys_that_no_row_can_have_are_refused(text, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_keys(SHAPE, (text,))

    assert "'{\"id\": 42}'" in str(caught.value)


@pytest.mark.parametrize(
    ("value_type", "right", "wrong"),
    [("bool", "true", "1"), ("uuid", '"a"', "1"), ("float8", "1.5", "true"), ("numeric", '"1.50"', "1.5")],
)
def test_a_key_has_the_type_that_events_have(value_type, right, wrong):
    shape = table(column("id", value_type))

    assert len(parse_keys(shape, (f'{{"id": {right}}}',))) == 1
    with pytest.raises(ConfigurationError):
        parse_keys(shape, (f'{{"id": {wrong}}}',))
