"""In which order rows come while a state is built, and who makes use of it."""

import pytest

from tests.unit.views.test_view import a, built, everything, opened
from tests.view_queries import Question, events
from views.operators import building
from views.operators.building import Building, Item
from views.operators.order import part_of
from views.plan import Node
from views.sql.reader import TopRows
from views.state.memory import MemoryState
from views.values import Row

AT_ONCE = 4


def root_of(sql: str, *key: str, top: TopRows | None = None) -> Node:
    return opened(Question(sql, key, top), MemoryState()).plan.root


def in_portions(rows: list[Row], size: int) -> list[list[Row]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def made(rows: list[Row]) -> list[Item]:
    return [(bytes([row[0], row[1]]), b"", b"") for row in rows]  # type: ignore[list-item]  # small numbers


def first(row: Row) -> bytes:
    return bytes([row[0]])  # type: ignore[list-item]  # a small number


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SORTED_AT_ONCE", AT_ONCE)


@pytest.fixture
def builder() -> Building:
    return Building(MemoryState(), scratch=None, changes_max=1, meanwhile=lambda _: None)


# --- which order ---


def test_parts_that_may_be_null_are_no_order_without_nulls() -> None:
    """A left join hands on rows whose key is null by itself: where it has them in order, none may be."""
    root = root_of("select id, g from a", "id", top=TopRows(("g",), "id desc", 2))
    assert part_of(root, [root.columns[1]]) is not None
    assert part_of(root, [root.columns[1]], is_all=True) is None


# --- sorting by parts ---


@pytest.mark.usefixtures("few_at_once")
def test_rows_that_come_in_another_order_are_no_result(builder: Building) -> None:
    rows: list[Row] = [(20 - number, 0) for number in range(20)]
    with pytest.raises(AssertionError, match="in another order than the plan says"):
        list(builder.sorted(in_portions(rows, 6), made, lambda row: bytes([20 - row[0]])))  # type: ignore[operator]  # small numbers


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("late", range(6))
def test_not_even_the_last_row_may_come_in_another_order(builder: Building, late: int) -> None:
    rows: list[Row] = [*((number, 0) for number in range(10, 15 + late)), (1, 0)]
    with pytest.raises(AssertionError, match="in another order than the plan says"):
        list(builder.sorted(in_portions(rows, 5), made, first))


# --- who makes use of it ---


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("on", ["o.id = a.id and o.g = a.g", "o.g = a.g and o.id = a.id", "o.id = a.id"])
@pytest.mark.parametrize("kind", ["join", "left join"])
def test_a_join_of_rows_in_order_is_as_one_row_by_row(kind: str, on: str) -> None:
    """They are in the order of what can't be null. What they have in common besides can be, and finds no partner."""
    question = Question(f"select a.id, o.t from a {kind} a o on {on}", ("id",))
    rows = events([a(number, g=number % 5 or None, t=str(number)) for number in range(40)], 8)
    by_a_step, computed = MemoryState(), MemoryState()
    opened(question, by_a_step).step(rows, epoch=1, lsn=8, offsets={})
    built(opened(question, computed), [rows], 8)
    of_both = [[entry for entry in everything(state) if entry[0] > b"\1"] for state in (by_a_step, computed)]
    assert of_both[0] == of_both[1]
