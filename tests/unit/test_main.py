"""Running all tests: the closing line, and that no test is in two parts or in none."""

from collections import Counter
from itertools import combinations

import pytest
from _pytest.mark.expression import Expression

from tests.__main__ import CHANGE, SOAK, Steps, closing_line

MARKS = ("alone", "busy", "soak", "hypothesis", "unit")


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        (Counter(passed=10), "====================== 10 passed in 72.50s (0:01:12) ======================="),
        (
            Counter(passed=3, failure=2, error=1, xfailed=1),
            "=========== 2 failed, 3 passed, 1 xfailed, 1 error in 72.50s (0:01:12) ===========",
        ),
        (Counter(), "===================== no tests ran in 72.50s (0:01:12) ====================="),
    ],
)
def test_the_closing_line_is_pytests(counts: Counter[str], line: str) -> None:
    assert closing_line(counts, 72.5).strip("=") == line.strip("=")


@pytest.mark.parametrize("marks", [marks for count in range(6) for marks in combinations(MARKS, count)], ids=str)
def test_every_test_is_in_exactly_one_part_of_its_run(marks: tuple[str, ...]) -> None:
    def parts(run: Steps) -> int:
        found = [
            part
            for step in run
            for lane in step
            for part in lane
            if Expression.compile(part.marks).evaluate(lambda name, **_: name in marks)
        ]
        # Who shares parts runs each file once, in one of them.
        return len({part.marks if part.is_shared else id(part) for part in found})

    assert parts(CHANGE) == ("soak" not in marks)
    if {"busy", "alone"} & set(marks):
        assert parts(SOAK) == ("soak" in marks)
    else:
        assert parts(SOAK) == ("soak" in marks or "hypothesis" in marks)
