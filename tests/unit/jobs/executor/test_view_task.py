"""What a view's task decides by the state that it finds, and what it knows of the sink's progress."""

from typing import Any

import pytest

from cdc.model.event import RowEvent
from cdc.model.table import TableName
from jobs.executor.view_task import _arrange, _is_usable, _SinkProgress
from tests.view_queries import TABLES, events
from views.sql.reader import read_view
from views.state.memory import MemoryState
from views.view import View, ViewChange

COUNTS = read_view("select id, g as n from a", TABLES, key=["id"])
AT: tuple[str, int] = ("a", 0)


def rows_of(*numbers: int) -> list[RowEvent]:
    names = [described.name for described in TABLES[TableName("public", "a")].columns]
    return events([("a", {"id": n}, {**dict.fromkeys(names), "id": n, "g": n}) for n in numbers], 8)


def built(*numbers: int) -> View:
    """By a run, with nothing delivered."""
    view = View(COUNTS, TABLES, MemoryState())
    view.begin_building()
    view.build(rows_of(*numbers))
    view.end_building(epoch=1, lsn=8, offsets={AT: 8})
    view.adopt("first")
    return view


def row(number: int, n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"id": number}, {"id": number, "n": n}


@pytest.mark.parametrize("numbers", [(), (1, 2)], ids=["an empty result", "rows"])
def test_another_run_does_not_trust_what_was_made_from_rows_that_the_sink_had(numbers: tuple[int, ...]) -> None:
    """The sink may have been put back since: rows that came back with it would stay."""
    view = built(*numbers)
    assert _is_usable(view, "second", {AT: 4}), "nobody has looked at the sink yet"
    _arrange(view, [], [])
    assert _is_usable(view, "first", {AT: 4})
    assert not _is_usable(view, "second", {AT: 4})


def test_a_result_of_which_a_part_is_delivered_is_not_trusted_where_the_sink_was_as_far_before() -> None:
    """An earlier state had come there, and the sink may be put back to that."""
    view = built(1, 2)
    _arrange(view, [], [])
    first = view.pending(1)
    assert first is not None
    view.acknowledge(first)
    assert not _is_usable(view, "second", {AT: 8})
    rest = view.pending()
    assert rest is not None
    view.acknowledge(rest)
    assert _is_usable(view, "second", {AT: 8})
    assert not _is_usable(view, "second", {AT: 4})


def test_what_was_elsewhere_is_deleted_and_says_nothing_of_what_differs_in_the_sink() -> None:
    """Readers of the sink see all that differs at once, whatever the topic had of these rows before."""
    view = built(1, 2, 3)
    _arrange(view, [row(1, 1), row(2, 9), row(3, 3)], [{"id": 2}, {"id": 3}, {"id": 7}, {"id": 7}])
    output = view.pending(2)
    assert output is not None
    assert list(output.changes) == [ViewChange(*row(2, 2)), ViewChange({"id": 7}, None)]


def test_what_was_told_before_a_state_is_built_is_stored_though_it_is_heard_of_later() -> None:
    progress = _SinkProgress({AT: 1})
    progress.tell({AT: 2})
    progress.tell({AT: 3})
    progress.hear(1)
    assert progress.offsets == {AT: 2}
    progress.tell({AT: 4})
    progress.hear(2)
    assert progress.offsets == {AT: 4}
