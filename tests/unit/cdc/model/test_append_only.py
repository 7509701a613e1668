"""How destinations hold a table without a key."""

import pytest

from cdc.model.append_only import event_id, hides, is_append_only, stored_table
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.columns.shape import Shape
from tests.builders import column, table, tag

LOG = table(column("note"), column("number", "int4"), name=TableName("public", "log"), key=())


def test_it_has_the_events_identity_for_its_key_and_the_operation_before_its_own_columns() -> None:
    stored = stored_table(LOG)
    assert ([each.name for each in stored.columns], stored.key) == (
        ["_event", "_operation", "note", "number"],
        ("_event",),
    )
    assert is_append_only(stored)
    assert stored_table(stored) is stored


def test_a_table_with_a_key_stays_as_it_is_also_where_its_key_has_that_name() -> None:
    assert stored_table(table()) == table()
    own = table(column("_event"), column("_operation", "int4"), key=("_event",))
    assert not is_append_only(stored_table(own))


def test_it_is_known_again_after_it_was_stored_and_has_grown() -> None:
    shape = Shape.from_json(Shape.of(stored_table(LOG)).to_json())
    grown = table(*LOG.columns, column("more"), name=LOG.name, key=())
    assert is_append_only(shape.evolve(stored_table(grown)).table)
    assert is_append_only(shape.follow(stored_table(grown)).table)


@pytest.mark.parametrize("name", ["_event", "_operation", "_Event"])
def test_a_column_of_one_of_our_names_is_refused(name: str) -> None:
    with pytest.raises(LockstepError, match="need for themselves"):
        stored_table(table(column(name), name=LOG.name, key=()))


def test_rows_of_one_copy_differ_by_their_offset_and_changes_by_their_tag_alone() -> None:
    assert event_id(tag(1, 0), 7) != event_id(tag(1, 0), 8)
    assert event_id(tag(1, 1), 7) == event_id(tag(1, 1), 8) == tag(1, 1)
    assert sorted([event_id(tag(2, 0), 1), event_id(tag(1, 1), 9)]) == [event_id(tag(1, 1), 9), event_id(tag(2, 0), 1)]


def test_a_truncate_hides_itself_and_what_has_a_lesser_tag() -> None:
    assert hides({"_operation": "truncate"}, tag(3), tag(2))
    assert hides({"_operation": "insert"}, tag(1), tag(2))
    assert not hides({"_operation": "snapshot"}, tag(2, 0), tag(2, 0))
