"""How often to repeat something, given its cost. Pure: each duration comes in as an argument. A quick server is asked
again soon, so that nobody waits. A slow one gets fewer and larger requests."""

import collections
import statistics
from typing import Final

_TIMES: Final = 7
"""The pace follows the median of the last seven durations: up to three outliers don't change it, four do."""


class Pace:
    """The time between the starts of two runs, unless something else asks for one."""

    def __init__(self, *, times_as_long: float, fastest_s: float, slowest_s: float, free_s: float = 0.0) -> None:
        """The interval is ``times_as_long`` as a run takes beyond ``free_s``, within the two bounds."""
        self._times_as_long = times_as_long
        self._free_s = free_s
        self._fastest_s = fastest_s
        self._slowest_s = slowest_s
        self._took_s: collections.deque[float] = collections.deque(maxlen=_TIMES)
        self.interval_s = fastest_s
        """In seconds, from ``fastest_s`` to ``slowest_s``."""

    def took(self, seconds: float) -> None:
        self._took_s.append(seconds)
        usual_s = statistics.median_low(self._took_s)
        self.interval_s = min(max(self._times_as_long * (usual_s - self._free_s), self._fastest_s), self._slowest_s)
