"""lockstep.verify.sides.sink_view"""

from collections.abc import Sequence

import orjson

from cdc.model.table import TableName
from lockstep.verify.canonical import key_of
from lockstep.verify.sides.sink_view import SinkView
from sinks.wrappers.masks import Truncation
from sinks.wrappers.projection import Projection
from tests.builders import ORDERS, column, table

SHAPE = table()
PAIRS = [(key_of(SHAPE, row), row) for row in ({"id": n, "note": f"note {n}"} for n in range(3))]


class RowComputer:
    """Doubles the id; leaves 1 out and can't evaluate 2."""

    def compute(self, table: TableName, rows: Sequence[bytes]) -> list[bytes]:
        ids = [orjson.loads(row)["id"] for row in rows]
        results = [
            {"double": None if n == 2 else {"v": str(2 * n)}, "where": {"v": "false" if n == 1 else "true"}}
            for n in ids
        ]
        return list(map(orjson.dumps, results))


def _no_computer() -> RowComputer:
    raise AssertionError("nothing is to be evaluated")


def test_rows_that_a_sink_sees_as_they_are_pass_by() -> None:
    view = SinkView(Projection({ORDERS: frozenset({"note"})}), _no_computer)
    assert not view.changes(ORDERS)
    assert list(view.rows(ORDERS, PAIRS)) == PAIRS
    assert [held.name for held in view.table(SHAPE).columns] == ["id"]


def test_masks_hide_what_they_hide_in_the_sink() -> None:
    view = SinkView(Projection(masks={ORDERS: {"note": Truncation(truncate=1)}}), _no_computer)
    assert view.changes(ORDERS)
    assert [row["note"] for _, row in view.rows(ORDERS, PAIRS)] == ["n", "n", "n"]


def test_expressions_are_evaluated_and_what_fails_differs_from_everything() -> None:
    projection = Projection(computed={ORDERS: (column("double", "int8"),)}, conditions={ORDERS})
    view = SinkView(projection, RowComputer)
    assert list(view.rows(ORDERS, PAIRS)) == [
        (PAIRS[0][0], {"id": 0, "note": "note 0", "double": 0}),
        (PAIRS[2][0], {}),
    ]
    assert [held.name for held in view.table(SHAPE).columns] == ["id", "note", "double"]
    assert view.table(view.table(SHAPE)) == view.table(SHAPE)
