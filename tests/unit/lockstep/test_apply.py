"""What a new start of a sink reads again and leaves out."""

from lockstep.apply import Move


def test_records_before_and_after_what_is_applied_are_counted_apart() -> None:
    applied = {("t", 0): 10, ("t", 1): 10, ("t", 2): 10}
    start = {("t", 0): 4, ("t", 1): 13, ("t", 2): 10, ("t", 3): 5}
    assert Move.between(applied, start) == Move(again=6, left_out=8)


def test_a_start_at_what_is_applied_changes_nothing() -> None:
    assert Move.between({("t", 0): 10}, {("t", 0): 10}) == Move(again=0, left_out=0)
