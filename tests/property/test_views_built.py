"""A state that is computed once from all rows is, byte for byte, the one that each row was brought into."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import views.operators.arrivals
import views.operators.building
import views.operators.group
import views.operators.join
from cdc.model.event import RowEvent
from cdc.model.table import Table, TableName
from tests.examples import examples
from tests.property import test_views_of_events as of_events
from tests.view_queries import TABLES, KeptView, Question, RowWrite, events, histories, questions
from views.plan import ViewPlan
from views.sql.reader import RetainedRows, read_view
from views.state.contract import Entry, State
from views.state.memory import MemoryState
from views.view import View


@contextmanager
def of_few(*, portion: int, in_memory: int) -> Iterator[None]:
    """With so many rows at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(views.operators.arrivals, "FOLDED_AFTER", 3 * portion)
        for module in (views.operators.building, views.operators.group, views.operators.join):
            patched.setattr(module, "PORTION", portion)
        patched.setattr(views.operators.building, "ITEMS_MAX", in_memory)
        patched.setattr(views.operators.building, "SPILLED_AT_ONCE", portion)
        for name in ("KEPT_AT_ONCE", "SORTED_AT_ONCE"):
            patched.setattr(views.operators.building, name, portion)
        yield


def built(plan: ViewPlan, tables: Mapping[TableName, Table], pieces: Sequence[Sequence[RowEvent]]) -> list[Entry]:
    """What operators keep of all of it."""
    state = MemoryState()
    view = View(plan, tables, state)
    view.begin_building()
    for piece in pieces:
        view.build(piece)
    view.end_building(epoch=1, lsn=800, offsets={}, time_ms=TIME_MS)
    return kept_by_operators(state)


def stepped(plan: ViewPlan, tables: Mapping[TableName, Table], changes: Sequence[RowEvent]) -> list[Entry]:
    """The same after one step."""
    state = MemoryState()
    View(plan, tables, state).step(changes, epoch=1, lsn=800, offsets={}, time_ms=TIME_MS)
    return kept_by_operators(state)


def kept_by_operators(state: State) -> list[Entry]:
    """All but the view's own entries, which say what it has done."""
    return [entry for entry in state.read(lambda reading: list(reading.scan(b""))) if entry[0] > b"\1"]


A = TableName("public", "a")
TIME_MS = int(datetime(2024, 1, 2, 12, tzinfo=UTC).timestamp() * 1000)
"""By it some rows are too old where rows age out."""

PIECES = {"portion": st.integers(1, 4), "in_memory": st.integers(1, 9), "size": st.integers(1, 9)}


@settings(max_examples=examples(30))
@given(question=questions(exact=False), history=histories(), ages=st.booleans(), **PIECES)
def test_of_tables(
    question: Question, history: list[list[RowWrite]], ages: bool, portion: int, in_memory: int, size: int
) -> None:
    plan = read_view(question.sql, TABLES, key=question.key, top=question.top)
    of_all = [change for number, step in enumerate(history, 1) for change in events(step, 8 * number)]
    if ages and A in plan.tables:
        plan = read_view(question.sql, TABLES, key=question.key, top=question.top, retain=[RetainedRows(A, "d", 24)])
    pieces = [of_all[at : at + size] for at in range(0, len(of_all), size)]
    by_a_step = stepped(plan, TABLES, of_all)
    with of_few(portion=portion, in_memory=in_memory):
        assert built(plan, TABLES, pieces) == by_a_step
    event(f"entries: {min(len(by_a_step) // 10, 3)}0")


@settings(max_examples=examples(30))
@given(question=questions(exact=False), history=histories(), shuffled=st.randoms(use_true_random=False), **PIECES)
def test_whatever_the_order_of_events_it_is_the_state_that_steps_make(
    question: Question, history: list[list[RowWrite]], shuffled: Any, portion: int, in_memory: int, size: int
) -> None:
    states = MemoryState(), MemoryState()
    by_steps, anew = KeptView(question, states[0]), KeptView(question, states[1])
    for step in history:
        by_steps.step(step)
    of_all = [change for number, step in enumerate(history, 1) for change in events(step, 8 * number)]
    of_all += shuffled.choices(of_all, k=min(size, len(of_all)))
    shuffled.shuffle(of_all)
    with of_few(portion=portion, in_memory=in_memory):
        anew.view.begin_building()
        for at in range(0, len(of_all), size):
            anew.view.build(of_all[at : at + size])
        anew.view.end_building(epoch=1, lsn=8 * len(history), offsets={})
    anew.deliver()
    assert anew.rows == by_steps.rows
    assert kept_by_operators(states[1]) == kept_by_operators(states[0])


@settings(max_examples=examples(25))
@given(query=st.sampled_from(list(of_events.QUERIES)), history=of_events.steps(), **PIECES)
def test_of_events(query: str, history: list[Any], portion: int, in_memory: int, size: int) -> None:
    of_all = [each for step in history for each in step]
    pieces = [of_all[at : at + size] for at in range(0, len(of_all), size)]
    plan = of_events.Kept(query, of_events.QUERIES[query]).plan
    by_a_step = stepped(plan, of_events.SHAPES, of_all)
    with of_few(portion=portion, in_memory=in_memory):
        assert built(plan, of_events.SHAPES, pieces) == by_a_step
