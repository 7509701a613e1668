"""Which keys may differ: both sides are read once, summed up by ranges of keys, and ranges that differ are read again key by key.

Memory is bounded: the sums, and ``keys_max`` keys. A table with fewer rows than that is done in the first pass. Under traffic the keys
that were written between the two reads are among the candidates; ``settle`` sorts them out.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key
from lockstep.verify.comparing.ranges import RANGES, RangeGroup, Ranges, range_of
from lockstep.verify.sides.expected import Expected
from lockstep.verify.sides.sink import Copy, SinkSide

_SEEN: Final = b""
"""Stands for the fingerprint of a row that the sink has shown already."""

_TELL_EVERY_ROWS: Final = 5000

_Of = TypeVar("_Of")

Tell = Callable[[str, int], None]
"""What is being read, and how many rows of it were."""


@dataclass(slots=True)
class Candidates:
    """Keys that may differ, with what a pass over the sink showed of each; nothing where it showed nothing.

    ``doubled`` are keys that one pass showed more than once. ``is_complete`` is False when there were more than fit.
    """

    shown: dict[Key, list[Copy]] = field(default_factory=dict)
    doubled: set[Key] = field(default_factory=set)
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows on both sides, each as of its own pass, and ranges of keys."""

    expected_rows: int
    sink_rows: int
    ranges: int
    differing: int


class Search:
    """One table's search. ``candidates`` yields them in portions; ``counts`` is known once the first is there."""

    def __init__(
        self, table: Table, expected: Expected, sink: SinkSide, *, keys_max: int, tell: Tell, ranges: int = RANGES
    ) -> None:
        self.counts = Counts(0, 0, 0, 0)
        self._table = table
        self._expected = expected
        self._sink = sink
        self._keys_max = keys_max
        self._tell = tell
        self._ranges = Ranges(ranges)

    def candidates(self) -> Iterator[Candidates]:
        """Portions of candidates; what one holds is forgotten before the next is looked for."""
        rows, kept = self._read_expected()
        if kept is not None:
            found = Candidates()
            sink_rows = self._compare(kept, self._counted_in_ranges(), found)
            kept.clear()
            self._count(rows, sink_rows)
            yield found
            return
        sink_rows = sum(1 for _ in self._counted_in_ranges())
        differing = self._count(rows, sink_rows)
        groups = list(self._ranges.groups(differing, keys_max=self._keys_max))
        for place, group in enumerate(groups, 1):
            yield self._look_into(group, f"range group {place} of {len(groups)}")

    def _read_expected(self) -> tuple[int, dict[Key, Fingerprint] | None]:
        """Sum up the expected side. Its keys come along as long as they are few."""
        kept: dict[Key, Fingerprint] | None = {}
        rows = 0
        for key, of_row in self._told(self._expected.name, self._expected.scan(self._table)):
            rows += 1
            self._ranges.add_expected(key, of_row)
            if kept is not None:
                kept[key] = of_row
                if len(kept) > self._keys_max:
                    kept = None
        return rows, kept

    def _counted_in_ranges(self) -> Iterator[tuple[Key, Copy]]:
        for key, copy in self._told("sink", self._sink.scan(self._table)):
            self._ranges.add_stored(key, copy.fingerprint)
            yield key, copy

    def _count(self, expected_rows: int, sink_rows: int) -> list[int]:
        differing = self._ranges.differing()
        self.counts = Counts(expected_rows, sink_rows, self._ranges.compared, len(differing))
        return differing

    def _look_into(self, group: RangeGroup, what: str) -> Candidates:
        def within(rows: Iterable[tuple[Key, _Of]]) -> Iterator[tuple[Key, _Of]]:
            return (pair for pair in rows if range_of(pair[0], self._ranges.count) in group.ranges)

        kept: dict[Key, Fingerprint] = {}
        found = Candidates()
        expected = self._told(f"{self._expected.name}, {what}", self._expected.scan(self._table))
        for key, of_row in within(expected):
            if len(kept) >= 2 * self._keys_max:  # it has grown that much, or one range is that large
                found.is_complete = False
                break
            kept[key] = of_row
        self._compare(kept, within(self._told(f"sink, {what}", self._sink.scan(self._table))), found)
        return found

    def _compare(self, kept: dict[Key, Fingerprint], stored: Iterable[tuple[Key, Copy]], found: Candidates) -> int:
        """Compare the sink's rows with the kept ones, which end up marked or among the candidates. Returns the sink's rows."""
        rows = 0
        for key, copy in stored:
            rows += 1
            wanted = kept.get(key)
            if wanted == copy.fingerprint:
                kept[key] = _SEEN
                continue
            if wanted == _SEEN or key in found.shown:
                found.doubled.add(key)
            if wanted is not None:
                kept[key] = _SEEN
            self._add(found, key, copy)
        for key, of_row in kept.items():
            if of_row != _SEEN:
                self._add(found, key)
        return rows

    def _add(self, found: Candidates, key: Key, *copies: Copy) -> None:
        if key not in found.shown and len(found.shown) >= self._keys_max:
            found.is_complete = False
            return
        found.shown.setdefault(key, []).extend(copies)

    def _told(self, what: str, rows: Iterable[_Of]) -> Iterator[_Of]:
        count = 0
        for count, row in enumerate(rows, 1):
            if count % _TELL_EVERY_ROWS == 0:
                self._tell(what, count)
            yield row
        self._tell(what, count)
