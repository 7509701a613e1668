"""Loading a generation that nobody reads with what the destination does fastest."""

from typing import Protocol


class BulkLoad(Protocol):
    """Without it, a rebuild loads by ``Sink.apply`` like any job. Raises ``Unavailable`` and ``LockstepError``."""

    def begin_bulk(self) -> None:
        """Called by a rebuild's job, after ``prepare`` and before the first event. Idempotent.

        Until ``end_bulk`` nobody reads this generation; that lasts beyond this object and this process. Applying stays
        safe to repeat; ``scan`` and ``rows`` tell the truth only after ``end_bulk``.
        """
        ...

    def end_bulk(self) -> None:
        """Called before the switch: make the generation fit to be read.

        Idempotent, and harmless where bulk wasn't begun.
        """
        ...
