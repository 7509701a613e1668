"""Changed rows with their weights, how rows are stored, and what one step may read and write."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from views.failures import FanOutExceeded
from views.operators.building import Building
from views.state.contract import Step
from views.values import Row, Value

Changes = dict[Row, int]
"""Rows and their weights, which are never 0."""

RowChange = tuple[Row | None, Row | None]
"""The old and the new row of a key, with the columns that a mirror stores."""

pack_row: Callable[[Iterable[Value]], bytes] = orjson.dumps


def unpack_row(stored: bytes) -> Row:
    return tuple(orjson.loads(stored))


def unpack_rows(stored: Iterable[bytes]) -> list[Row]:
    return list(map(tuple, map(orjson.loads, stored)))


def add(changes: Changes, row: Row, weight: int) -> None:
    total = changes.get(row, 0) + weight
    if total:
        changes[row] = total
    else:
        changes.pop(row, None)


def retractions_first(changes: Changes) -> list[tuple[Row, int]]:
    """The changes in an order in which a key is freed before it is taken again."""
    if -1 not in changes.values():
        return list(changes.items())
    return sorted(changes.items(), key=_weight)


def _weight(change: tuple[Row, int]) -> int:
    return change[1]


@dataclass(slots=True)
class Work:
    """One step: its changes of the state, and how many rows it may still change. ``time_ms`` is the view's time in
    milliseconds since 1970, which decides which rows are too old to count.
    """

    state: Step
    changes_max: int
    changed: int = 0
    time_ms: int = 0

    def count(self, changes: int) -> None:
        """Raises FanOutExceeded when the step changes too many rows."""
        self.changed += changes
        if self.changed > self.changes_max:
            raise FanOutExceeded(
                f"one step changes more than {self.changes_max} rows of the view's operators; nothing of it was kept",
                hint="a change of a table reaches that many rows of the view. `lockstep rebuild VIEW --switch` builds"
                " it without this limit; or join and group by keys that fewer rows share",
            )


Rows = Iterator[list[Row]]
"""Rows of a node, in slices, while a state is built. No row comes twice."""


class Operator(Protocol):
    """Maintains one node of the plan."""

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        """Bring in changes of one of its sources. Returns the changes of its own rows."""

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        """Store what all rows of its sources give, in an empty state. Returns all of its own rows."""


MIRROR: Final = b"m"
"""The beginning of the keys of tables' own rows."""

_NODE: Final = 2
PREFIX_LENGTH: Final = 1 + _NODE + 1


def prefix_of(kind: bytes, number: int, part: int = 0) -> bytes:
    """The beginning of the keys of a node's entries."""
    return kind + number.to_bytes(_NODE, "big") + bytes([part])
