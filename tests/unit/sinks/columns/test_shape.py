"""sinks.columns.shape"""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import Column, Table
from sinks.columns.shape import Shape, Steps
from tests.builders import column, table

BEFORE = table(column("id", "int8"), column("note"), column("price", "numeric"))


def names(shape: Shape) -> list[str]:
    return [c.name for c in shape.columns]


def test_a_dropped_column_is_kept_and_may_come_back() -> None:
    narrower = replace(BEFORE, columns=BEFORE.columns[:2])
    assert names(Shape.of(BEFORE).evolve(narrower)) == ["id", "note", "price"]
    assert Shape.of(BEFORE).evolve(narrower).evolve(BEFORE) == Shape.of(BEFORE)


def test_nothing_is_done_where_nothing_is_new() -> None:
    held = Shape.of(HELD)
    assert held.follow(HELD) == held
    assert held.steps_to(held) == Steps({}, (), ())


def test_one_column_dropped_and_another_of_another_type_added_is_no_rename() -> None:
    other = replace(BEFORE, columns=(*BEFORE.columns[:2], column("at", "timestamptz")))
    assert names(Shape.of(BEFORE).evolve(other)) == ["id", "note", "price", "at"]


ID, NOTE, PRICE = NUMBERED = tuple(replace(c, number=number) for number, c in enumerate(BEFORE.columns, 1))
HELD = replace(BEFORE, columns=NUMBERED, oid=7)


def of(*columns: Column, oid: int = 7) -> Table:
    return replace(HELD, columns=columns, oid=oid)


def called(name: str, renamed: Column) -> Column:
    return replace(renamed, name=name)


def test_columns_are_known_by_their_numbers_where_they_have_them() -> None:
    assert names(Shape.of(HELD).evolve(of(ID, replace(column("memo"), number=4), PRICE))) == [
        "id",
        "note",
        "price",
        "memo",
    ]
    with pytest.raises(LockstepError, match="'note' seems to be renamed to 'memo'"):
        Shape.of(HELD).evolve(of(ID, replace(column("memo", "int8"), number=2), PRICE))


def test_a_recreated_table_counts_its_columns_from_one() -> None:
    again = Shape.of(HELD).evolve(of(replace(NOTE, number=1), replace(ID, number=2), oid=8))
    assert names(again) == ["id", "note", "price"]
    assert names(
        again.evolve(of(replace(NOTE, number=1), replace(ID, number=2), replace(column("new"), number=3), oid=8))
    )


def test_a_column_that_gets_the_name_of_a_renamed_one_is_a_new_one() -> None:
    held = Shape.of(HELD)
    new = replace(column("note", "numeric"), number=4)
    followed = held.follow(of(ID, called("memo", NOTE), PRICE, new))
    assert held.steps_to(followed) == Steps({"note": "memo"}, (new,), ())


def test_in_a_table_that_was_made_again_no_column_is_another_ones_successor() -> None:
    held = Shape.of(of(ID, NOTE))
    other = replace(column("amount", "int4"), number=2)
    followed = held.follow(of(ID, other, oid=8))
    assert held.steps_to(followed).renamed == {}


@pytest.mark.parametrize("after", [of(ID, called("memo", NOTE), oid=8), replace(of(ID, called("memo", NOTE)), epoch=1)])
def test_in_a_table_that_comes_again_as_a_whole_a_column_of_the_same_type_is_no_successor(after: Table) -> None:
    """After a table that was made again, and after a recovery, every row is copied."""
    held = Shape.of(of(ID, NOTE))
    assert names(held.evolve(after)) == ["id", "note", "memo"]
    followed = held.follow(after)
    assert names(followed) == ["id", "memo"]
    assert held.steps_to(followed) == Steps({}, (called("memo", NOTE),), ("note",))


def test_a_number_that_is_given_again_after_a_recovery_is_another_column() -> None:
    put_back = replace(of(ID), epoch=1)
    held = Shape.of(of(ID, NOTE)).evolve(put_back)
    again = replace(put_back, columns=(ID, called("memo", NOTE)))
    assert names(held.evolve(again)) == ["id", "note", "memo"]
    assert Shape.from_json(held.to_json()).table.epoch == 1


def test_where_a_column_may_be_one_that_is_known_by_another_name_none_is_removed() -> None:
    with pytest.raises(LockstepError, match="seems to be renamed"):
        Shape.of(HELD).follow(of(ID, replace(column("memo"), number=0), PRICE))


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (of(ID, replace(NOTE, number=3), called("price", NOTE)), "was numeric and is text"),
        (of(called("number", ID), NOTE, PRICE), "seems to be renamed|its key was"),
        (of(ID, called("memo", replace(NOTE, value_type="int8")), PRICE), "'memo' was text and is int8"),
        (of(ID, called("price", NOTE)), "was numeric and is text"),
    ],
    ids=["swapped", "key", "another type too", "into the place of a dropped one"],
)
def test_what_can_not_be_followed_is_refused(after: Table, why: str) -> None:
    if after.columns[0].name == "number":
        after = replace(after, key=("number",))
    with pytest.raises(LockstepError, match=why):
        Shape.of(HELD).follow(after)


@pytest.mark.parametrize("is_array", [False, True])
def test_a_text_with_a_limit_is_stored_as_one_without(*, is_array: bool) -> None:
    limited = table(column("id", "int8"), column("name", "varchar", is_array=is_array))
    free = table(column("id", "int8"), column("name", "text", is_array=is_array))
    for before, after in ((limited, free), (free, limited)):
        assert names(Shape.of(before).evolve(after)) == ["id", "name"]
        assert names(Shape.of(before).follow(after)) == ["id", "name"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (replace(BEFORE, key=("note",)), "its key was"),
        (replace(BEFORE, columns=(column("id", "int4"), *BEFORE.columns[1:])), "'id' was int8 and is int4"),
        (
            replace(BEFORE, columns=(BEFORE.columns[0], column("note", is_array=True), BEFORE.columns[2])),
            r"'note' was text and is text\[\]",
        ),
        (replace(BEFORE, columns=(BEFORE.columns[0], column("memo"), BEFORE.columns[2])), "'note' seems to be renamed"),
    ],
)
def test_what_needs_a_new_generation_says_why(changed: object, why: str) -> None:
    with pytest.raises(LockstepError, match=why) as raised:
        Shape.of(BEFORE).evolve(changed)  # type: ignore[arg-type]
    assert "lockstep rebuild" in str(raised.value.hint)
