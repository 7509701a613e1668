"""What `lockstep lag --watch` writes without a terminal: a line for each change of state, and one each minute. Pure.
Changes between ``current`` and ``behind`` are normal and get no line: the line of each minute has the figures."""

import math
from collections.abc import Iterator
from typing import Final

from cdc.model.times import time_text
from monitor.lag import LagReport, Stage, StageState
from monitor.lag_table import remarks
from monitor.units import readable_bytes

_SUMMARY_EVERY_S: Final = 60.0

_IN_ORDER: Final = (StageState.CURRENT, StageState.BEHIND)


class WatchLines:
    """Takes one look after the other. At the first, whatever isn't in order counts as a change."""

    def __init__(self) -> None:
        self._states: dict[str, StageState] = {}
        self._remarks: set[str] = set()
        self._summary_at_s = -math.inf

    def lines(self, lag: LagReport, *, at_s: float, now_ms: int) -> list[str]:
        """What is new, each line with its time. ``at_s`` is on a monotonic clock."""
        new = [*self._changed(lag), *self._remarked(lag)]
        if at_s - self._summary_at_s >= _SUMMARY_EVERY_S:
            self._summary_at_s = at_s
            new.insert(0, _summary(lag))
        return [f"{time_text(now_ms)} {'; '.join(map(str.strip, line.splitlines()))}" for line in new]

    def _changed(self, lag: LagReport) -> Iterator[str]:
        states = {stage.name: stage.state for stage in lag.stages}
        before, self._states = self._states, states
        for stage in lag.stages:
            was = before.get(stage.name, StageState.CURRENT)
            if stage.of_sink is not None and stage.reason is None and stage.state not in _IN_ORDER:
                continue  # the applied stage is so too, and says why
            if stage.state is not was and not (stage.state in _IN_ORDER and was in _IN_ORDER):
                yield stage.sentence

    def _remarked(self, lag: LagReport) -> Iterator[str]:
        """Sentences that are new since the last look, about other things than a stage's state."""
        now = {remark.about: remark.sentence for remark in remarks(lag) if remark.about and remark.style != "dim"}
        before, self._remarks = self._remarks, set(now)
        yield from (sentence for about, sentence in now.items() if about not in before)
        yield from (f"over: {about}" for about in sorted(before - set(now)))


def _summary(lag: LagReport) -> str:
    retained = [] if lag.retained_bytes is None else [f"the slot retains {readable_bytes(lag.retained_bytes)} of WAL"]
    return "; ".join([*map(_figures, lag.stages[1:]), *retained]) or "nothing is known yet"


def _figures(stage: Stage) -> str:
    figures = [
        "" if stage.seconds_behind is None else f"{stage.seconds_behind:.1f} s behind",
        "" if not stage.events_behind else f"{stage.events_behind:,} events",
        "" if not stage.bytes_behind else readable_bytes(stage.bytes_behind),
    ]
    return f"{stage.name} {stage.state.value} {', '.join(filter(None, figures))}"
