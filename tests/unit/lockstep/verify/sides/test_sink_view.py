"""lockstep.verify.sides.sink_view"""

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.verify.canonical import key_of
from lockstep.verify.sides.sink_view import SinkView
from sinks.table_settings import Computed, Expressions
from sinks.wrappers.masks import Truncation
from sinks.wrappers.projection import Projection
from tests.builders import ORDERS, column, table

SHAPE = table()
PAIRS = [(key_of(SHAPE, row), row) for row in ({"id": n, "note": f"note {n}"} for n in range(3))]
EVALUATED = Projection(computed={ORDERS: (column("double", "int8"),)}, conditions={ORDERS})


def _view(sql: str, where: str) -> SinkView:
    expressions = Expressions({"double": Computed(sql=sql, type="int8")}, where)
    return SinkView(EVALUATED, {ORDERS: expressions}, {ORDERS: SHAPE})


def test_rows_that_a_sink_sees_as_they_are_pass_by() -> None:
    view = SinkView(Projection({ORDERS: frozenset({"note"})}))
    assert not view.changes(ORDERS)
    assert list(view.rows(ORDERS, PAIRS)) == PAIRS
    assert [held.name for held in view.table(SHAPE).columns] == ["id"]


def test_masks_hide_what_they_hide_in_the_sink() -> None:
    view = SinkView(Projection(masks={ORDERS: {"note": Truncation(truncate=1)}}))
    assert view.changes(ORDERS)
    assert [row["note"] for _, row in view.rows(ORDERS, PAIRS)] == ["n", "n", "n"]


def test_expressions_are_evaluated_and_what_fails_differs_from_everything() -> None:
    view = _view("2 * id / (2 - id)", "id <> 1")
    assert list(view.rows(ORDERS, PAIRS)) == [
        (PAIRS[0][0], {"id": 0, "note": "note 0", "double": 0}),
        (PAIRS[2][0], {}),
    ]
    assert [held.name for held in view.table(SHAPE).columns] == ["id", "note", "double"]
    assert view.table(view.table(SHAPE)) == view.table(SHAPE)


def test_expressions_that_no_longer_fit_the_table_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no column 'gone'"):
        list(_view("gone", "true").rows(ORDERS, PAIRS))
