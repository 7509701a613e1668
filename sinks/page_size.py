"""How many rows are asked for at once, so that an answer is about so many bytes, however wide the rows are (pure)."""

from typing import Final

_FIRST_ROWS: Final = 16
_BYTES_WANTED: Final = 4 * 1024 * 1024
"""Enough that a request's round trip doesn't count."""


class PageSize:
    """The number of ``rows`` to ask for next: it follows the size of those that came, and at most doubles at a time.

    So one page at most is larger than wanted where wide rows follow narrow ones.
    """

    def __init__(self, most: int) -> None:
        self.rows = min(most, _FIRST_ROWS)
        self._most = most

    def learn(self, rows: int, size: int) -> None:
        """So many rows had this size in bytes. Fewer than asked for tell less, and make the next page no larger."""
        if not rows:
            return
        fitting = _BYTES_WANTED * rows // max(1, size)
        self.rows = max(1, min(self._most, fitting, 2 * self.rows if rows >= self.rows else self.rows))
