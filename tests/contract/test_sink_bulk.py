"""What every sink that loads in bulk promises: it ends with the same rows."""

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.model.errors import Fenced
from cdc.model.event import RowEvent
from cdc.model.table import Table, TableName
from sinks.contract import OpenedSink, Outcome
from tests.builders import batch, column, upsert
from tests.contract.destinations import ITEMS, KINDS, Destination, real
from tests.contract.items import ODD, PLAIN, VALUES, counts, expected, gone, histories, item, rows_of
from tests.examples import examples

pytestmark = pytest.mark.needs("bulk")


def _in_bulk(destination: Destination, name: str, *tables: Table) -> OpenedSink:
    """A generation in which bulk has begun, beside a live one."""
    destination.sink(name, 1, ITEMS)
    opened = destination.opened(name, 2)
    opened.sink.prepare(tables or [ITEMS], go_live=False)
    opened.bulk.begin_bulk()
    return opened


def _judged(outcome: Outcome) -> tuple[int, int]:
    """In bulk a sink needn't know yet which events are stale."""
    return outcome.applied + outcome.stale, len(outcome.rejections)


def test_bulk_ends_in_the_newest_row_of_each_key(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    again = [item(1, "a", 2), item(2, "b", 2), gone(3, 2), item(4, "d", 1)]
    for events in (again, again, [item(1, "old", 1), item(3, "old", 1)], [item(2, "newest", 3), gone(4, 3)]):
        assert _judged(opened.sink.apply(batch(*events))) == (len(events), 0)
    opened.bulk.end_bulk()
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "newest"}
    opened.generations.switch()
    with destination.reader(name) as find:
        assert find(2) == "newest"
    assert counts(opened.sink.apply(batch(item(1, "old", 1), item(3, "stale", 1), item(4, "stale", 2)))) == (0, 3, 0)
    assert counts(opened.sink.apply(batch(item(3, "again", 3)))) == (1, 0, 0)
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "newest", "(3,)": "again"}


def test_bulk_goes_on_in_another_process(destination: Destination, name: str) -> None:
    _in_bulk(destination, name).sink.apply(batch(item(1, "a", 1), item(2, "b", 1)))
    second = destination.opened(name, 2)
    second.sink.prepare([ITEMS], go_live=False)
    second.bulk.begin_bulk()
    second.sink.apply(batch(item(1, "newer", 2), item(3, "c", 1)))
    third = destination.opened(name, 2)
    third.bulk.end_bulk()
    third.bulk.end_bulk()
    assert rows_of(third.sink) == {"(1,)": "newer", "(2,)": "b", "(3,)": "c"}
    assert counts(second.sink.apply(batch(item(1, "old", 1), item(2, "new", 2)))) == (1, 1, 0)


def test_bulk_without_duplicates_or_rows_on_rows_that_are_there_or_not_begun_ends_too(
    destination: Destination, name: str
) -> None:
    other = replace(ITEMS, name=TableName("public", "others"))
    destination.opened(name, 7).bulk.end_bulk()
    destination.sink(name, 1, ITEMS)
    opened = destination.opened(name, 2, ITEMS, other)
    opened.sink.apply(batch(item(1, "a", 2)))
    opened.bulk.end_bulk()
    opened.bulk.begin_bulk()
    opened.sink.apply(batch(item(1, "old", 1), *(item(n, f"n{n}", 1) for n in range(2, 100))))
    opened.bulk.end_bulk()
    assert rows_of(opened.sink) == {"(1,)": "a", **{f"({n},)": f"n{n}" for n in range(2, 100)}}
    assert rows_of(opened.sink, other) == {}
    assert counts(opened.sink.apply(batch(item(2, "old", 1)))) == (0, 1, 0)


def test_bulk_on_a_generation_that_readers_see_shows_them_nothing_else(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    opened.bulk.begin_bulk()
    opened.sink.apply(batch(item(1, "a", 1)))
    opened.sink.apply(batch(item(1, "b", 2), item(2, "b", 2)))
    assert rows_of(opened.sink) == {"(1,)": "b", "(2,)": "b"}
    with destination.reader(name) as find:
        deadline = time.monotonic() + 300
        while (find(1), find(2)) != ("b", "b"):
            assert time.monotonic() < deadline
    opened.bulk.end_bulk()


def test_bulk_rejects_poison_and_applies_its_neighbours(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    events = [item(n, f"n{n}", 1) for n in range(64)]
    for n in (0, 17, 18, 63):
        events[n] = replace(events[n], row={**(events[n].row or {}), **destination.poison})
    outcome = opened.sink.apply(batch(*events))
    assert _judged(outcome) == (60, 4)
    assert sorted(rejection.event.key["id"] for rejection in outcome.rejections) == [0, 17, 18, 63]  # type: ignore[type-var]
    opened.bulk.end_bulk()
    assert rows_of(opened.sink) == {f"({n},)": f"n{n}" for n in range(64) if n not in (0, 17, 18, 63)}


def test_bulk_goes_on_with_new_columns_and_tables(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    opened.sink.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added")))
    other = replace(ITEMS, name=TableName("public", "others"))
    destination.sink(name, 2).prepare([wider, other], go_live=False)
    for at in (1, 2):
        opened.sink.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": f"x{at}"}, at, of=wider)))
        opened.sink.apply(batch(upsert({"id": 3, "note": f"o{at}", "number": 1}, at, of=other)))
    opened.bulk.end_bulk()
    assert {stored.row["id"]: stored.row["added"] for stored in opened.sink.scan(wider)} == {1: None, 2: "x2"}
    assert rows_of(opened.sink, other) == {"(3,)": "o2"}


def test_bulk_keeps_every_value(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    for _ in range(2):
        assert _judged(opened.sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))) == (len(rows), 0)
    opened.bulk.end_bulk()
    rows_by_id = {stored.key["id"]: dict(stored.row) for stored in opened.sink.scan(VALUES)}
    assert rows_by_id == {row["id"]: row for row in rows}


def test_a_fence_holds_in_bulk_too(destination: Destination, name: str) -> None:
    zombie = _in_bulk(destination, name)
    old_fence = zombie.sink.claim()
    fence = destination.sink(name, 2).claim()
    if destination.fences:
        with pytest.raises(Fenced):
            zombie.sink.apply(batch(item(1, "zombie", 2), fence=old_fence))
    opened = destination.opened(name, 2)
    opened.sink.apply(batch(item(1, "heir", 3), fence=fence))
    opened.bulk.end_bulk()
    assert rows_of(opened.sink) == {"(1,)": "heir"}


@pytest.mark.parametrize("kind", real(needs=["bulk"]))
@given(history=histories(), restarts=st.sets(st.integers(0, 8)))
@settings(
    deadline=None,
    max_examples=examples(3),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_and_repetition_ends_in_the_same_rows_in_bulk(
    kind: str, endpoints: Any, history: tuple[list[RowEvent], list[list[RowEvent]]], restarts: set[int]
) -> None:
    events, batches = history
    destination = KINDS[kind](endpoints)
    name = f"t{uuid.uuid4().hex[:12]}"
    try:
        opened = _in_bulk(destination, name)
        for number, events_of_batch in enumerate(batches):
            if number in restarts:
                opened = destination.opened(name, 2)
                opened.sink.prepare([ITEMS], go_live=False)
                opened.bulk.begin_bulk()
            opened.sink.apply(batch(*events_of_batch))
        opened.bulk.end_bulk()
        assert rows_of(opened.sink) == expected(events)
    finally:
        destination.close()
