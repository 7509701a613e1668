"""Finds keys that may differ: both sides are summed up by ranges of keys, and differing ranges are read key by key.

Memory is bounded: the sums, and ``keys_max`` keys. One pass is enough for a table with fewer rows than that. Under
traffic, keys that were written between the two reads are candidates too; ``recheck`` decides about them.
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
"""Replaces the fingerprint of a row that the sink has shown already."""

_REPORT_EVERY_ROWS: Final = 5000

_Row = TypeVar("_Row")

ReportCount = Callable[[str, int], None]
"""Gets what is being read, and how many rows of it were."""


@dataclass(slots=True)
class Candidates:
    """Keys that may differ, each with the rows that a pass over the sink showed, which may be none. ``doubled`` are
    keys that one pass showed more than once. ``is_complete`` is False if there were more than fit."""

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
    """The search in one table. ``counts`` is known once ``candidates`` has yielded its first part."""

    def __init__(
        self,
        table: Table,
        expected: Expected,
        sink: SinkSide,
        *,
        keys_max: int,
        report_count: ReportCount,
        ranges: int = RANGES,
    ) -> None:
        self.counts = Counts(0, 0, 0, 0)
        self._table = table
        self._expected = expected
        self._sink = sink
        self._keys_max = keys_max
        self._report_count = report_count
        self._ranges = Ranges(ranges)

    def candidates(self) -> Iterator[Candidates]:
        """Candidates in parts; each is forgotten before the next is looked for. Raises what the sides raise."""
        rows, kept_rows = self._read_expected()
        if kept_rows is not None:
            candidates = Candidates()
            sink_rows = self._compare(kept_rows, self._summed_sink_rows(), candidates)
            kept_rows.clear()
            self._count(rows, sink_rows)
            yield candidates
            return
        sink_rows = sum(1 for _ in self._summed_sink_rows())
        differing = self._count(rows, sink_rows)
        groups = list(self._ranges.groups(differing, keys_max=self._keys_max))
        for number, group in enumerate(groups, 1):
            yield self._look_into(group, f"range group {number} of {len(groups)}")

    def _read_expected(self) -> tuple[int, dict[Key, Fingerprint] | None]:
        """Sum up the expected side. Also returns its keys if they are few."""
        kept_rows: dict[Key, Fingerprint] | None = {}
        rows = 0
        for key, fingerprint in self._reported(self._expected.name, self._expected.scan(self._table)):
            rows += 1
            self._ranges.add_expected(key, fingerprint)
            if kept_rows is not None:
                kept_rows[key] = fingerprint
                if len(kept_rows) > self._keys_max:
                    kept_rows = None
        return rows, kept_rows

    def _summed_sink_rows(self) -> Iterator[tuple[Key, Copy]]:
        for key, copy in self._reported("sink", self._sink.scan(self._table)):
            self._ranges.add_stored(key, copy.fingerprint)
            yield key, copy

    def _count(self, expected_rows: int, sink_rows: int) -> list[int]:
        differing = self._ranges.differing()
        self.counts = Counts(expected_rows, sink_rows, self._ranges.compared, len(differing))
        return differing

    def _look_into(self, group: RangeGroup, what: str) -> Candidates:
        def within(rows: Iterable[tuple[Key, _Row]]) -> Iterator[tuple[Key, _Row]]:
            return (pair for pair in rows if range_of(pair[0], self._ranges.count) in group.ranges)

        kept_rows: dict[Key, Fingerprint] = {}
        candidates = Candidates()
        expected = self._reported(f"{self._expected.name}, {what}", self._expected.scan(self._table))
        for key, fingerprint in within(expected):
            if len(kept_rows) >= 2 * self._keys_max:  # the table has grown that much, or one range is that large
                candidates.is_complete = False
                break
            kept_rows[key] = fingerprint
        self._compare(kept_rows, within(self._reported(f"sink, {what}", self._sink.scan(self._table))), candidates)
        return candidates

    def _compare(
        self, kept_rows: dict[Key, Fingerprint], stored: Iterable[tuple[Key, Copy]], candidates: Candidates
    ) -> int:
        """Compare the sink's rows with the expected ones, which become seen or candidates. Returns how many."""
        rows = 0
        for key, copy in stored:
            rows += 1
            expected = kept_rows.get(key)
            if expected == copy.fingerprint:
                kept_rows[key] = _SEEN
                continue
            if expected == _SEEN or key in candidates.shown:
                candidates.doubled.add(key)
            if expected is not None:
                kept_rows[key] = _SEEN
            self._add(candidates, key, copy)
        for key, fingerprint in kept_rows.items():
            if fingerprint != _SEEN:
                self._add(candidates, key)
        return rows

    def _add(self, candidates: Candidates, key: Key, *copies: Copy) -> None:
        if key not in candidates.shown and len(candidates.shown) >= self._keys_max:
            candidates.is_complete = False
            return
        candidates.shown.setdefault(key, []).extend(copies)

    def _reported(self, what: str, rows: Iterable[_Row]) -> Iterator[_Row]:
        count = 0
        for count, row in enumerate(rows, 1):
            if count % _REPORT_EVERY_ROWS == 0:
                self._report_count(what, count)
            yield row
        self._report_count(what, count)
