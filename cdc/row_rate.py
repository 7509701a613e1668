"""How many rows a second are copied or applied at most. Pure: the clock is an argument."""

from collections.abc import Callable


class RowRate:
    """A limit of rows a second; 0: none. What wasn't used is lost, so there is no burst after a pause."""

    def __init__(self, rows_per_s: float, clock: Callable[[], float]) -> None:
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._free_at_s = clock()

    def taken(self, rows: int) -> None:
        """So many rows were copied."""
        if self._rows_per_s:
            self._free_at_s = max(self._free_at_s, self._clock()) + rows / self._rows_per_s

    def wait_s(self) -> float:
        """How long no further row may be copied; 0 or less: they may."""
        return self._free_at_s - self._clock() if self._rows_per_s else 0.0
