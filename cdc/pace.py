"""How often something is done, by what it costs. Pure: how long each time took comes in as an argument.

A server that is quick is asked soon after the last time, so that nobody waits. One that is out of breath gets fewer and
larger requests.
"""

import collections
import statistics
from typing import Final

_TIMES: Final = 7
"""The pace is that of the median of so many times: up to three that are much slower or quicker don't change it, and
four do."""


class Pace:
    """The time between the beginnings of two times, as long as nothing else asks for one."""

    def __init__(self, *, times_as_long: float, fastest_s: float, slowest_s: float, free_s: float = 0.0) -> None:
        """The interval is ``times_as_long`` as what one takes beyond ``free_s``, within the two bounds."""
        self._times_as_long = times_as_long
        self._free_s = free_s
        self._fastest_s = fastest_s
        self._slowest_s = slowest_s
        self._took_s: collections.deque[float] = collections.deque(maxlen=_TIMES)
        self.interval_s = fastest_s
        """In seconds, from ``fastest_s`` to ``slowest_s``."""

    def took(self, seconds: float) -> None:
        """Take in how long the last time took."""
        self._took_s.append(seconds)
        usual_s = statistics.median_low(self._took_s)
        self.interval_s = min(max(self._times_as_long * (usual_s - self._free_s), self._fastest_s), self._slowest_s)
