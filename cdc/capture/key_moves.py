"""Which row has a key, while a transaction moves rows between keys. Pure.

A unique constraint may be checked at the end of a statement or transaction. Then two rows share a key for a moment.
With rows 1 and 2, ``set id = id + 1`` reaches 2 before row 2 has vacated it. The WAL has delete 1, create 2, delete 2,
create 3. Taken literally, row 2 would be lost. So a key that one row vacates while another is there stays live. The
rows are told apart by their old images, which such tables always send: their key can't be a replica identity.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal

from cdc.protocol.pgoutput import UNCHANGED, Fields

_Slot = tuple[str, bytes]


class _Rest(Enum):
    UNKNOWN = "unknown"


class KeyMoves:
    """The keys that the current transaction has touched; ``clear`` it with each new one.

    A row *arrived* when this transaction brought it to the key; the *resident* had the key before, if there was one.
    """

    UNKNOWN: Final[Literal[_Rest.UNKNOWN]] = _Rest.UNKNOWN

    def __init__(self) -> None:
        self._arrived: dict[_Slot, list[Fields]] = {}
        self._resident_vacated: set[_Slot] = set()
        self._resident_now: dict[_Slot, Fields] = {}
        self._emptied: set[str] = set()
        """The topics of tables that this transaction has truncated: no row of before is left."""

    def clear(self) -> None:
        """A new transaction: whoever has a key now is its resident."""
        if self._arrived or self._resident_vacated or self._resident_now or self._emptied:
            self._arrived.clear()
            self._resident_vacated.clear()
            self._resident_now.clear()
            self._emptied.clear()

    def empty(self, topic: str) -> None:
        """The table was truncated: all of its rows vacated their keys, those that had arrived too."""
        self._emptied.add(topic)
        for slots in (self._arrived, self._resident_now):
            for slot in [slot for slot in slots if slot[0] == topic]:
                del slots[slot]

    def reshape(self, topic: str, indexes: Sequence[int | None]) -> None:
        """The table's columns changed within the transaction.

        ``indexes`` has each column's index in the shape before, None for an added one.
        """

        def moved(row: Fields) -> Fields:
            return tuple(UNCHANGED if index is None else row[index] for index in indexes)

        for (row_topic, _), rows in self._arrived.items():
            if row_topic == topic:
                rows[:] = map(moved, rows)
        for slot, row in self._resident_now.items():
            if slot[0] == topic:
                self._resident_now[slot] = moved(row)

    def arrive(self, topic: str, key: bytes, row: Fields) -> None:
        """A row was inserted with this key, or came to it."""
        self._arrived.setdefault((topic, key), []).append(row)

    def change(self, topic: str, key: bytes, old: Fields, new: Fields) -> None:
        """A row changed and kept its key."""
        slot = (topic, key)
        arrived = self._arrived.get(slot, [])
        index = _index(arrived, old)
        if index is not None:
            arrived[index] = new
        else:
            self._resident_now[slot] = new

    def vacate(self, topic: str, key: bytes, old: Fields) -> Fields | Literal[_Rest.UNKNOWN] | None:
        """A row vacates the key. Returns the row that has it now, None when none has.

        UNKNOWN when that depends on whether there was a resident that this transaction hasn't touched.
        """
        slot = (topic, key)
        arrived = self._arrived.get(slot, [])
        index = _index(arrived, old)
        if index is not None:
            del arrived[index]
            if arrived:
                return arrived[-1]
            if slot in self._resident_vacated or topic in self._emptied:
                return None
            return self._resident_now.get(slot, self.UNKNOWN)
        self._resident_vacated.add(slot)
        self._resident_now.pop(slot, None)
        return arrived[-1] if arrived else None


def _index(rows: Sequence[Fields], row: Fields) -> int | None:
    """The index of a row among others; the value of a column that was added since may be any."""
    for index, other in enumerate(rows):
        if other == row or (
            UNCHANGED in other
            and all(value is UNCHANGED or value == new for value, new in zip(other, row, strict=True))
        ):
            return index
    return None
