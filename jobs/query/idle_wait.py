"""Between two batches of a query that has applied all that was published: it rests until there is something new.

To ask the brokers five times a second where every partition ends takes a quarter of a core with thousands of them.
Capture publishes a progress record with what it publishes, so one partition tells of all.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import LockstepError

_PARTITIONS_PER_S: Final = 200
_LOOK_MIN_S: Final = 1.0
_LOOK_MAX_S: Final = 30.0

_SLICE_S: Final = 0.2
"""How soon a rest ends that is to end, where nobody wakes it."""

_SILENT_S: Final = 1.0
"""How long a rest waits after brokers that didn't answer."""


def look_every_s(partitions: int) -> float:
    """How often a resting query looks itself where so many partitions end. Pure.

    The rows of a first copy come without progress records, and so does what others write.
    """
    return min(max(partitions / _PARTITIONS_PER_S, _LOOK_MIN_S), _LOOK_MAX_S)


@dataclass(frozen=True, slots=True)
class Rest:
    """What a query asks while it rests.

    ``is_behind`` says whether a progress record is known that isn't applied yet. ``wait`` waits for at most so many
    seconds, and less where ``is_behind`` or ``is_over`` may say something else. ``has_more`` asks the topics themselves
    every ``look_s``, since that costs more. It may raise LockstepError.
    """

    wait: Callable[[float], object]
    is_behind: Callable[[], bool]
    has_more: Callable[[], bool]
    look_s: float
    is_over: Callable[[], bool]
    monotonic_s: Callable[[], float] = time.monotonic

    def until_news(self, *, look_now: bool = False) -> None:
        """Return when something is to be read, or ``is_over``. Brokers that don't answer are asked again.

        ``look_now``: ask ``has_more`` at once.
        """
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
