"""Counts and sums of rows per range of keys: the same for two sides with the same rows, in any order. Pure.

A range is a set of keys with the same hash. Ranges in key order would be the obvious choice, but Redis and OpenSearch
can't be read by them: Redis returns its keys in no order, and OpenSearch would sort by a field that may not be indexed.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from lockstep.verify.canonical import FINGERPRINT_BYTES, Fingerprint, Key

RANGES: Final = 1 << 18
"""32 bytes each. A table of 100 million rows has some 400 rows in each."""

_LANES: Final = Struct("<QQ")
_LANE: Final = (1 << 64) - 1

assert _LANES.size == FINGERPRINT_BYTES


def range_of(key: Key, count: int) -> int:
    """The range of a key; ``count`` is a power of two."""
    return crc32(key) & (count - 1)


@dataclass(frozen=True, slots=True)
class RangeGroup:
    """Ranges that are looked into together. ``keys`` is about how many they hold on the side that has more."""

    ranges: frozenset[int]
    keys: int


class Ranges:
    """Both sides in one: one side adds what the other subtracts, so the sum of an equal range is zero. Fingerprints are
    summed as two numbers modulo 2**64. Different rows have a sum of zero with a chance of 2**-128."""

    def __init__(self, count: int = RANGES) -> None:
        assert count & (count - 1) == 0, "a power of two"
        self.count = count
        self._low = array("Q", bytes(8 * count))
        self._high = array("Q", bytes(8 * count))
        self._expected = array("Q", bytes(8 * count))
        self._stored = array("Q", bytes(8 * count))

    def add_expected(self, key: Key, row_fingerprint: Fingerprint) -> None:
        index = range_of(key, self.count)
        low, high = _LANES.unpack(row_fingerprint)
        self._low[index] = (self._low[index] + low) & _LANE
        self._high[index] = (self._high[index] + high) & _LANE
        self._expected[index] += 1

    def add_stored(self, key: Key, row_fingerprint: Fingerprint) -> None:
        index = range_of(key, self.count)
        low, high = _LANES.unpack(row_fingerprint)
        self._low[index] = (self._low[index] - low) & _LANE
        self._high[index] = (self._high[index] - high) & _LANE
        self._stored[index] += 1

    @property
    def compared(self) -> int:
        return sum(1 for expected, stored in zip(self._expected, self._stored, strict=True) if expected or stored)

    def differing(self) -> list[int]:
        return [
            index
            for index, (low, high, expected, stored) in enumerate(
                zip(self._low, self._high, self._expected, self._stored, strict=True)
            )
            if low or high or expected != stored
        ]

    def groups(self, differing: Sequence[int], *, keys_max: int) -> Iterator[RangeGroup]:
        """The differing ranges in groups of at most ``keys_max`` keys. A larger range is a group of its own."""
        ranges: list[int] = []
        keys = 0
        for index in differing:
            range_keys = max(self._expected[index], self._stored[index])
            if ranges and keys + range_keys > keys_max:
                yield RangeGroup(frozenset(ranges), keys)
                ranges, keys = [], 0
            ranges.append(index)
            keys += range_keys
        if ranges:
            yield RangeGroup(frozenset(ranges), keys)
