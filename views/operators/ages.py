"""The rows of one table by the time in a column, oldest first, so that rows that age out are found without a scan. An
entry's key ends with the row's key in the table. A row without a time has no entry.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from views.operators.arrivals import Arrived
from views.operators.changes import PREFIX_LENGTH, RowChange, Work, prefix_of
from views.retention import Retained
from views.state.contract import Entry, Reading, Step
from views.values import Row

AGES: Final = b"a"
"""The beginning of these entries' keys."""

DUE_AT_ONCE: Final = 1_000
_SIGN: Final = 1 << 63
_TIME_BYTES: Final = 8


class Ages:
    """``place`` is the column's position in the table's rows, ``number`` the table's number."""

    def __init__(self, retained: Retained, place: int, number: int) -> None:
        self._retained = retained
        self._place = place
        self._prefix = prefix_of(AGES, number)

    def is_over(self, row: Row, time_ms: int) -> bool:
        """Whether a row no longer counts at this time of the view."""
        return self._retained.is_over(row[self._place], time_ms)

    def entry(self, row: Row, own: bytes) -> bytes | None:
        """The key of a row's entry; None for a row without a time. ``own`` is the row's key in the table."""
        value = row[self._place]
        return None if value is None else self._prefix + self._encoded(value) + own  # type: ignore[arg-type]  # an int

    def arrived(self, entries: Sequence[Entry], rows: Sequence[Row], time_ms: int) -> Arrived:
        """The rows that count at this time of the view, with their entries, whose keys begin as the table's own do."""
        counting = [pair for pair in zip(entries, rows, strict=True) if not self.is_over(pair[1], time_ms)]
        of_rows = [self.entry(row, entry[0][PREFIX_LENGTH:]) for entry, row in counting]
        return Arrived(
            [entry for entry, _ in counting],
            [entry for entry in of_rows if entry is not None],
            [row for _, row in counting],
        )

    def forget(self, row: Row, own: bytes, state: Step) -> None:
        if (entry := self.entry(row, own)) is not None:
            state.delete(entry)

    def due(self, state: Reading, time_ms: int, most: int) -> list[bytes]:
        """The keys, in the table, of rows that no longer count at this time: at most ``most``, the oldest first."""
        end = self._prefix + self._encoded(self._retained.limit(time_ms) + 1)

        def is_due(entry: Entry) -> bool:
            return entry[0] < end

        entries: Iterator[Entry] = takewhile(is_due, state.scan(self._prefix))
        return [key[len(self._prefix) + _TIME_BYTES :] for key, _ in islice(entries, most)]

    def _encoded(self, value: int) -> bytes:
        return (value + _SIGN).to_bytes(_TIME_BYTES, "big")


class AgeingRows(ABC):
    """The rows of a table, without those that are too old. ``_prefix`` is the prefix of their keys in the state."""

    _prefix: bytes
    _ages: Ages | None

    def has_aged(self, state: Reading, time_ms: int) -> bool:
        return self._ages is not None and bool(self._ages.due(state, time_ms, 1))

    def aged(self, work: Work, most: int) -> list[RowChange]:
        """Remove rows that are too old by now, at most ``most``, the oldest first. Raises FanOutExceeded before memory
        holds more of them than the step may change.
        """
        changes: list[RowChange] = []
        while self._ages is not None and len(changes) < most:
            due = self._ages.due(work.state, work.time_ms, min(most - len(changes), DUE_AT_ONCE))
            work.count(len(due))  # before memory has all of them
            for own in due:
                stored = work.state.get(self._prefix + own)
                assert stored is not None, "a row's time is there, and the row isn't"
                changes.append((self.removed(self._prefix + own, stored, work), None))
            if not due:
                break
        return changes

    @abstractmethod
    def removed(self, key: bytes, stored: bytes, work: Work) -> Row:
        """Remove what is stored under a key, and its entry by time. Returns the removed row."""
