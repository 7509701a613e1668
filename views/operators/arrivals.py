"""The events of one table that arrive while a state is built. Of each key, the event with the greatest tag counts.
Events come in any order, and some come again. They are sorted by key and tag, in temporary files if they don't fit in
memory. So a table's rows are written to the state in the order of their keys, without any reads there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from views.operators.building import Item, Sorter
from views.state.contract import Entry
from views.values import Row

GONE: Final = b""
"""Stands for a row that is deleted or belongs to another shard."""

UNREADABLE: Final = b"!"
"""Precedes a row in the log's own JSON that can't be read. It is an error only if no newer event of its key comes."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Some rows of a table that count: their entries in the state in order, their entries by time, and the rows."""

    entries: Sequence[Entry]
    ages: Sequence[bytes]
    rows: list[Row]


FOLDED_AFTER: Final = 4_000_000
_FOLDED_TIMES: Final = 3


class Arrivals:
    """Items from events: the row's key, the tag, and the row, ``GONE``, or ``UNREADABLE`` and the row. One thread."""

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self.sorter = Sorter(scratch)
        self._folded = 0
        self.count = 0
        """The number of items."""
        self.emptied = ""
        """The tag of the newest truncate of an append-only table."""

    def add(self, items: list[Item]) -> None:
        """Raises LockstepError for a full disk and the like."""
        self.sorter.add(items)
        self.count += len(items)

    def fold(self, meanwhile: Callable[[int], None]) -> None:
        """Free the space of older events of the same keys when they may be many, so that the disk holds at most a few
        times what is left. It may take long; ``meanwhile`` is called every so often. Raises what ``meanwhile`` and
        ``add`` raise.
        """
        if self.count - self._folded <= max(_FOLDED_TIMES * self._folded, FOLDED_AFTER):
            return
        into, count = Sorter(self._scratch), 0
        for items in self.newest():
            into.add(items)
            count += len(items)
            meanwhile(0)
        self.sorter, self.count, self._folded = into, count, count

    def newest(self) -> Iterator[list[Item]]:
        """The newest item of each key, in the order of the keys. Call it once, after the last ``add``."""
        held: dict[bytes, Item] = {}
        for items in self.sorter.sorted():
            # Of equal keys, a dict has the last item at the first one's position. The last key may continue in the next
            # slice.
            held |= {item[0]: item for item in items}
            key, item = held.popitem()
            if held:
                yield list(held.values())
            held = {key: item}
        if held:
            yield list(held.values())
