"""The search finds every key that may differ, in bounded portions, and no other one when nothing changes."""

import random

import pytest

from lockstep.verify.canonical import fingerprint, key_of
from lockstep.verify.comparing.ranges import Ranges, range_of
from lockstep.verify.comparing.search import Candidates, Search
from lockstep.verify.sides.sink import SinkSide
from lockstep.verify.waiting import SyncPoint, Waiting
from sinks.contract import StoredRow
from tests.builders import column, table, tag

SHAPE = table(column("id", "int8"), column("value"))


def row(number, value="a"):
    return {"id": number, "value": value}


class Rows:
    """Rows of both sides, as lists."""

    name = "source"
    can_be_asked_often = True

    def __init__(self, rows):
        self._rows = rows

    def scan(self, of):
        """As a sink has to, and as the expected side has to, depending on who asks."""
        for values in self._rows:
            yield StoredRow({"id": values["id"]}, values, tag(1))

    def sync_point(self):
        return SyncPoint()


class Expected(Rows):
    def scan(self, of):
        for values in self._rows:
            key = key_of(of, values)
            yield key, fingerprint(of, key, values)


def searched(expected, stored, *, keys_max, ranges=64) -> tuple[Search, list[Candidates]]:
    waiting = Waiting(lambda: False)
    search = Search(
        SHAPE,
        Expected(expected),
        SinkSide(Rows(stored), waiting),
        keys_max=keys_max,
        report_count=lambda *_: None,
        ranges=ranges,
    )
    return search, list(search.candidates())


def keys(found_candidates):
    return sorted(int(key[6:-1]) for candidates in found_candidates for key in candidates.shown)


SMALL, LARGE = 1000, 30


@pytest.mark.parametrize("keys_max", [SMALL, LARGE])
def test_equal_sides_have_no_candidates_in_any_order(keys_max):
    rows = [row(n) for n in range(200)]

    search, candidates_found = searched(rows, list(reversed(rows)), keys_max=keys_max)

    assert keys(candidates_found) == []
    assert (search.counts.expected_rows, search.counts.sink_rows, search.counts.differing) == (200, 200, 0)
    assert 0 < search.counts.ranges <= 64


@pytest.mark.parametrize("keys_max", [SMALL, LARGE])
def test_every_kind_of_difference_is_a_candidate(keys_max):
    expected = [row(n) for n in range(200)]
    stored = [row(n, "b" if n == 5 else "a") for n in range(200) if n != 7] + [row(500)]

    search, candidates_found = searched(expected, stored, keys_max=keys_max)

    assert keys(candidates_found) == [5, 7, 500]
    assert 1 <= search.counts.differing <= 3
    shown = {key: copies for candidates in candidates_found for key, copies in candidates.shown.items()}
    assert [len(shown[b'{"id":%d}' % n]) for n in (5, 7, 500)] == [1, 0, 1]


@pytest.mark.parametrize("keys_max", [SMALL, LARGE])
@pytest.mark.parametrize("copies", [[row(5)], [row(5, "b")], [row(5), row(5)], [row(900), row(900)]], ids=str)
def test_a_second_copy_is_a_candidate_and_named_so(keys_max, copies):
    rows = [row(n) for n in range(200)]

    _, candidates_found = searched(rows, [*copies, *rows], keys_max=keys_max)

    number = copies[0]["id"]
    assert keys(candidates_found) == [number]
    assert [key for candidates in candidates_found for key in candidates.doubled] == [b'{"id":%d}' % number]


def test_two_rows_that_have_swapped_their_values_are_found():
    """Sums of keys and of values alone would not see it."""
    expected = [row(1, "a"), row(2, "b")]
    _, candidates_found = searched(expected, [row(1, "b"), row(2, "a")], keys_max=SMALL, ranges=1)

    assert keys(candidates_found) == [1, 2]


def test_a_large_table_comes_in_bounded_portions():
    expected = [row(n) for n in range(1000)]
    stored = [row(n, "b") for n in range(1000)]

    search, candidates_found = searched(expected, stored, keys_max=100, ranges=128)

    assert len(candidates_found) >= 10
    assert all(candidates.is_complete and len(candidates.shown) <= 100 for candidates in candidates_found)
    assert keys(candidates_found) == list(range(1000))
    assert search.counts.differing == search.counts.ranges


def test_more_candidates_than_fit_are_not_passed_over_in_silence():
    _, candidates_found = searched([], [row(n) for n in range(50)], keys_max=20)

    assert [len(candidates.shown) for candidates in candidates_found] == [20]
    assert not candidates_found[0].is_complete


def test_one_range_that_is_too_large_is_not_passed_over_in_silence():
    expected = [row(n) for n in range(200)]

    _, candidates_found = searched(expected, [row(n, "b") for n in range(200)], keys_max=20, ranges=1)

    assert not all(candidates.is_complete for candidates in candidates_found)


def test_ranges_find_one_wrong_row_among_many_whatever_the_order():
    order = random.Random(7)
    ranges = Ranges(1024)
    both = [(b'{"id":%d}' % n, bytes([n % 251] * 16)) for n in range(5000)]
    for key, value in order.sample(both, len(both)):
        ranges.add_expected(key, value)
    for key, value in order.sample(both, len(both)):
        ranges.add_stored(key, b"\xff" * 16 if key == b'{"id":77}' else value)

    assert ranges.differing() == [range_of(b'{"id":77}', 1024)]


def test_a_range_with_a_row_more_differs_though_the_sum_is_the_same():
    ranges = Ranges(2)
    ranges.add_expected(b"x", bytes(16))

    assert ranges.differing() == [range_of(b"x", 2)]


def test_groups_of_ranges_hold_so_many_keys_at_most():
    ranges = Ranges(64)
    for n in range(640):
        ranges.add_stored(b"%d" % n, b"\x01" * 16)
    groups = list(ranges.groups(ranges.differing(), keys_max=50))

    assert sum(group.keys for group in groups) == 640
    assert all(group.keys <= 50 or len(group.ranges) == 1 for group in groups)
    assert sum(len(group.ranges) for group in groups) == len(frozenset().union(*(group.ranges for group in groups)))
