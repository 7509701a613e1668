"""What every sink promises of rows: the newest stays, whatever comes in whatever order, and refusals are reported."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cdc.model.errors import Unavailable
from cdc.model.event import RowEvent
from sinks.contract import Sink
from sinks.memory import MemorySink, MemoryStore
from sinks.wrappers.retrying import Waiting
from tests.builders import batch, tag
from tests.contract.destinations import ITEMS, KINDS, POISON, Destination, able, real, with_servers
from tests.contract.items import counts, expected, gone, histories, item, patiently, rows_of
from tests.examples import examples
from tests.threads import at_once, beside

# A batch's order


def test_a_kind_is_able_to_do_what_the_suite_asks_of_it(
    request: pytest.FixtureRequest, destination: Destination, name: str
) -> None:
    opened = destination.opened(name)
    fields = ("bulk", "erasing", "identities", "refreshing", "whole")
    kind = request.node.callspec.params["destination"]
    assert {each for each in fields if getattr(opened, each) is not None} == able(kind)


def test_only_newer_versions_of_a_row_change_it(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    assert counts(sink.apply(batch())) == (0, 0, 0)
    events = [item(1, "a", 2), item(2, "b", 2), item(3, "c", 1), gone(4, 3)]
    assert counts(sink.apply(batch(*events))) == (4, 0, 0)
    assert counts(sink.apply(batch(*events))) == (0, 4, 0), "the same again"
    assert counts(sink.apply(batch(gone(2, 4), gone(3, tag(4, 1)), item(7, "moved", tag(4, 2))))) == (3, 0, 0)
    late = [item(1, "old", 1), item(2, "deleted", 3), item(3, "moved", 2), item(4, "never was here", 2)]
    assert counts(sink.apply(batch(*late, item(5, "other", 1)))) == (1, 4, 0)
    assert rows_of(sink) == {"(1,)": "a", "(5,)": "other", "(7,)": "moved"}
    assert counts(sink.apply(batch(item(2, "again", 5), item(4, "at last", 5)))) == (2, 0, 0)
    assert rows_of(sink) == {"(1,)": "a", "(2,)": "again", "(4,)": "at last", "(5,)": "other", "(7,)": "moved"}


def test_a_replay_replaces_rows_of_the_same_tag_and_never_newer_ones(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "as the bug made it", 1), item(2, "newer", 2), item(3, "a row that should not be", 1)))
    sink.apply(batch(gone(4, 1)))
    again = batch(
        item(1, "right", 1), item(2, "older", 1), gone(3, 1), item(4, "there after all", 1), item(5, "new", 1)
    )
    assert counts(sink.apply(replace(again, overwrite_equal_tags=True))) == (4, 1, 0)
    assert rows_of(sink) == {"(1,)": "right", "(2,)": "newer", "(4,)": "there after all", "(5,)": "new"}
    assert counts(sink.apply(batch(item(1, "wrong again", 1)))) == (0, 1, 0)
    assert rows_of(sink)["(1,)"] == "right"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_changes_beyond_4095_of_one_transaction_may_come_in_any_order(
    destination: Destination, name: str, seed: int
) -> None:
    sink = destination.sink(name, 1, ITEMS)
    order = random.Random(seed)
    by_key = {
        key: [
            gone(key, tag(2, seq)) if order.random() < 0.4 else item(key, f"seq {seq}", tag(2, seq))
            for seq in sorted(order.sample(range(4090, 9000), 8))
        ]
        for key in range(6)
    }
    shuffled = {key: order.sample(events, len(events)) for key, events in by_key.items()}
    for number in range(8):
        sink.apply(batch(*(events[number] for events in shuffled.values())))
    assert rows_of(sink) == expected([event for events in by_key.values() for event in events])


def test_a_large_batch_is_applied_whole(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(n, f"n{n}", 1) for n in range(5000)]
    assert counts(sink.apply(batch(*events))) == (5000, 0, 0)
    assert rows_of(sink) == {f"({n},)": f"n{n}" for n in range(5000)}


def test_two_writers_on_the_same_keys_end_with_the_newest(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    written: list[tuple[int, int]] = []

    def write(seed: int) -> None:
        picks = random.Random(seed)
        patient = patiently(destination.opened(name, 1), []).sink
        for _ in range(examples(10)):
            keys = picks.sample(range(20), 10)
            at = picks.randrange(1, 500)
            patient.apply(batch(*(item(key, f"commit {at}", at) for key in keys)))
            written.extend((key, at) for key in keys)

    at_once(partial(write, 1), partial(write, 2))
    newest_of = {key: max(at for other, at in written if other == key) for key, _ in written}
    assert rows_of(destination.sink(name, 1)) == {f"({key},)": f"commit {at}" for key, at in newest_of.items()}


def test_poison_rows_are_rejected_without_their_values_and_their_neighbours_are_applied(
    destination: Destination, name: str
) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(n, f"secret-note {n}", 1) for n in range(64)]
    poisoned = (0, 17, 18, 63)
    for n in poisoned:
        events[n] = replace(events[n], row={**(events[n].row or {}), **destination.poison})
    outcome = sink.apply(batch(*events))
    assert counts(outcome) == (60, 0, 4)
    assert sorted(rejection.event.key["id"] for rejection in outcome.rejections) == [*poisoned]  # type: ignore[type-var]
    assert all(rejection.event in events and rejection.reason for rejection in outcome.rejections)
    for secret in ("secret-note", POISON, str(2**40)):
        assert not [rejection.reason for rejection in outcome.rejections if secret in rejection.reason]
    assert rows_of(sink) == {f"({n},)": f"secret-note {n}" for n in range(64) if n not in poisoned}


@given(history=histories())
@settings(deadline=None)
def test_any_order_and_repetition_ends_in_the_same_rows(history: tuple[list[RowEvent], list[list[RowEvent]]]) -> None:
    events, batches = history
    sink = MemorySink(MemoryStore(), 1)
    sink.prepare([ITEMS])
    for events_of_batch in batches:
        sink.apply(batch(*events_of_batch))
    assert rows_of(sink) == expected(events)


@pytest.mark.parametrize("kind", real())
@given(history=histories())
@settings(
    deadline=None,
    max_examples=examples(5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_and_repetition_ends_in_the_same_rows_on_servers(
    kind: str, endpoints: Any, history: tuple[list[RowEvent], list[list[RowEvent]]]
) -> None:
    events, batches = history
    # All examples share one schema of tables; each has a key space of its own.
    destination = KINDS[kind](endpoints)
    sink = destination.sink(f"t{uuid.uuid4().hex[:12]}", 1, ITEMS)
    try:
        for events_of_batch in batches:
            sink.apply(batch(*events_of_batch))
        assert rows_of(sink) == expected(events)
    finally:
        destination.close()


@contextmanager
def _knocking(make: Callable[[], Sink]) -> Iterator[list[Exception]]:
    """New sinks all the time, as a job makes them after a failure, which try to write. Yields their errors."""
    heard: list[Exception] = []

    def knock(over: threading.Event) -> None:
        while not over.wait(0.003):
            sink = make()
            try:
                sink.apply(batch(item(1, "knocking", 2)))
            except Exception as error:
                heard.append(error)
            finally:
                sink.close()

    with beside(knock):
        yield heard


# It stops a server that others use at the same time.
@pytest.mark.alone
@pytest.mark.parametrize("kind", with_servers())
def test_a_job_waits_while_the_server_is_away_and_goes_on(kind: str, stack: Any, endpoints: Any, name: str) -> None:
    destination = KINDS[kind](endpoints)
    opened = destination.opened(name, 1, ITEMS)
    sink = opened.sink
    sink.apply(batch(item(1, "before", 1)))
    assert destination.server is not None
    stack.stop(destination.server)
    try:
        with pytest.raises(Unavailable):
            sink.apply(batch(item(1, "away", 2)))
        with pytest.raises(Unavailable):
            destination.opened(name, 1).generations.load_progress()
    finally:
        # A server that is coming back may say anything except that it holds nothing.
        with _knocking(lambda: destination.sink(name, 1)) as heard:
            stack.start(destination.server)
    assert {type(error) for error in heard} == {Unavailable}, heard[-3:]
    waits: list[Waiting] = []
    patient = patiently(opened, waits, lambda seconds: time.sleep(min(seconds, 0.5))).sink
    outcome = patient.apply(batch(item(1, "after", 3)))
    assert outcome.applied + outcome.stale == 1
    sink.prepare([ITEMS])
    sink.apply(batch(item(2, "new", 1)))
    assert rows_of(sink)["(2,)"] == "new"
    sink.close()
