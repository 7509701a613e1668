"""What has come of one table while a state is built: of each key the event with the greatest tag counts.

Events come in any order, again, and after others of their key. They are sorted by key and tag, and what memory doesn't
hold of them is in temporary files. So a table's own rows are put into a state in the order of their keys, and nothing
is looked for there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from views.operators.building import Item, Sorter
from views.state.contract import Entry
from views.values import Row

GONE: Final = b""
"""In place of a row: there is none, or it is another shard's."""

UNREADABLE: Final = b"!"
"""Before a row in the log's own JSON that can't be read. It is no fault where a newer event of its key has come."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Some rows of a table that count: what a state keeps of them, in order, their entries by time, and the rows."""

    entries: Sequence[Entry]
    ages: Sequence[bytes]
    rows: list[Row]


FOLDED_AFTER: Final = 4_000_000
_FOLDED_TIMES: Final = 3


class Arrivals:
    """Items are made of events: a row's own key, the tag, and what is kept of the row; ``GONE`` and ``UNREADABLE`` are
    possible there. For one thread."""

    def __init__(self, scratch: Path | None) -> None:
        """``scratch`` is where temporary files may be."""
        self._scratch = scratch
        self.sorter = Sorter(scratch)
        self._folded = 0
        self.count = 0
        """How many items there are."""
        self.emptied = ""
        """The tag of the newest truncate of an append-only table."""

    def add(self, items: list[Item]) -> None:
        """Take in more. Raises LockstepError for a full disk and the like."""
        self.sorter.add(items)
        self.count += len(items)

    def fold(self, meanwhile: Callable[[int], None]) -> None:
        """Give back what older events of the same keys take, where they may be many: the disk has a few times what is
        left at most. It may take long, and ``meanwhile`` is called every so often. Raises as that and ``add``."""
        if self.count - self._folded <= max(_FOLDED_TIMES * self._folded, FOLDED_AFTER):
            return
        into, count = Sorter(self._scratch), 0
        for items in self.newest():
            into.add(items)
            count += len(items)
            meanwhile(0)
        self.sorter, self.count, self._folded = into, count, count

    def newest(self) -> Iterator[list[Item]]:
        """The newest item of each key, in the order of the keys. Nothing is added any more."""
        held: dict[bytes, Item] = {}
        for items in self.sorter.sorted():
            # Of equal keys a dict has the last item, in the first one's place. The last key may go on behind these.
            held |= {item[0]: item for item in items}
            key, item = held.popitem()
            if held:
                yield list(held.values())
            held = {key: item}
        if held:
            yield list(held.values())
