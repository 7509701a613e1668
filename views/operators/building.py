"""How a large state is built: operator by operator, each one's entries in the order of their keys.

Row by row, each would be put where it belongs in a file that grows, and its partners be looked for there. So the rows
of an operator are sorted first, all of them or some parts at a time, which merges them with their partners as well.
What memory doesn't hold of them is in temporary files meanwhile. Nothing is read before its building is over but
tables' own rows, and groups.
"""

import marshal
import struct
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Final

from cdc.model.errors import LockstepError
from views.state.contract import Entry, Reading, State
from views.values import Row

Item = tuple[bytes, bytes, bytes]
"""What is sorted: by what rows have in common, by what they are told apart by, and the row as it is packed."""

PORTION: Final = 10_000
PORTION_BYTES: Final = 8 * 1024 * 1024
"""So many rows, or about so many bytes of them, are handed on at once."""

ITEMS_MAX: Final = 100_000
BYTES_MAX: Final = 32 * 1024 * 1024
"""So many items and bytes of one sorting are in memory at most, but for the last few that were added."""

SPILLED_AT_ONCE: Final = 1_000
SPILLED_BYTES: Final = 64 * 1024
"""Memory has a piece of about this size, and at most twice of it, of each sorted part while parts are merged. Or of one
item that is larger."""

_MARSHAL: Final = 2
"""Later versions look whether an object was written before, and none was."""

_PACKED_AT_ONCE: Final = 1_000
"""Rows of a portion share values, and hardly take memory before they are packed."""

SORTED_AT_ONCE: Final = 1_000
"""Where rows come in the order of parts, at least so many items are sorted together."""

_SMALL: Final = 10
"""What is less than this part of what memory may have makes no temporary file."""

KEPT_AT_ONCE: Final = 50_000
_LENGTH: Final = struct.Struct("<I")
_KEY, _VALUE = itemgetter(0), itemgetter(1)


class Building:
    """What operators need while a state is built. ``scratch`` is where temporary files may be; they have no names.

    ``meanwhile`` is called with how many more rows of tables were read, 0 for other work, after each portion of any
    operator. What it raises ends the building. No row may have more than ``changes_max`` partners.
    """

    def __init__(
        self, state: State, *, scratch: Path | None, changes_max: int, meanwhile: Callable[[int], None]
    ) -> None:
        self.state = state
        self.changes_max = changes_max
        self.meanwhile = meanwhile
        self.changed = 0
        """Rows of operators so far."""
        self._scratch = scratch
        self._kept: list[Entry] = []
        self._kept_bytes = 0
        self._handed_on = self._handed_on_bytes = 0
        """How many items memory has of what is handed on now, and about how many bytes of them."""

    def sorter(self) -> "Sorter":
        return Sorter(self._scratch)

    def sorted(
        self, rows: Iterable[list[Row]], made: Callable[[list[Row]], list[Item]], part: Callable[[Row], bytes] | None
    ) -> Iterator[list[Item]]:
        """What is ``made`` of all rows, in order. Raises as ``Sorter.add``.

        ``part`` is the beginning of an item that the rows come in the order of already. Then those of a few parts are
        sorted at a time. Else all are, before the first portion is there.
        """
        last = b""
        for sorter in self._sorters(rows, made, part):
            for items in self.handed_on(sorter):
                assert last <= _whole(items[0]), "rows come in another order than the plan says"
                last = _whole(items[-1])
                yield items

    def handed_on(self, sorter: "Sorter") -> Iterator[list[Item]]:
        """All items of a sorter in order. Raises as ``Sorter.spill``.

        Memory has hardly more of all that are handed on at a time than of one: operators may all be at work at once.
        """
        count, size = sorter.held
        is_large = count * _SMALL >= ITEMS_MAX or size * _SMALL >= BYTES_MAX
        if is_large and (self._handed_on + count >= ITEMS_MAX or self._handed_on_bytes + size >= BYTES_MAX):
            sorter.spill()
            count = size = 0
        self._handed_on += count
        self._handed_on_bytes += size

        def all_of() -> Iterator[list[Item]]:
            yield from sorter.sorted()
            self._handed_on -= count
            self._handed_on_bytes -= size

        return all_of()

    def _sorters(
        self, rows: Iterable[list[Row]], made: Callable[[list[Row]], list[Item]], part: Callable[[Row], bytes] | None
    ) -> "Iterator[Sorter]":
        """Each has some parts as a whole, and all of them together have all rows."""
        sorter = self.sorter()
        goes_on: bytes | None = None
        for portion in rows:
            begin, is_whole = 0, False
            if part is not None and portion:
                # The last part of a portion may go on in the next one.
                before, goes_on = goes_on, part(portion[-1])
                begin, is_whole = bisect_left(portion, goes_on, key=part), goes_on != before
            sorter.take(portion[:begin], made)
            if is_whole and sorter.held[0] >= SORTED_AT_ONCE:
                yield sorter
                sorter = self.sorter()
            sorter.take(portion[begin:], made)
        yield sorter

    def entries(self, prefix: bytes) -> Iterator[list[Entry]]:
        """All entries of tables' own rows that begin so, in order."""
        after: bytes | None = None
        while portion := self.state.read(partial(_portion, prefix=prefix, after=after)):
            yield portion
            after = portion[-1][0]

    def keep(self, entries: Iterable[Entry]) -> None:
        """Put entries that are in order, at the latest with ``flush``. Nobody has put one of them before."""
        begin = self.state.begin
        self._keep([(begin + key, value) for key, value in entries])

    def _keep(self, stored: list[Entry]) -> None:
        """The same of entries whose keys begin as the state has them."""
        self._kept += stored
        self._kept_bytes += sum(map(len, map(_KEY, stored))) + sum(map(len, map(_VALUE, stored)))
        if len(self._kept) >= KEPT_AT_ONCE or self._kept_bytes >= BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Have all entries in the state."""
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        self.state.update(lambda state: state.put_stored(kept))
        self.meanwhile(0)

    def arranged(self, prefix: bytes, items: Iterable[list[Item]]) -> Iterator[list[Item]]:
        """The same, each kept as an entry."""
        begin = self.state.begin + prefix
        for portion in items:
            self.changed += len(portion)
            self._keep([(begin + key + own, row) for key, own, row in portion])
            self.meanwhile(0)
            yield portion


def _portion(state: Reading, *, prefix: bytes, after: bytes | None) -> list[Entry]:
    entries: list[Entry] = []
    size = 0
    for entry in islice(state.scan(prefix, after=after), PORTION):
        entries.append(entry)
        size += len(entry[1])
        if size >= PORTION_BYTES:
            break
    return entries


class Sorter:
    """Puts items in order, as many as come. No two of them are equal."""

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self._items: list[Item] = []
        self._bytes = 0
        self._spilled: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        """Where each sorted part begins and ends in the file."""

    def take(self, rows: list[Row], made: Callable[[list[Row]], list[Item]]) -> None:
        """Take in what is ``made`` of a portion of rows, and raise as ``add``."""
        for start in range(0, len(rows), _PACKED_AT_ONCE):
            self.add(made(rows[start : start + _PACKED_AT_ONCE]))

    def add(self, items: list[Item]) -> None:
        """Take in more. Raises LockstepError for a full disk and the like."""
        self._items += items
        self._bytes += _size(items)
        if len(self._items) >= ITEMS_MAX or self._bytes >= BYTES_MAX:
            self.spill()

    @property
    def held(self) -> tuple[int, int]:
        """How many items memory has, and about how many bytes of them."""
        return len(self._items), self._bytes

    def spill(self) -> None:
        """Let memory have none of them. Raises LockstepError for a full disk and the like."""
        if not self._items:
            return
        try:
            self._spill()
        except OSError as error:
            if self._spilled is not None:
                with suppress(OSError):  # what couldn't be written can't now either
                    self._spilled.close()
            raise LockstepError(
                f"the rows of a view can't be sorted in {self._scratch or tempfile.gettempdir()}: {error}",
                hint="look for a full disk or missing permissions; spark.view_directory says where they are",
            ) from error

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115  closed when all is read, or with it
        begin = self._spilled.tell()
        at_once = max(1, min(SPILLED_AT_ONCE, SPILLED_BYTES * len(self._items) // max(1, self._bytes)))
        for portion in _portions(self._in_order(), at_once):
            for stored in _pieces(portion):
                self._spilled.write(_LENGTH.pack(len(stored)) + stored)
        self._spilled.flush()  # whoever reads would be told that the disk is full
        self._runs.append((begin, self._spilled.tell()))

    def _in_order(self) -> list[Item]:
        items, self._items, self._bytes = self._items, [], 0
        items.sort(key=_whole)
        return items

    def sorted(self) -> Iterator[list[Item]]:
        """All items in order, in portions. Nothing is added any more."""
        if self._spilled is None:
            yield from _portions(self._in_order(), PORTION)
            return
        with self._spilled:
            runs = [self._run(self._spilled, begin, end) for begin, end in self._runs]
            yield from merged([*runs, _portions(self._in_order(), SPILLED_AT_ONCE)])

    def _run(self, spilled: IO[bytes], at: int, end: int) -> Iterator[list[Item]]:
        while at < end:
            spilled.seek(at)
            (length,) = _LENGTH.unpack(spilled.read(_LENGTH.size))
            yield marshal.loads(spilled.read(length))  # noqa: S302  we have written it
            at += _LENGTH.size + length


def spill_together(sorters: Collection[Sorter]) -> None:
    """Have memory hold no more of all of these than it may of one. Raises as ``Sorter.spill``."""
    items, sizes = zip(*(sorter.held for sorter in sorters), strict=True)
    if sum(items) >= ITEMS_MAX or sum(sizes) >= BYTES_MAX:
        # By its share of either: of small parts there would be as many as calls, and merging has a piece of each.
        max(sorters, key=lambda sorter: max(sorter.held[0] / ITEMS_MAX, sorter.held[1] / BYTES_MAX)).spill()


def _portions(items: list[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _pieces(portion: list[Item]) -> Iterator[bytes]:
    """The same as it is written: in pieces of so few bytes that memory can have one of each sorted part."""
    stored = marshal.dumps(portion, _MARSHAL)
    if len(portion) == 1 or len(stored) <= 2 * SPILLED_BYTES:
        yield stored
    else:
        half = len(portion) // 2
        yield from _pieces(portion[:half])
        yield from _pieces(portion[half:])


def _whole(item: Item) -> bytes:
    """What an item is in order by: some may be alike, as the rows of a group. Tuned: tuples are compared part by part,
    which takes twice as long. No key of one sorting begins with another one, so their order is the same."""
    return item[0] + item[1]


def _size(items: list[Item]) -> int:
    return sum(map(len, chain.from_iterable(items)))


def merged(runs: Iterable[Iterator[list[Item]]]) -> Iterator[list[Item]]:
    """Several ordered runs as one. Whatever is less than the least end of all portions at hand is complete."""
    heads = [(portion, run) for run in runs for portion in islice(run, 1)]
    while len(heads) > 1:
        bound = min([_whole(portion[-1]) for portion, _ in heads])
        taken: list[Item] = []
        left: list[tuple[list[Item], Iterator[list[Item]]]] = []
        for portion, run in heads:
            end = bisect_right(portion, bound, key=_whole)
            taken += portion[:end]
            if rest := portion[end:] or next(run, []):
                left.append((rest, run))
        heads = left
        taken.sort(key=_whole)  # it finds the parts that are in order
        yield taken
    for portion, run in heads:
        yield from chain([portion], run)
