"""Several batches as one step: readers see all of it at once, whatever its tables, or nothing."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class WholeSteps(Protocol):
    """Without it, the settings of a sink refuse ``consistent``. Raises ``Unavailable`` and ``LockstepError``."""

    def step(self) -> AbstractContextManager[None]:
        """Called for each step. What the sink and its records do inside is durable when it has ended.

        Whatever is raised inside takes all of it back. Then the sink is to be closed: nothing in it is repeated.
        """
        ...

    def newest_tag(self) -> str:
        """Called when a job begins: the greatest tag of all rows, also of deleted ones; "" where there are none."""
        ...

    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        """Called inside a step: the greatest next offsets of batches, as stored with their rows. Those of its own too.

        By topic and partition.
        """
        ...
