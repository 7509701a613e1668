"""How a large state is built: operator by operator, each operator's entries in the order of their keys.

Row by row, each entry would go to a random place of a growing file, and each row's partners would be read there. So an
operator's rows are sorted first, all at once or a few parts at a time. Merging also brings them to their partners. What
doesn't fit in memory is in temporary files meanwhile. Until the building is over, only tables' own rows and groups are
read from the state.
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
"""A sorted item: what rows have in common, what distinguishes them, and the packed row."""

PORTION: Final = 10_000
PORTION_BYTES: Final = 8 * 1024 * 1024
"""A slice has at most this many rows, or about this many bytes."""

ITEMS_MAX: Final = 100_000
BYTES_MAX: Final = 32 * 1024 * 1024
"""One sorter holds at most this many items and bytes in memory, plus the last few that were added."""

SPILLED_AT_ONCE: Final = 1_000
SPILLED_BYTES: Final = 64 * 1024
"""While sorted runs are merged, memory holds a piece of each run of about this size, at most twice, or one larger item.
"""

_MARSHAL: Final = 2
"""Later versions of marshal look for objects that were written before; there are none."""

_PACKED_AT_ONCE: Final = 1_000
"""Rows of a slice share values, and take hardly any memory before they are packed."""

SORTED_AT_ONCE: Final = 1_000
"""If rows come in the order of parts, at least this many items are sorted together."""

_SMALL: Final = 10
"""A sorter with less than this fraction of the memory limit makes no temporary file."""

KEPT_AT_ONCE: Final = 50_000
_LENGTH: Final = struct.Struct("<I")
_KEY, _VALUE = itemgetter(0), itemgetter(1)


class Building:
    """What operators need while a state is built. ``scratch`` is the directory for temporary files, which have no
    names. ``meanwhile`` is called after each slice of any operator with how many more rows of tables were read, 0 for
    other work. What it raises ends the building. No row may have more than ``changes_max`` partners.
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
        """How many items, and about how many bytes, ``handed_on`` holds in memory now."""

    def sorter(self) -> "Sorter":
        return Sorter(self._scratch)

    def sorted(
        self, rows: Iterable[list[Row]], made: Callable[[list[Row]], list[Item]], part: Callable[[Row], bytes] | None
    ) -> Iterator[list[Item]]:
        """What is ``made`` from all rows, in order. Raises as ``Sorter.add``. ``part`` returns the beginning of an item
        if the rows already come in the order of that. Then a few parts are sorted at a time. Otherwise all rows are
        sorted before the first slice is returned.
        """
        last = b""
        for sorter in self._sorters(rows, made, part):
            for items in self.handed_on(sorter):
                assert last <= _whole(items[0]), "rows come in another order than the plan says"
                last = _whole(items[-1])
                yield items

    def handed_on(self, sorter: "Sorter") -> Iterator[list[Item]]:
        """All items of a sorter in order. Raises as ``Sorter.spill``. All operators may be at work at once. All sorters
        that are handed on together use hardly more memory than one.
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
        """Sorters with whole parts, which together have all rows."""
        sorter = self.sorter()
        goes_on: bytes | None = None
        for portion in rows:
            begin, is_whole = 0, False
            if part is not None and portion:
                # The last part of a slice may continue in the next one.
                before, goes_on = goes_on, part(portion[-1])
                begin, is_whole = bisect_left(portion, goes_on, key=part), goes_on != before
            sorter.take(portion[:begin], made)
            if is_whole and sorter.held[0] >= SORTED_AT_ONCE:
                yield sorter
                sorter = self.sorter()
            sorter.take(portion[begin:], made)
        yield sorter

    def entries(self, prefix: bytes) -> Iterator[list[Entry]]:
        """All entries of tables' own rows with this prefix, in order."""
        after: bytes | None = None
        while portion := self.state.read(partial(_portion, prefix=prefix, after=after)):
            yield portion
            after = portion[-1][0]

    def keep(self, entries: Iterable[Entry]) -> None:
        """Store entries that are in order, at the latest at ``flush``. Each key may be stored only once."""
        begin = self.state.begin
        self._keep([(begin + key, value) for key, value in entries])

    def _keep(self, stored: list[Entry]) -> None:
        """The same for keys that have the state's ``begin``."""
        self._kept += stored
        self._kept_bytes += sum(map(len, map(_KEY, stored))) + sum(map(len, map(_VALUE, stored)))
        if len(self._kept) >= KEPT_AT_ONCE or self._kept_bytes >= BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        self.state.update(lambda state: state.put_stored(kept))
        self.meanwhile(0)

    def arranged(self, prefix: bytes, items: Iterable[list[Item]]) -> Iterator[list[Item]]:
        """Returns the same items, and stores each as an entry."""
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
    """Sorts any number of items, no two of which are equal."""

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self._items: list[Item] = []
        self._bytes = 0
        self._spilled: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        """The beginning and end of each sorted run in the file."""

    def take(self, rows: list[Row], made: Callable[[list[Row]], list[Item]]) -> None:
        """Add what is ``made`` from a slice of rows. Raises as ``add``."""
        for start in range(0, len(rows), _PACKED_AT_ONCE):
            self.add(made(rows[start : start + _PACKED_AT_ONCE]))

    def add(self, items: list[Item]) -> None:
        """Raises LockstepError for a full disk and the like."""
        self._items += items
        self._bytes += sum(map(len, chain.from_iterable(items)))
        if len(self._items) >= ITEMS_MAX or self._bytes >= BYTES_MAX:
            self.spill()

    @property
    def held(self) -> tuple[int, int]:
        """How many items, and about how many bytes, are in memory."""
        return len(self._items), self._bytes

    def spill(self) -> None:
        """Move all items from memory to the file. Raises LockstepError for a full disk and the like."""
        if not self._items:
            return
        try:
            self._spill()
        except OSError as error:
            if self._spilled is not None:
                with suppress(OSError):  # close() fails to write the same bytes again
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
        self._spilled.flush()  # otherwise the reader would get the error of a full disk
        self._runs.append((begin, self._spilled.tell()))

    def _in_order(self) -> list[Item]:
        items, self._items, self._bytes = self._items, [], 0
        items.sort(key=_whole)
        return items

    def sorted(self) -> Iterator[list[Item]]:
        """All items in order, in slices. Call it once, after the last ``add``."""
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
    """Reduce what all these sorters hold in memory to the limit of one. Raises as ``Sorter.spill``."""
    items, sizes = zip(*(sorter.held for sorter in sorters), strict=True)
    if sum(items) >= ITEMS_MAX or sum(sizes) >= BYTES_MAX:
        # The sorter with the largest share: spilling small ones would give a run per call, and merging holds a piece of
        # each.
        max(sorters, key=lambda sorter: max(sorter.held[0] / ITEMS_MAX, sorter.held[1] / BYTES_MAX)).spill()


def _portions(items: list[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _pieces(portion: list[Item]) -> Iterator[bytes]:
    """The slice in serialized pieces that are small enough for memory to hold one of each run."""
    stored = marshal.dumps(portion, _MARSHAL)
    if len(portion) == 1 or len(stored) <= 2 * SPILLED_BYTES:
        yield stored
    else:
        half = len(portion) // 2
        yield from _pieces(portion[:half])
        yield from _pieces(portion[half:])


def _whole(item: Item) -> bytes:
    """The sort key of an item. Items of a group may have equal ones. Tuned: comparing tuples takes twice as long.
    Within one sorting no key is a prefix of another one, so the order is the same.
    """
    return item[0] + item[1]


def merged(runs: Iterable[Iterator[list[Item]]]) -> Iterator[list[Item]]:
    """Merge several ordered runs. Everything up to the smallest last item of the slices at hand is complete."""
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
        taken.sort(key=_whole)  # fast: it detects the runs that are in order
        yield taken
    for portion, run in heads:
        yield from chain([portion], run)
