"""Limits how many rows per second are copied or applied. Pure: the clock is an argument."""

from collections.abc import Callable


class RowRate:
    """A limit of rows per second; 0: none. Unused allowance is lost, so there is no burst after a pause."""

    def __init__(self, rows_per_s: float, clock: Callable[[], float]) -> None:
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._free_at_s = clock()

    def taken(self, rows: int) -> None:
        if self._rows_per_s:
            self._free_at_s = max(self._free_at_s, self._clock()) + rows / self._rows_per_s

    def wait_s(self) -> float:
        """How long to wait before the next row may be copied; 0 or less: none."""
        return self._free_at_s - self._clock() if self._rows_per_s else 0.0
