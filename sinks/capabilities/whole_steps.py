"""Several batches as one step: readers see all of it at once, in all tables, or nothing."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class WholeSteps(Protocol):
    """Without it, the settings of a sink refuse ``consistent``. Raises ``Unavailable`` and ``LockstepError``."""

    def step(self) -> AbstractContextManager[None]:
        """Called for each step. Everything that the sink and its records do inside is durable when the step has ended.

        An exception inside takes everything back. The caller then closes the sink: nothing in a step is repeated.
        """
        ...

    def newest_tag(self) -> str:
        """Called when a job begins: the greatest tag of all rows, including deleted ones; "" if there are none."""
        ...

    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        """Called inside a step: the greatest next offsets stored with rows, this step's included."""
        ...
