"""sinks.shape"""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from sinks.shape import Shape
from tests.builders import column, table

BEFORE = table(column("id", "int8"), column("note"), column("price", "numeric"))


def names(shape: Shape) -> list[str]:
    return [c.name for c in shape.columns]


def test_the_same_shape_fits() -> None:
    assert Shape.of(BEFORE).evolve(BEFORE) == Shape.of(BEFORE)


def test_a_new_column_is_added_at_the_end() -> None:
    wider = replace(BEFORE, columns=(column("new"), *BEFORE.columns))
    assert names(Shape.of(BEFORE).evolve(wider)) == ["id", "note", "price", "new"]


def test_a_dropped_column_is_kept() -> None:
    narrower = replace(BEFORE, columns=BEFORE.columns[:2])
    assert names(Shape.of(BEFORE).evolve(narrower)) == ["id", "note", "price"]


def test_a_dropped_column_may_come_back() -> None:
    narrower = replace(BEFORE, columns=BEFORE.columns[:2])
    assert Shape.of(BEFORE).evolve(narrower).evolve(BEFORE) == Shape.of(BEFORE)


def test_one_column_dropped_and_another_of_another_type_added_is_no_rename() -> None:
    other = replace(BEFORE, columns=(*BEFORE.columns[:2], column("at", "timestamptz")))
    assert names(Shape.of(BEFORE).evolve(other)) == ["id", "note", "price", "at"]


def test_a_longer_varchar_is_the_same_type() -> None:
    short = table(column("id", "int8"), column("name", "varchar", type_name="character varying(10)", type_modifier=14))
    long = table(column("id", "int8"), column("name", "varchar", type_name="character varying(99)", type_modifier=103))
    assert names(Shape.of(short).evolve(long)) == ["id", "name"]


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


def test_a_shape_survives_its_json() -> None:
    shape = Shape.of(BEFORE).evolve(replace(BEFORE, columns=BEFORE.columns[:2]))
    assert Shape.from_json(shape.to_json()) == shape
