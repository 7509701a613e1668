"""Which row has a key, while a transaction moves rows between keys. Pure.

A unique constraint may be checked at the end of a statement or transaction, so two rows can share a key for a moment.
With rows 1 and 2, ``set id = id + 1`` reaches 2 before row 2 has vacated it: the WAL has delete 1, create 2, delete 2,
create 3. Taken literally, row 2 would be lost. So a key that one row vacates while another is there stays live. Old
images tell the rows apart; such tables always send them, since their key can't be a replica identity.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, Protocol

from cdc.protocol.pgoutput import UNCHANGED, Field, Fields

_COUNT: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<i")
_NULL_LENGTH: Final = -1
_UNCHANGED_LENGTH: Final = -2


class _Rest(Enum):
    UNKNOWN = "unknown"


class RowMap(Protocol):
    """Where the rows of one transaction are stored: a dict, or more, since memory may not hold all rows of a
    transaction."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def __setitem__(self, key: bytes, value: bytes, /) -> None: ...

    def clear(self) -> None: ...


@dataclass(slots=True)
class _Key:
    """What a transaction did at one key."""

    arrived: list[Fields] = field(default_factory=list)
    resident_vacated: bool = False
    resident_now: Fields | None = None
    """The resident, if it was changed and is still there."""


class KeyMoves:
    """The keys that the current transaction has touched; ``clear`` it for each new one. A row *arrived* if this
    transaction brought it to the key. The *resident* had the key before, if any row did."""

    UNKNOWN: Final[Literal[_Rest.UNKNOWN]] = _Rest.UNKNOWN

    def __init__(self, rows: RowMap | None = None) -> None:
        """``rows`` stores the rows; it must be empty and not shared."""
        self._rows: RowMap = {} if rows is None else rows
        self._is_clear = True
        self._truncations: dict[str, int] = {}
        """How often this transaction has truncated a topic's table. No earlier row is left then."""
        self._reshapes: dict[str, list[Sequence[int | None]]] = {}
        """How this transaction changed the columns of a topic's table. Rows are stored as they came."""

    def clear(self) -> None:
        """A new transaction: the row that has a key now is its resident."""
        if not self._is_clear:
            self._is_clear = True
            self._rows.clear()
            self._truncations.clear()
            self._reshapes.clear()

    def empty(self, topic: str) -> None:
        """The table was truncated: all of its rows vacated their keys, including those that had arrived."""
        self._is_clear = False
        self._truncations[topic] = self._truncations.get(topic, 0) + 1

    def reshape(self, topic: str, indexes: Sequence[int | None]) -> None:
        """The table's columns changed within the transaction. ``indexes`` has each column's index in the shape before,
        None for an added one."""
        self._is_clear = False
        self._reshapes.setdefault(topic, []).append(indexes)

    def arrive(self, topic: str, key: bytes, row: Fields) -> None:
        """A row was inserted with this key, or moved to it."""
        touched = self._touched(topic, key)
        touched.arrived.append(row)
        self._keep(topic, key, touched)

    def change(self, topic: str, key: bytes, old: Fields, new: Fields) -> None:
        """A row changed and kept its key."""
        touched = self._touched(topic, key)
        index = _index(touched.arrived, old)
        if index is not None:
            touched.arrived[index] = new
        else:
            touched.resident_now = new
        self._keep(topic, key, touched)

    def vacate(self, topic: str, key: bytes, old: Fields) -> Fields | Literal[_Rest.UNKNOWN] | None:
        """A row vacates the key. Returns the row that has it now, None if none has. UNKNOWN if that depends on whether
        there was a resident that this transaction hasn't touched."""
        touched = self._touched(topic, key)
        arrived = touched.arrived
        index = _index(arrived, old)
        if index is None:
            touched.resident_vacated = True
            touched.resident_now = None
        else:
            del arrived[index]
        self._keep(topic, key, touched)
        if arrived:
            return arrived[-1]
        if touched.resident_vacated or topic in self._truncations:
            return None
        return self.UNKNOWN if touched.resident_now is None else touched.resident_now

    def _touched(self, topic: str, key: bytes) -> _Key:
        kept = self._rows.get(self._name(topic, key))
        return _Key() if kept is None else _unpacked(kept, self._reshapes.get(topic, ()))

    def _keep(self, topic: str, key: bytes, touched: _Key) -> None:
        self._is_clear = False
        self._rows[self._name(topic, key)] = _packed(touched, len(self._reshapes.get(topic, ())))

    def _name(self, topic: str, key: bytes) -> bytes:
        """The name changes with each TRUNCATE, so what was stored before isn't found again."""
        return b"%s %d " % (topic.encode(), self._truncations.get(topic, 0)) + key


def _packed(touched: _Key, reshapes: int) -> bytes:
    """As bytes, which take less memory than a tuple of values. ``reshapes`` counts the reshapes before its rows."""
    rows = touched.arrived if touched.resident_now is None else [*touched.arrived, touched.resident_now]
    parts = [
        _COUNT.pack(reshapes),
        bytes((touched.resident_vacated, touched.resident_now is not None)),
    ]
    for row in rows:
        parts.append(_COUNT.pack(len(row)))
        for value in row:
            if value is None:
                parts.append(_LENGTH.pack(_NULL_LENGTH))
            elif value is UNCHANGED:
                parts.append(_LENGTH.pack(_UNCHANGED_LENGTH))
            else:
                parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def _unpacked(kept: bytes, reshapes: Sequence[Sequence[int | None]]) -> _Key:
    """The inverse of ``_packed``, in the table's present shape."""
    (seen,) = _COUNT.unpack_from(kept)
    position = _COUNT.size
    resident_vacated, has_resident = kept[position : position + 2]
    position += 2
    rows = []
    while position < len(kept):
        row, position = _row_at(kept, position)
        for indexes in reshapes[seen:]:
            row = tuple(UNCHANGED if index is None else row[index] for index in indexes)
        rows.append(row)
    resident_now = rows.pop() if has_resident else None
    return _Key(rows, bool(resident_vacated), resident_now)


def _row_at(kept: bytes, position: int) -> tuple[Fields, int]:
    (count,) = _COUNT.unpack_from(kept, position)
    position += _COUNT.size
    row: list[Field] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(kept, position)
        position += _LENGTH.size
        if length >= 0:
            row.append(kept[position : position + length])
            position += length
        else:
            row.append(None if length == _NULL_LENGTH else UNCHANGED)
    return tuple(row), position


def _index(rows: Sequence[Fields], row: Fields) -> int | None:
    """The index of a row among others. A column that was added since matches any value."""
    for index, other in enumerate(rows):
        if other == row or (
            UNCHANGED in other
            and all(value is UNCHANGED or value == new for value, new in zip(other, row, strict=True))
        ):
            return index
    return None
