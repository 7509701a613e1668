"""When a task that applies whole transactions takes the next cut, and when a batch that ends with the log is done."""

import time
from typing import Final

from jobs.executor.result import Result
from jobs.executor.view_log import Cut, ViewLog

MARKERS_S: Final = 0.5
"""How long the position waits before it moves past transaction markers that nothing follows."""

RECORD_S: Final = 5.0
"""How long a batch that is to end waits for the progress record of what it has read."""


class NextCut:
    """Which cut of a log is taken next. ``is_long``: the batch goes on with what comes."""

    def __init__(self, log: ViewLog, *, is_long: bool) -> None:
        self._log = log
        self._is_long = is_long
        self._last: Cut | None = None
        self._moved_s = time.monotonic()

    def find(self, now_s: float, *, waits: bool) -> Cut | None:
        """The newest cut. If there is none and nothing ``waits``, the last one again after ``MARKERS_S``: the markers
        of its transactions come after the last events."""
        if (cut := self._log.cut()) is not None:
            self._last = cut
            return cut
        return self._last if not waits and now_s - self._moved_s > MARKERS_S else None

    def is_due(self, now_s: float) -> bool:
        """Whether to store a position without new events. Not at once: each transaction has a marker."""
        return not self._is_long or now_s - self._moved_s > MARKERS_S

    def was_taken(self, now_s: float) -> None:
        """The position is now that of the found cut."""
        self._moved_s = now_s


class LogEnd:
    """Whether a batch that doesn't go on is done."""

    def __init__(self, log: ViewLog, result: Result) -> None:
        self._log = log
        self._result = result
        self._since_s: float | None = None

    def is_reached(self, now_s: float, *, is_taken_in: bool) -> bool:
        """Whether the batch ends now. Adds to the result if the progress record didn't come."""
        if self._log.is_behind:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if is_taken_in:
            return True
        self._result.lacks_record = now_s - self._since_s > RECORD_S
        self._result.awaits_copy = self._result.lacks_record and self._log.awaits_copy
        return self._result.lacks_record
