"""How many rows to request at once, so that an answer has about the same size however wide the rows are (pure)."""

from typing import Final

_FIRST_ROWS: Final = 16
_BYTES_WANTED: Final = 4 * 1024 * 1024
"""Enough to make a request's round trip negligible."""


class PageSize:
    """The number of ``rows`` to request next, by the size of earlier ones. It at most doubles at a time.

    So at most one page is larger than wanted when wide rows follow narrow ones.
    """

    def __init__(self, most: int) -> None:
        self.rows = min(most, _FIRST_ROWS)
        self._most = most

    def learn(self, rows: int, size: int) -> None:
        """Report that this many rows had this size in bytes. Fewer than requested never enlarge the next page."""
        if not rows:
            return
        fitting = _BYTES_WANTED * rows // max(1, size)
        self.rows = max(1, min(self._most, fitting, 2 * self.rows if rows >= self.rows else self.rows))
