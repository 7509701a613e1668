"""The idle wait of a query that has applied all that was published. Asking the brokers five times a second for the end
of every partition takes a quarter of a core with thousands of partitions. Capture publishes a progress record with
everything it publishes, so one partition is enough to watch."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import LockstepError

_PARTITIONS_PER_S: Final = 200
_LOOK_MIN_S: Final = 1.0
_LOOK_MAX_S: Final = 30.0

_SLICE_S: Final = 0.2
"""How soon the wait notices that it is over, if nothing wakes it."""

_SILENT_S: Final = 1.0
"""How long to wait after brokers didn't answer."""


def look_every_s(partitions: int) -> float:
    """How often, in seconds, an idle query looks at the ends of so many partitions itself. Pure. It must: rows of a
    first copy, and what others write, come without progress records."""
    return min(max(partitions / _PARTITIONS_PER_S, _LOOK_MIN_S), _LOOK_MAX_S)


@dataclass(frozen=True, slots=True)
class IdleWait:
    """What a query calls while it is idle. ``is_behind`` says whether a known progress record isn't applied yet.
    ``wait`` waits at most so many seconds, and less if ``is_behind`` or ``is_over`` may have changed. ``has_more`` asks
    the topics themselves; that costs more, so it is called every ``look_s`` only. It may raise LockstepError."""

    wait: Callable[[float], object]
    is_behind: Callable[[], bool]
    has_more: Callable[[], bool]
    look_s: float
    is_over: Callable[[], bool]
    monotonic_s: Callable[[], float] = time.monotonic

    def until_news(self, *, look_now: bool = False) -> None:
        """Return when there is something to read, or ``is_over``. Brokers that don't answer are asked again.
        ``look_now``: call ``has_more`` at once."""
        look_at = self.monotonic_s() + (0 if look_now else self.look_s)
        while not self.is_over() and not self.is_behind():
            now = self.monotonic_s()
            if now >= look_at:
                look_at = now + self.look_s
                try:
                    if self.has_more():
                        return
                except LockstepError:  # the thread that follows the watermark reports it
                    look_at = now + _SILENT_S
            self.wait(_SLICE_S)
