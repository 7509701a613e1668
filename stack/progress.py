"""Whether a server that starts gets on: a start ends by lack of progress, not after so many seconds.

A start on a machine that is ten times as busy takes ten times as long. What tells a slow one from one that hangs is
whether it writes to its log, or uses the processor.
"""

from collections import deque
from dataclasses import dataclass

QUIET_SECONDS = 120.0
"""A server that has done nothing for so long hangs. A paging machine may keep a process waiting for a minute."""

WORKING_SHARE = 0.02
"""The processor time of a server that starts, in all of that time: a share of 5 to 10 % was measured at a load of 25 on
two cores. A JVM that has nothing to do uses up to 1 %."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a server has done since it began: bytes of its log, and seconds of processor time."""

    log_bytes: int
    cpu_seconds: float


class Progress:
    """Is given one look after the other, at times of a clock that only goes on."""

    def __init__(self, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet_seconds = quiet_seconds
        self._looks: deque[tuple[float, Effort]] = deque()
        self._log_bytes: int | None = None
        self._written_at = 0.0

    def is_stuck(self, at: float, effort: Effort) -> bool:
        """Whether the server has done nothing worth mentioning for the whole of the last ``quiet_seconds``."""
        if self._log_bytes != effort.log_bytes:
            self._log_bytes, self._written_at = effort.log_bytes, at
        # Looks come many times a second, and a few are enough.
        if not self._looks or at - self._looks[-1][0] >= self._quiet_seconds / 100:
            self._looks.append((at, effort))
        while len(self._looks) > 1 and at - self._looks[1][0] >= self._quiet_seconds:
            self._looks.popleft()
        first_at, first = self._looks[0]
        if at - self._written_at < self._quiet_seconds or at - first_at < self._quiet_seconds:
            return False
        return effort.cpu_seconds - first.cpu_seconds <= WORKING_SHARE * (at - first_at)
