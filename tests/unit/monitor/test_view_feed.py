from dataclasses import replace

from cdc.protocol.view_steps import ViewStep
from monitor.view_feed import Portion, StepCutter, ViewRecord


def row(offset: int) -> ViewRecord:
    return ViewRecord(offset, b'{"id":%d}' % offset, b"{}")


def step(end: int, *, is_complete: bool = True) -> ViewStep:
    return ViewStep("v", 1, 0, 100 + end, end, "run", is_complete)


def test_rows_are_passed_on_with_their_step() -> None:
    cutter = StepCutter(0)
    cutter.add(row(0))
    assert cutter.portion() is None
    cutter.add_step(step(2))
    assert cutter.portion() is None  # a row of it is missing
    cutter.add(row(1))
    cutter.add(row(2))
    assert cutter.portion() == Portion([row(0), row(1)], step(2))
    assert cutter.portion() is None


def test_a_step_without_rows_is_one() -> None:
    cutter = StepCutter(0)
    cutter.add_step(step(0))
    assert cutter.portion() == Portion([], step(0))
    later = replace(step(0), lsn=200)
    cutter.add_step(later)
    assert cutter.portion() == Portion([], later)


def test_no_step_counts_before_the_end_as_of_the_beginning() -> None:
    cutter = StepCutter(4)
    cutter.add(row(1))
    cutter.add_step(step(2))
    assert cutter.portion() is None
    cutter.add(row(3))
    cutter.add_step(step(4))
    assert cutter.portion() == Portion([row(1), row(3)], step(4))


def test_a_step_that_is_not_complete_says_nothing() -> None:
    cutter = StepCutter(0)
    cutter.add(row(0))
    cutter.add_step(step(1, is_complete=False))
    assert cutter.portion() is None


def test_rows_that_are_too_many_go_ahead_and_no_step_below_them_counts() -> None:
    cutter = StepCutter(0)
    for offset in range(5_000):
        cutter.add(row(offset))
    ahead = cutter.portion()
    assert ahead is not None
    assert ahead.step is None
    assert len(ahead.records) == 5_000
    cutter.add_step(step(4_000))
    assert cutter.portion() is None
    cutter.add_step(step(5_000))
    assert cutter.portion() == Portion([], step(5_000))


def test_the_last_row_of_a_step_may_be_compacted_away() -> None:
    cutter = StepCutter(9)
    cutter.add(row(3))
    cutter.add_step(step(9))
    assert cutter.portion() is None
    cutter.reach(10)
    assert cutter.portion() == Portion([row(3)], step(9))
