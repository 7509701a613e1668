"""What is kept of keys for a pattern, in the state that PySpark has for tests."""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import Row

from extensions.streams.executor.pattern_matching import Event, Kept, Pattern, Stage, advance
from extensions.streams.executor.pattern_state import INPUT, PatternState, TooManyEvents, too_many_events
from extensions.streams.jobs.resume import PATTERN_STATE_FORM

PATTERN = Pattern((Stage(0, without=1 << 2), Stage(1)), 5_000)


def test_what_tasks_import_for_the_state_is_there() -> None:
    """PySpark imports it in a task alone, and its protobuf is a package that it doesn't ask for."""
    for name in ("stateful_processor_api_client", "value_state_client", "list_state_client"):
        import_module(f"pyspark.sql.streaming.{name}")
    import_module("pyspark.sql.streaming.proto.StateMessage_pb2")


def test_variables_change_with_the_number_of_their_form() -> None:
    """A checkpoint with others is refused by that number alone."""
    known = list[tuple[str, str]]()

    def take(name: str, schema: str) -> None:
        known.append((name, schema))

    handle: Any = SimpleNamespace(getListState=take, getValueState=take)
    PatternState(PATTERN, 1).init(handle)
    assert (PATTERN_STATE_FORM, known) == (
        2,
        [
            ("events", "at_us bigint, tie string, steps bigint, event_values string"),
            ("attempts", "attempts string"),
            ("known", "timer_ms bigint, events bigint"),
        ],
    )


class States:
    """Keys of a pattern, batch by batch as Spark does them."""

    def __init__(self, pattern: Pattern, events_max: int = 1_000) -> None:
        state = PatternState(pattern, events_max)
        self._tester = TwsTester(state, timeMode="EventTime", eventTimeExtractor=lambda row: row.at_us)
        self._tester._eventTimeExtractor = None  # what is late is dropped before, by the watermark before
        timers: Any = self._tester.handle._timers
        delete = timers.deleteTimer

        def delete_known(key: object, at_ms: int) -> None:
            """As Spark does, which logs the key's values where there is no such timer."""
            assert at_ms in timers.listTimers(key), "a timer is deleted twice"
            delete(key, at_ms)

        timers.deleteTimer = delete_known

    def batch(self, events: Mapping[str, list[Event]], watermark_ms: int) -> list[tuple[str, list[str]]]:
        """The matches of a batch, whose watermark this is."""
        self._tester._currentWatermarkMs = watermark_ms
        self._tester.handle.setWatermark(watermark_ms)
        rows = []
        for key, own in events.items():
            inputs = [Row(**dict(zip(INPUT, (e.at_us, e.tie, e.steps, e.values), strict=True))) for e in own]
            rows += self._tester.test(key, inputs)
        rows += self._tester._handleExpiredTimers()
        return [(row.per, list(row.events)) for row in rows]

    @property
    def timers(self) -> dict[str, list[int]]:
        handle = self._tester.handle
        return {key: list(handle._timers.listTimers(key)) for key in handle._timers.getAllKeysWithTimers()}

    @property
    def kept(self) -> int:
        handle = self._tester.handle
        states = [*handle.value_states.values(), *handle.list_states.values()]
        return sum(len(state.state) for state in states)


def event(at_us: int, steps: int, number: int = 0) -> Event:
    return Event(at_us, f"{number:03}", steps, f"{at_us}.{number}")


def test_keys_have_matches_of_their_own() -> None:
    states = States(PATTERN)
    assert states.batch({"a": [event(2_000, 2), event(1_000, 1)], "b": [event(1_500, 1)]}, 0) == []
    assert states.timers == {"a": [1], "b": [2]}
    assert states.batch({}, 2) == [("a", ["1000.0", "2000.0"])]
    assert states.batch({"b": [event(3_000, 2)]}, 3) == [("b", ["1500.0", "3000.0"])]


def test_a_key_has_one_timer_and_at_its_end_nothing() -> None:
    states = States(PATTERN)
    states.batch({"a": [event(3_000, 1)]}, 0)
    assert states.timers == {"a": [3]}
    states.batch({"a": [event(1_200, 1), event(9_000, 4)]}, 0)
    assert states.timers == {"a": [2]}
    states.batch({}, 4)
    assert states.timers == {"a": [7]}, "when the attempt of 1200 ends"
    states.batch({}, 20)
    assert (states.timers, states.kept) == ({}, 0)


@pytest.mark.parametrize("watermark_ms", [0, 2])
def test_a_key_with_more_events_than_may_be_kept_stops_it_and_is_not_named(watermark_ms: int) -> None:
    """Whether they wait for the watermark, or for what may follow them."""
    states = States(PATTERN, events_max=4)
    assert states.batch({"tell-nobody": [event(1_000, 1), event(1_200, 1)], "b": [event(1_100, 1)]}, watermark_ms) == []
    assert states.batch({"tell-nobody": [event(2_500, 1), event(2_600, 1)]}, watermark_ms) == []
    with pytest.raises(TooManyEvents) as error:
        states.batch({"tell-nobody": [event(2_700, 1)]}, watermark_ms)
    assert str(error.value) == "one key would have more than 4 events"
    told = f"[PYTHON] Traceback ...\n  extensions.streams.executor.pattern_state.TooManyEvents: {error.value}\n"
    assert too_many_events(told) == 4
    assert too_many_events("ValueError: one key") is None


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9_000), st.sampled_from([1, 2, 4])), max_size=6)),
    st.data(),
)
def test_what_is_told_batch_by_batch_is_what_all_events_have(
    found: list[list[tuple[str, int, int]]], data: st.DataObject
) -> None:
    states, told, all_events = States(PATTERN), list[tuple[str, list[str]]](), dict[str, list[Event]]()
    before_ms = watermark_ms = 0
    for number, batch in enumerate(found):
        events: dict[str, list[Event]] = {}
        for place, (key, after_us, steps) in enumerate(batch):
            events.setdefault(key, []).append(event(before_ms * 1_000 + after_us, steps, 10 * number + place))
        for key, own in events.items():
            all_events.setdefault(key, []).extend(own)
        told += states.batch(events, watermark_ms)
        assert all(len(timers) == 1 for timers in states.timers.values())
        # As Spark: what is late is decided by the watermark of the batch before.
        before_ms, watermark_ms = watermark_ms, watermark_ms + data.draw(st.integers(0, 9))
    told += states.batch({}, 1_000_000)
    expected = []
    for key, own in all_events.items():
        matches, _ = advance(PATTERN, Kept(tuple(own)), until_us=1_000_000_000)
        expected += [(key, [each.values for each in match]) for match in matches]
    assert sorted(told) == sorted(expected)
    assert (states.timers, states.kept) == ({}, 0)
