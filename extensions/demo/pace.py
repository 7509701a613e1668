"""The rate of the demo's writes: as fast as this machine follows. Pure: lag and time are arguments."""

from typing import Final

FOLLOWS_S: Final = 3.0
"""Sinks follow if they are at most this many seconds behind."""

_STEPS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, *(50.0 * 2.0**doubled for doubled in range(12)))
_FIRST: Final = 10.0
_SETTLES_S: Final = 8.0
"""How long a rate stays at least: sinks need seconds to show its effect."""
_AGAIN_S: Final = 60.0
"""How long a rate that was too high isn't tried again: a machine at its limit makes a poor demo."""


class TrafficPace:
    """Transactions a second: rising up to ``most`` while all sinks follow, falling while they don't."""

    def __init__(self, most: float, *, now_s: float) -> None:
        self._steps = [*(step for step in _STEPS if step < most), most]
        self._first = self._at = max((at for at, step in enumerate(self._steps) if step <= _FIRST), default=0)
        self._since_s = now_s
        self._too_much, self._again_s = len(self._steps), now_s
        self._is_falling = False

    @property
    def rate(self) -> float:
        return self._steps[self._at]

    @property
    def most(self) -> float:
        return self._steps[-1]

    def look(self, behind_s: float | None, *, now_s: float, is_building: bool = False) -> bool:
        """Take in how many seconds the slowest sink is behind, None while a sink hasn't begun. Returns whether the rate
        has changed. While a sink is rebuilt the rate stays at its first value or below: both take processor time.
        """
        if is_building and self._at > self._first:
            self._at, self._since_s = self._first, now_s
            return True
        if behind_s is None or now_s - self._since_s < _SETTLES_S:
            return False
        follows = behind_s <= FOLLOWS_S
        at = self._at + (1 if follows else -1)
        most = self._first if is_building else len(self._steps) - 1
        if not 0 <= at <= most or (follows and at >= self._too_much and now_s < self._again_s):
            return False
        if not (follows or self._is_falling or is_building):  # later falls work off the first one's excess
            self._too_much, self._again_s = self._at, now_s + _AGAIN_S
        self._at, self._since_s, self._is_falling = at, now_s, not follows
        return True
