"""A destination whose queries find applied rows only after a refresh."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Refreshes:
    counts: Mapping[str, int]
    """How often each part was refreshed."""
    waiting: Collection[str]
    """The parts with writes that no query finds yet."""


class Refreshing(Protocol):
    """Without it, queries find applied rows at once. Raises ``Unavailable`` and ``LockstepError``."""

    def refresh(self) -> None:
        """Called when somebody waits for a position: from now on, queries find what was applied before."""
        ...

    def refreshes(self) -> Refreshes:
        """Called at each look at the live generation's lag, after its progress was read."""
        ...
