"""What sinks promise of append-only tables: each event once, and nothing from before a truncate."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, TRUNCATE, event_id, stored_table
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import TableName
from sinks.contract import Sink
from tests.builders import batch, column, table, tag, upsert
from tests.contract.destinations import Destination, opened_destination, real
from tests.contract.items import counts
from tests.examples import examples
from tests.threads import at_once

_TAKING: Final = ("warehouse", "warehouse-history", "duckdb", "delta")

LOG = stored_table(table(column("note"), column("number", "int4"), name=TableName("public", "log"), key=()))
COPIED = 0
"""The ``seq`` of a copy's rows."""


def _takes(param: Any) -> bool:
    return param.values[0] in _TAKING


@pytest.fixture(params=["memory", *filter(_takes, real())])
def taking(request: pytest.FixtureRequest) -> Iterator[Destination]:
    """One of each kind that takes such tables."""
    made = opened_destination(request.param, lambda: request.getfixturevalue("endpoints"))
    yield made
    made.close()


def line(note: str, at: int, seq: int = 1, *, offset: int = 0, operation: str = "insert") -> RowEvent:
    text = tag(at, seq)
    row: dict[str, JsonValue] = {
        EVENT_COLUMN: event_id(text, offset),
        OPERATION_COLUMN: operation,
        "note": note,
        "number": 1,
    }
    return upsert(row, text, of=LOG)


def emptied(at: int, seq: int = 1, *, offset: int = 0) -> RowEvent:
    text = tag(at, seq)
    return upsert({EVENT_COLUMN: event_id(text, offset), OPERATION_COLUMN: TRUNCATE}, text, of=LOG)


def notes(sink: Sink) -> list[str]:
    return sorted(str(stored.row["note"]) for stored in sink.scan(LOG))


def test_each_event_is_there_once_however_often_it_comes(taking: Destination, name: str) -> None:
    sink = taking.sink(name, 1, LOG)
    events = [line("a", 1), line("a", 1, 2), line("b", 2)]
    assert counts(sink.apply(batch(*events))) == (3, 0, 0)
    assert counts(sink.apply(batch(*events, line("c", 3)))) == (1, 3, 0)
    assert notes(sink) == ["a", "a", "b", "c"]


@pytest.mark.soak
def test_rows_of_one_copy_are_told_apart(taking: Destination, name: str) -> None:
    sink = taking.sink(name, 1, LOG)
    rows = [line("same", 1, COPIED, offset=n, operation="snapshot") for n in range(3)]
    sink.apply(batch(*rows))
    sink.apply(batch(*rows))
    assert notes(sink) == ["same", "same", "same"]
    assert {stored.row[OPERATION_COLUMN] for stored in sink.scan(LOG)} == {"snapshot"}


def test_a_truncate_takes_away_what_is_there_and_what_comes_late(taking: Destination, name: str) -> None:
    sink = taking.sink(name, 1, LOG)
    sink.apply(batch(line("before", 1), line("before", 2)))
    sink.apply(batch(line("before", 2), line("in its transaction, before", 3, 1), emptied(3, 2), line("after", 3, 3)))
    assert notes(sink) == ["after"]
    sink.apply(batch(line("late", 1, 2), line("before", 2)))
    assert notes(sink) == ["after"]
    assert counts(sink.apply(batch(emptied(3, 2), line("after", 3, 3)))) == (0, 2, 0)
    sink.apply(batch(emptied(2, 9)))
    assert notes(sink) == ["after"]


def test_a_copy_replaces_what_was_there_before_it(taking: Destination, name: str) -> None:
    """A copy begins with a truncate of its own tag, and a transaction may commit at exactly the copy's LSN."""
    sink = taking.sink(name, 1, LOG)
    sink.apply(batch(line("of an earlier copy", 1, COPIED), line("inserted", 2)))
    copy = [line("copied", 3, COPIED, offset=n, operation="snapshot") for n in (11, 12)]
    sink.apply(batch(emptied(3, COPIED, offset=10), *copy, line("at its LSN", 3, 1)))
    assert notes(sink) == ["at its LSN", "copied", "copied"]


def test_a_replay_writes_rows_again_and_brings_none_back(taking: Destination, name: str) -> None:
    sink = taking.sink(name, 1, LOG)
    sink.apply(batch(line("before", 1), emptied(2), line("as the bug made it", 3)))
    sink.apply(replace(batch(line("before", 1), emptied(2), line("right", 3)), overwrite_equal_tags=True))
    assert notes(sink) == ["right"]


def test_a_bulk_load_ends_with_each_event_once_and_nothing_from_before(taking: Destination, name: str) -> None:
    opened = taking.opened(name)
    opened.sink.prepare([LOG], go_live=False)
    if opened.bulk is not None:
        opened.bulk.begin_bulk()
    opened.sink.apply(batch(line("before", 1), line("after", 3)))
    opened.sink.apply(batch(emptied(2), line("after", 3), line("more", 4)))
    opened.sink.apply(batch(line("late", 1, 2)))
    if opened.bulk is not None:
        opened.bulk.end_bulk()
    assert notes(opened.sink) == ["after", "more"]
    assert counts(opened.sink.apply(batch(line("after", 3), line("new", 5), line("late", 1, 3)))) == (2, 1, 0)
    assert notes(opened.sink) == ["after", "more", "new"]


def test_two_that_write_the_same_at_once_leave_each_event_once(taking: Destination, name: str) -> None:
    first, second = taking.sink(name, 1, LOG), taking.sink(name)
    fence = first.claim()
    events = [line(str(n), n) for n in range(1, 40)] + [emptied(20, 2)]

    def write(sink: Sink, order: list[RowEvent]) -> None:
        for start in range(0, len(order), 4):
            sink.apply(batch(*order[start : start + 4], fence=fence))

    at_once(partial(write, first, events), partial(write, second, events[::-1]))
    assert notes(first) == sorted(str(n) for n in range(21, 40))


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[RowEvent], list[list[RowEvent]]]:
    """Inserts and truncates, and batches that hold all of them at least once, in any order."""
    kinds = draw(st.lists(st.sampled_from("iiit"), min_size=1, max_size=10))
    events = [emptied(n + 1) if kind == "t" else line(f"v{n}", n + 1) for n, kind in enumerate(kinds)]
    shuffled = draw(st.permutations(events + draw(st.lists(st.sampled_from(events), max_size=6))))
    batches: list[list[RowEvent]] = [[]]
    for event in shuffled:
        if draw(st.booleans()) or event in batches[-1]:
            batches.append([])
        batches[-1].append(event)
    return events, batches


_GENERATIONS = itertools.count(1)
"""Each example has its own."""


@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=_histories())
def test_any_order_and_repetition_ends_in_the_same_rows(
    taking: Destination, name: str, history: tuple[list[RowEvent], list[list[RowEvent]]]
) -> None:
    events, batches = history
    opened = taking.opened(name, next(_GENERATIONS), LOG)
    for given_batch in batches:
        opened.sink.apply(batch(*given_batch, fence=opened.sink.fence()))
    truncates = [n for n, event in enumerate(events) if event.row and event.row[OPERATION_COLUMN] == TRUNCATE]
    kept = events[truncates[-1] + 1 :] if truncates else events
    assert notes(opened.sink) == sorted(str(event.row["note"]) for event in kept if event.row)
