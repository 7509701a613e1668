"""Where the task's loop (``jobs.executor.follow``) hands over what it reads."""

from collections.abc import Sequence
from typing import Protocol

from jobs.executor.log_reader import Polled, Range


class Applier(Protocol):
    """Applies what a task reads. ``begin`` is called once; after each poll ``take``, then the others in this order."""

    def begin(self) -> Sequence[Range]:
        """The ranges to follow, in all partitions; empty if the batch is over already."""
        ...

    def take(self, polled: Polled) -> None:
        """Take what was polled, which is often nothing."""
        ...

    def needs_driver(self) -> bool:
        """Whether the batch must end now, because the driver must do more than take a report."""
        ...

    def report(self, now_s: float) -> None:
        """Report the position to the driver, if that is due."""
        ...

    def is_at_end(self, now_s: float) -> bool:
        """Whether a batch that ends with the log is done."""
        ...

    @property
    def ending_fetch_wait_ms(self) -> int:
        """In a batch that ends with the log: how long the broker holds a request without records. A request still held
        at the end delays the next batch. Until the end, the task may have to wait for a progress record."""
        return 20

    @property
    def rest_s(self) -> float:
        """In a batch that goes on: how long to wait before the next poll, so that more arrives at once."""
        return 0.0

    @property
    def may_end(self) -> bool:
        """Whether such a batch may end now on the driver's word: everything that the driver planned is applied."""
        return True

    def end(self) -> None:
        """Complete the result. Called once, unless something failed."""
        return
