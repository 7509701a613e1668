"""A destination whose queries find what was applied only after a refresh."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Refreshes:
    """``counts``: how often each part was refreshed.

    ``waiting`` are the parts in which something was written that no query finds yet.
    """

    counts: Mapping[str, int]
    waiting: Collection[str]


class Refreshing(Protocol):
    """Without it, queries find at once what was applied. Raises ``Unavailable`` and ``LockstepError``."""

    def refresh(self) -> None:
        """Called when somebody waits for a position: queries find from now on what was applied before."""
        ...

    def refreshes(self) -> Refreshes:
        """Called at each look at the live generation's lag, after its progress was read."""
        ...
