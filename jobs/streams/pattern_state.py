"""What Spark keeps of each key for a pattern, and when it is looked at. It runs in Spark's tasks."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import Row

from jobs.executor.pattern_matching import Attempts, Event, Kept, Pattern, advance, from_text, to_text

INPUT: Final = ("at_us", "tie", "steps", "values")
"""The columns of an event beside its key, as those of ``Event``."""

KEY: Final = "per"
"""The column by which events are grouped, a text."""

OUTPUT: Final = f"`{KEY}` string, began_us bigint, ended_us bigint, events array<string>"
"""A match: its key, the times of its first and last event, and the values of its events."""

_EVENT: Final = "at_us bigint, tie string, steps bigint, event_values string"
_US_PER_MS: Final = 1_000


class PatternState(StatefulProcessor):
    """Keeps a key's events until the watermark has passed them, and then looks for matches.

    There is one timer for each key, at the first time at which there is something to do. Spark has the events of a
    batch that the batch's own watermark has passed already, and no earlier ones come after that.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark's call before the others, in each task."""
        self._handle = handle
        self._events = handle.getListState("events", _EVENT)
        self._attempts = handle.getValueState("attempts", "attempts string")
        self._timer = handle.getValueState("timer", "at_ms bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Keep a key's events of this batch, all of which are here. Tell its matches if any event counts by now."""
        events = [Event(*(getattr(row, name) for name in INPUT)) for row in rows]
        watermark_us = timerValues.getCurrentWatermarkInMs() * _US_PER_MS
        first_us = min(event.at_us for event in events)
        if first_us <= watermark_us:
            return self._look(key, events, watermark_us)
        self._events.appendList([_row(event) for event in events])
        known_ms = self._timer_ms()
        if known_ms is None or first_us < known_ms * _US_PER_MS:
            self._set_timer(known_ms, first_us)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Tell the matches of a key that are final by now."""
        # Spark removes the timer after this, and logs the key where it isn't there any more.
        self._timer.clear()
        return self._look(key, (), timerValues.getCurrentWatermarkInMs() * _US_PER_MS)

    def close(self) -> None:
        """Nothing is open."""

    def _look(self, key: Any, new: Sequence[Event], watermark_us: int) -> Iterator[Row]:
        """The matches of a key that are final, and what is kept for the next ones. At once: Spark changes keys."""
        events = (*(Event(*row) for row in self._events.get()), *new)
        attempts = self._attempts.get()
        kept = Kept(events, Attempts() if attempts is None else from_text(attempts[0]))
        matches, kept = advance(self._pattern, kept, until_us=watermark_us)
        self._events.clear()
        if kept.events:
            self._events.put([_row(event) for event in kept.events])
        self._attempts.clear()
        if kept.attempts:
            self._attempts.update((to_text(kept.attempts),))
        self._set_timer(self._timer_ms(), kept.next_us(self._pattern))
        return iter([_match(key[0], match) for match in matches])

    def _timer_ms(self) -> int | None:
        known = self._timer.get()
        return None if known is None else int(known[0])

    def _set_timer(self, known_ms: int | None, at_us: int | None) -> None:
        """Have the key's one timer at this time instead, or none."""
        if known_ms is not None:
            self._handle.deleteTimer(known_ms)
        if at_us is None:
            self._timer.clear()
            return
        at_ms = -(-at_us // _US_PER_MS)
        self._handle.registerTimer(at_ms)
        self._timer.update((at_ms,))


def _row(event: Event) -> tuple[int, str, int, str]:
    return event.at_us, event.tie, event.steps, event.values


def _match(key: str, events: Sequence[Event]) -> Row:
    first, last = events[0], events[-1]
    values = [event.values for event in events]
    return Row(**{KEY: key, "began_us": first.at_us, "ended_us": last.at_us, "events": values})
