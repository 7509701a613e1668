"""Rows that are stored where nobody looks for them."""

from lockstep.verify.comparing.misplaced import possibly_misplaced, second_copies
from lockstep.verify.comparing.recheck import Rechecked
from lockstep.verify.report import Difference, Kind
from lockstep.verify.sides.sink import Copy

KEY = b'{"id":1}'
HELD_A, HELD_B = Copy("tag a", b"a"), Copy("tag b", b"b")


def misplaced(shown, doubled, rechecked):
    """Second copies, and rows that may be misplaced."""
    return second_copies(shown, doubled, rechecked), possibly_misplaced(shown, doubled, rechecked)


def test_a_second_copy_is_certain():
    same = Rechecked(copies={KEY: (HELD_A,)})

    assert misplaced({KEY: [HELD_A]}, {KEY}, same) == ({KEY: HELD_A}, {})
    assert misplaced({KEY: [HELD_B]}, {KEY}, same) == ({KEY: HELD_B}, {})
    assert misplaced({KEY: [HELD_A, HELD_B]}, {KEY}, same) == ({KEY: HELD_B}, {})


def test_a_second_copy_of_a_row_that_differs_is_a_difference_of_its_own():
    different = Rechecked(different={KEY: Difference(Kind.DIFFERENT, KEY, ("id",), "tag a")})

    assert misplaced({KEY: [HELD_A, HELD_B]}, {KEY}, different) == ({KEY: HELD_B}, {})


def test_a_row_that_changed_between_the_passes_is_not_misplaced():
    assert misplaced({KEY: [HELD_B]}, set(), Rechecked(copies={KEY: (HELD_A,)})) == ({}, {})


def test_a_row_that_is_not_found_under_its_key_may_be_misplaced():
    assert misplaced({KEY: [HELD_B]}, set(), Rechecked(copies={KEY: ()})) == ({}, {KEY: HELD_B})


def test_a_key_that_one_look_finds_twice_has_a_second_copy():
    assert misplaced({}, set(), Rechecked(copies={KEY: (HELD_A, HELD_B)})) == ({KEY: HELD_B}, {})
