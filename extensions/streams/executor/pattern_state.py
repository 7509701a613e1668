"""Spark's state of each key for a pattern, and its timers. It runs in Spark's tasks."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import Row

from extensions.streams.executor.pattern_matching import (
    Attempts,
    Event,
    Kept,
    Pattern,
    advance,
    from_text,
    to_text,
)

INPUT: Final = ("at_us", "tie", "steps", "values")
"""The columns of an event beside its key, as in ``Event``."""

KEY: Final = "per"
"""The column by which events are grouped, a text."""

OUTPUT: Final = f"`{KEY}` string, began_us bigint, ended_us bigint, events array<string>"
"""A match: its key, the times of its first and last event, and the values of its events."""

_EVENT: Final = "at_us bigint, tie string, steps bigint, event_values string"
_US_PER_MS: Final = 1_000
_TOLD: Final = re.compile(r"TooManyEvents: one key would have more than (\d+) events")


EVENTS_MAX: Final = 100_000
"""For one key: some tens of MB in a task, which reads and writes them all in each batch."""


class TooManyEvents(Exception):
    """A pattern would store more events of one key than allowed. Of this error, Spark passes on only the text."""

    def __init__(self, events_max: int) -> None:
        super().__init__(f"one key would have more than {events_max} events")


def too_many_events(text: str) -> int | None:
    """The limit that a pattern has exceeded, if Spark's message says so, else None. Pure."""
    found = _TOLD.search(text)
    return None if found is None else int(found[1])


class PatternState(StatefulProcessor):
    """Stores a key's events until the watermark has passed them, and then looks for matches.

    Each key has one timer, at the first time at which there is something to do. The events of a batch may already be
    passed by the batch's own watermark; no earlier events come after that.

    At most ``events_max`` events of a key are stored and processed. Methods raise TooManyEvents if there are more: they
    would fill a task's memory, and each batch reads and writes them all.
    """

    def __init__(self, pattern: Pattern, events_max: int) -> None:
        self._pattern = pattern
        self._events_max = events_max

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the others, in each task."""
        self._handle = handle
        self._events = handle.getListState("events", _EVENT)
        self._attempts = handle.getValueState("attempts", "attempts string")
        self._known = handle.getValueState("known", "timer_ms bigint, events bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Store a key's events of this batch, all in ``rows``. Returns matches if the watermark has passed any."""
        events = [Event(*(getattr(row, name) for name in INPUT)) for row in rows]
        watermark_us = timerValues.getCurrentWatermarkInMs() * _US_PER_MS
        first_us = min(event.at_us for event in events)
        timer_ms, count = self._known.get() or (None, 0)
        count += len(events)
        if count > self._events_max:
            raise TooManyEvents(self._events_max)
        if first_us <= watermark_us:
            return self._look(key, events, watermark_us, timer_ms)
        self._events.appendList([_row(event) for event in events])
        self._set_timer(timer_ms, first_us if timer_ms is None else min(first_us, timer_ms * _US_PER_MS), count)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Return the matches of a key that are final now."""
        # Spark removes the timer after this, and logs the key if the timer is gone already.
        return self._look(key, (), timerValues.getCurrentWatermarkInMs() * _US_PER_MS, None)

    def close(self) -> None: ...

    def _look(self, key: Any, new: Sequence[Event], watermark_us: int, timer_ms: int | None) -> Iterator[Row]:
        """Return the final matches of a key, and store the rest. Not lazily, since Spark changes keys."""
        events = (*(Event(*row) for row in self._events.get()), *new)
        attempts = self._attempts.get()
        kept = Kept(events, Attempts() if attempts is None else from_text(attempts[0]))
        matches, kept = advance(self._pattern, kept, until_us=watermark_us)
        self._events.clear()
        if kept.events:
            self._events.put([_row(event) for event in kept.events])
        self._attempts.clear()
        count = len(kept.events)
        if kept.attempts:
            text, tried = to_text(kept.attempts)
            self._attempts.update((text,))
            count += tried
        self._set_timer(timer_ms, kept.next_us(self._pattern), count)
        return iter([_match(key[0], match) for match in matches])

    def _set_timer(self, known_ms: int | None, at_us: int | None, count: int) -> None:
        """Move the key's only timer to this time, or remove it, and store it with the number of events."""
        at_ms = None if at_us is None else -(-at_us // _US_PER_MS)
        if known_ms is not None and known_ms != at_ms:
            self._handle.deleteTimer(known_ms)
        if at_ms is None:
            self._known.clear()
            return
        if at_ms != known_ms:
            self._handle.registerTimer(at_ms)
        self._known.update((at_ms, count))


def _row(event: Event) -> tuple[int, str, int, str]:
    return event.at_us, event.tie, event.steps, event.values


def _match(key: str, events: Sequence[Event]) -> Row:
    first, last = events[0], events[-1]
    values = [event.values for event in events]
    return Row(**{KEY: key, "began_us": first.at_us, "ended_us": last.at_us, "events": values})
