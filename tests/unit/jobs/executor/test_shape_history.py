"""Rows of a table's earlier shapes."""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Column, Table
from cdc.protocol.control_records import SchemaRecord, ShapeChange
from jobs.executor.shape_history import TableHistory, added_values, earlier_keys, histories, newest_shapes
from tests.builders import column, table

ID, NOTE, PRICE = (
    replace(column("id", "int8"), number=1),
    replace(column("note"), number=2),
    replace(column("price", "numeric"), number=3),
)
FIRST = table(ID, NOTE)


def _of(*columns: Column, key: tuple[str, ...] = ("id",)) -> Table:
    return replace(FIRST, columns=columns, key=key)


def _history(*records: SchemaRecord) -> TableHistory:
    return histories(records)[FIRST.name]


def _event(row: dict[str, JsonValue] | None, key: dict[str, JsonValue] | None = None) -> RowEvent:
    return RowEvent(FIRST.name, key or {"id": 1}, "0" * 28, row, Position("t", 0, 0))


def _row(history: TableHistory, shape: Table, row: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
    translated = history.translate(_event(row), shape.schema_id)
    return None if translated is None else dict(translated.row or {})


def test_a_renamed_column_keeps_its_value() -> None:
    second = _of(ID, replace(NOTE, name="remark"))
    history = _history(SchemaRecord(FIRST, 1), SchemaRecord(second, 2, ShapeChange(renamed={"remark": "note"})))
    assert _row(history, FIRST, {"id": 1, "note": "x"}) == {"id": 1, "remark": "x"}
    assert _row(history, second, {"id": 1, "remark": "y"}) == {"id": 1, "remark": "y"}


def test_an_added_column_has_the_sources_value_in_rows_from_before_also_when_it_is_renamed_later() -> None:
    second = _of(ID, NOTE, PRICE)
    third = _of(ID, NOTE, replace(PRICE, name="cost"))
    history = _history(
        SchemaRecord(FIRST, 1),
        SchemaRecord(second, 2, ShapeChange(defaults={"price": "1.50"})),
        SchemaRecord(third, 3, ShapeChange(renamed={"cost": "price"})),
    )
    assert _row(history, FIRST, {"id": 1, "note": "x"}) == {"id": 1, "note": "x", "cost": "1.50"}
    assert _row(history, second, {"id": 1, "note": "x", "price": None}) == {"id": 1, "note": "x", "cost": None}


def test_a_dropped_column_is_gone_and_one_of_its_name_is_another() -> None:
    again = replace(NOTE, number=4)
    history = _history(SchemaRecord(FIRST, 1), SchemaRecord(_of(ID), 2), SchemaRecord(_of(ID, again), 3))
    assert _row(history, FIRST, {"id": 1, "note": "x"}) == {"id": 1, "note": None}
    assert _row(history, _of(ID), {"id": 1}) == {"id": 1, "note": None}


def test_values_of_another_type_are_left_to_the_copy_that_follows() -> None:
    second = _of(ID, replace(NOTE, value_type="int8"))
    history = _history(SchemaRecord(FIRST, 1), SchemaRecord(second, 2, ShapeChange(rewritten="note has another type")))
    assert _row(history, FIRST, {"id": 1, "note": "7"}) is None
    assert _row(history, second, {"id": 1, "note": 7}) == {"id": 1, "note": 7}


def test_values_that_are_the_same_in_another_type_are_carried_over() -> None:
    """varchar to text: capture copies nothing, so the old events are all there is."""
    first = _of(ID, replace(NOTE, value_type="varchar"))
    history = _history(SchemaRecord(first, 1), SchemaRecord(_of(ID, NOTE), 2))
    assert _row(history, first, {"id": 1, "note": "x"}) == {"id": 1, "note": "x"}


def test_a_column_whose_number_was_not_known_is_followed_by_its_name() -> None:
    unnumbered = replace(PRICE, number=0)
    history = _history(
        SchemaRecord(FIRST, 1),
        SchemaRecord(_of(ID, NOTE, unnumbered), 2, ShapeChange(defaults={"price": "1.50"})),
        SchemaRecord(_of(ID, NOTE, PRICE), 3),
    )
    assert _row(history, _of(ID, NOTE, unnumbered), {"id": 1, "note": "x", "price": "7"}) == {
        "id": 1,
        "note": "x",
        "price": "7",
    }
    assert _row(history, FIRST, {"id": 1, "note": "x"}) == {"id": 1, "note": "x", "price": "1.50"}


def test_rows_and_deletes_of_another_key_are_left_out() -> None:
    second = _of(ID, NOTE, key=("note",))
    history = _history(SchemaRecord(FIRST, 1), SchemaRecord(second, 2, ShapeChange(rewritten="its key is another one")))
    assert history.translate(_event({"id": 1, "note": "x"}), FIRST.schema_id) is None
    assert history.translate(_event(None), "") is None
    gone = _event(None, {"note": "x"})
    assert history.translate(gone, "") is gone


@pytest.mark.parametrize(
    ("before", "old", "after", "new"),
    [
        (ID, 1, replace(ID, value_type="text"), "1"),
        (replace(ID, value_type="text"), "1", ID, 1),
        (replace(ID, value_type="numeric"), "1", ID, 1),
        (replace(ID, value_type="bool"), True, ID, 1),
        (
            replace(ID, value_type="timestamp"),
            "2020-01-01T00:00:00",
            replace(ID, value_type="timestamptz"),
            "2020-01-01T00:00:00Z",
        ),
        (replace(ID, value_type="text"), "abc", replace(ID, value_type="numeric"), "1.0"),
        (replace(ID, is_array=True), [1], replace(ID, value_type="text", is_array=True), ["1"]),
    ],
)
def test_deletes_of_keys_of_another_type_are_left_out(
    before: Column, old: JsonValue, after: Column, new: JsonValue
) -> None:
    """A store may take both for one key, and the copy that follows deletes the old one behind the new row."""
    first, second = _of(before, NOTE), _of(after, NOTE)
    history = _history(SchemaRecord(first, 1), SchemaRecord(second, 2, ShapeChange(rewritten="id has another type")))
    for schema_id in (first.schema_id, second.schema_id, ""):
        assert history.translate(_event(None, {"id": old}), schema_id) is None
    gone = _event(None, {"id": new})
    assert history.translate(gone, "") is gone


def test_a_shape_that_came_back_is_the_newest() -> None:
    second = _of(ID, replace(NOTE, name="remark"))
    # The topic is compacted: the first record of a shape is replaced by its last.
    history = _history(SchemaRecord(second, 2), SchemaRecord(FIRST, 3))
    assert _row(history, second, {"id": 1, "remark": "x"}) == {"id": 1, "note": "x"}
    assert newest_shapes([SchemaRecord(second, 2), SchemaRecord(FIRST, 3)])[FIRST.name] == FIRST


def test_a_shape_that_nobody_has_recorded_is_an_error() -> None:
    history = _history(SchemaRecord(FIRST, 1), SchemaRecord(_of(ID, NOTE, PRICE), 2))
    with pytest.raises(LockstepError, match="not prepared for"):
        history.translate(_event({"id": 1}), _of(ID).schema_id)


def test_an_event_of_a_newer_key_is_no_row_from_before() -> None:
    """It isn't void but unknown: the job has to be prepared for it."""
    second = _of(ID, NOTE, PRICE)
    history = _history(SchemaRecord(FIRST, 1), SchemaRecord(second, 2))
    newer = _of(replace(ID, name="number"), NOTE, key=("number",))
    rows: list[dict[str, JsonValue] | None] = [{"number": 1, "note": "x"}, None]
    for row in rows:
        with pytest.raises(LockstepError, match="not prepared for"):
            history.translate(_event(row, {"number": 1}), newer.schema_id)


COPIED = ShapeChange(rewritten="it was copied again")
BONUS = replace(column("bonus", "numeric"), number=3)


def _recovered(*columns: Column) -> Table:
    return replace(_of(*columns), epoch=1)


def test_a_number_that_is_given_again_after_a_recovery_is_another_column() -> None:
    """The source was put back to before ``price`` was added."""
    old, new = _of(ID, NOTE, PRICE), _recovered(ID, NOTE, BONUS)
    records = [
        SchemaRecord(FIRST, 1),
        SchemaRecord(old, 2, ShapeChange(defaults={"price": "1.50"})),
        SchemaRecord(_recovered(ID, NOTE), 1, COPIED, from_epoch=1),
        SchemaRecord(new, 2, ShapeChange(defaults={"bonus": "7"}), from_epoch=1),
    ]
    history = _history(*records)
    assert _row(history, old, {"id": 1, "note": "x", "price": "2"}) == {"id": 1, "note": "x", "bonus": "7"}
    assert _row(history, FIRST, {"id": 1, "note": "x"}) == {"id": 1, "note": "x", "bonus": "7"}
    assert added_values(new, records) == {"bonus": "7"}
    at_once = [*records[:2], SchemaRecord(new, 1, COPIED, from_epoch=1)]
    assert _row(_history(*at_once), old, {"id": 1, "note": "x", "price": "2"}) == {"id": 1, "note": "x", "bonus": None}
    assert added_values(new, at_once) == {}


def test_a_column_is_followed_over_a_recovery_by_its_name_and_then_by_its_number() -> None:
    """On another server columns have other numbers, and a table that isn't copied has the rows from before."""
    elsewhere = replace(_recovered(ID, replace(NOTE, number=9), replace(PRICE, number=2)), oid=8)
    renamed = replace(elsewhere, columns=(ID, replace(NOTE, name="memo", number=9), elsewhere.columns[2]))
    old = replace(_of(ID, NOTE, PRICE), oid=7)
    records = [
        SchemaRecord(replace(FIRST, oid=7), 1),
        SchemaRecord(old, 2, ShapeChange(defaults={"price": "1.50"})),
        SchemaRecord(elsewhere, 1, from_epoch=1),
        SchemaRecord(renamed, 2, from_epoch=1),
    ]
    history = _history(*records)
    assert _row(history, old, {"id": 1, "note": "x", "price": "2"}) == {"id": 1, "memo": "x", "price": "2"}
    assert _row(history, FIRST, {"id": 1, "note": "x"}) == {"id": 1, "memo": "x", "price": "1.50"}
    assert added_values(renamed, records) == {"price": "1.50"}


def test_numbers_of_a_table_that_was_made_again_are_of_other_columns() -> None:
    old = replace(_of(ID, NOTE), oid=7)
    new = replace(_of(replace(NOTE, number=1), replace(ID, number=2)), oid=8)
    made_again = ShapeChange(rewritten="it was dropped and made again")
    history = _history(SchemaRecord(old, 1), SchemaRecord(new, 2, made_again))
    assert _row(history, old, {"id": 1, "note": "x"}) == {"note": "x", "id": 1}


def test_an_earlier_key_is_followed_by_the_numbers_of_its_columns() -> None:
    line = replace(column("line", "int4"), number=4)
    first = _of(ID, NOTE, line, key=("line", "id"))
    second = _of(replace(ID, name="uid"), NOTE, replace(line, name="id"), key=("uid", "id"))
    records = [SchemaRecord(first, 1), SchemaRecord(second, 2)]
    assert earlier_keys(records) == {("line", "id"): ("id", "uid")}
    assert earlier_keys(records[:1]) == {}
    assert earlier_keys([*records, SchemaRecord(first, 3)]) == {("uid", "id"): ("id", "line")}


def test_an_earlier_key_of_other_columns_or_types_is_not_known_for_a_row() -> None:
    second = _of(replace(ID, name="uid"), NOTE, key=("uid",))
    for first in (_of(ID, NOTE, key=("note",)), _of(ID, NOTE, key=("id", "note"))):
        assert earlier_keys([SchemaRecord(first, 1), SchemaRecord(second, 2)]) == {first.key: None}
    text = _of(replace(column("uid"), number=1), NOTE, key=("uid",))
    assert earlier_keys([SchemaRecord(FIRST, 1), SchemaRecord(text, 2)]) == {("id",): None}
    anew = replace(second, oid=8)
    assert earlier_keys([SchemaRecord(replace(FIRST, oid=7), 1), SchemaRecord(anew, 2)]) == {("id",): None}
