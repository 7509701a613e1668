"""Decides whether a starting server makes progress: a start ends by lack of progress, not after a fixed time.

On a machine that is ten times as busy, a start takes ten times as long. A slow server, unlike a hanging one, writes to
its log or uses the processor.
"""

from collections import deque
from dataclasses import dataclass

QUIET_SECONDS = 120.0
"""A server that has done nothing for so long hangs. A paging machine may block a process for a minute."""

WORKING_SHARE = 0.02
"""The least share of a core of a starting server. Measured: 5 to 10 % at a load of 25 on two cores; idle JVM 1 %."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a server has done since it began: bytes of its log, and seconds of processor time."""

    log_bytes: int
    cpu_seconds: float


class Progress:
    """Gets one look after the other, at times of a monotonic clock."""

    def __init__(self, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet_seconds = quiet_seconds
        self._looks: deque[tuple[float, Effort]] = deque()
        self._log_bytes: int | None = None
        self._written_at = 0.0

    def is_stuck(self, at: float, effort: Effort) -> bool:
        """Whether the server has done almost nothing for the whole of the last ``quiet_seconds``."""
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
