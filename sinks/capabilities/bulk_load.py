"""The destination's fastest way to load a generation that nobody reads."""

from typing import Protocol


class BulkLoad(Protocol):
    """Without it, a rebuild loads by ``Sink.apply`` as any job does. Raises ``Unavailable`` and ``LockstepError``."""

    def begin_bulk(self) -> None:
        """Called by a rebuild's job, after ``prepare`` and before the first event. Idempotent.

        Until ``end_bulk`` nobody reads this generation, even after this object and this process have ended. Applying
        stays safe to repeat. ``scan`` and ``rows`` are right only after ``end_bulk``.
        """
        ...

    def end_bulk(self) -> None:
        """Called before the switch: make the generation fit to be read. Idempotent; harmless if no bulk load began."""
        ...
