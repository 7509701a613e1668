"""What becomes of what a task reads: the loop (``jobs.executor.follow``) hands it over."""

from collections.abc import Sequence
from typing import Protocol

from jobs.executor.log_reader import Polled, Range


class Applier(Protocol):
    """``begin`` is called once. After each poll ``take`` is, and then the others in this order."""

    def begin(self) -> Sequence[Range]:
        """What to follow, in all partitions; nothing where the batch is over already."""
        ...

    def take(self, polled: Polled) -> None:
        """Take in what has come. Often that is nothing."""
        ...

    def needs_driver(self) -> bool:
        """Whether the batch has to end now, since the driver has to do more than to be told."""
        ...

    def report(self, now_s: float) -> None:
        """Tell the driver how far this is, if that is due."""
        ...

    def is_at_end(self, now_s: float) -> bool:
        """Whether a batch that ends with the log is done."""
        ...

    @property
    def ending_fetch_wait_ms(self) -> int:
        """In such a batch: for how long the broker keeps a request without records. What is kept at its end holds up
        the next batch. Until then it may have to wait for a progress record."""
        return 20

    @property
    def rest_s(self) -> float:
        """In a batch that goes on: how long to wait before the next poll, so that more comes at once."""
        return 0.0

    @property
    def may_end(self) -> bool:
        """Whether the driver's word ends such a batch now: what the driver has planned is applied."""
        return True

    def end(self) -> None:
        """Complete the result. Called once, unless something has failed."""
        return
