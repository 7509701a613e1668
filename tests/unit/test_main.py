"""Running all tests: the closing line, and that no test is in two parts or in none."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.__main__ import CHANGE, SOAK, Steps, closing_line
from tests.part_files import PARTS, UNIT, may_have

TESTS = Path(__file__).parents[1]

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


@pytest.mark.parametrize("folder", [TESTS / "live", UNIT[0]], ids=lambda folder: folder.name)
@pytest.mark.parametrize("marks", [marks for count in range(3) for marks in combinations(MARKS, count)], ids=str)
def test_a_part_loads_every_file_that_has_tests_of_it(folder: Path, marks: tuple[str, ...]) -> None:
    text = "".join(f"@pytest.mark.{mark}\n" for mark in marks)
    is_unit = folder in UNIT and not {"busy", "alone"} & set(marks)
    of_test = {*marks, *(["unit"] if is_unit else [])}
    parts = [part for run in (CHANGE, SOAK) for step in run for lane in step for part in lane if part.files]
    those = [part for part in parts if Expression.compile(part.marks).evaluate(lambda name, **_: name in of_test)]
    assert all(may_have(part.files, folder / "test_file.py", text) for part in those)


def test_each_part_but_that_of_others_loads_few_files() -> None:
    assert [may_have(part, TESTS / "live" / "test_file.py", "") for part in PARTS] == [False, False, False, True]
    assert [may_have(part, UNIT[0] / "test_file.py", "") for part in PARTS] == [False, False, True, False]


def test_no_test_gets_the_mark_of_a_part_from_another_file() -> None:
    """Else the text of its own file wouldn't say it."""
    shared = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_") and path != Path(__file__)]
    named = re.compile(r"mark\.(alone|busy|unit)\b")
    assert [path.name for path in shared if path.name != "part_files.py" and named.search(path.read_text())] == []


def test_no_test_of_a_unit_folder_gets_the_mark_live_from_another_file() -> None:
    """Else it would be in no part: the mark takes it out of `unit`, and its file wouldn't be loaded for the others."""
    shared = [
        path for path in TESTS.rglob("*.py") if not path.name.startswith("test_") and "mark.live" in path.read_text()
    ]
    modules = [".".join(path.relative_to(TESTS.parent).with_suffix("").parts) for path in shared]
    tests = [path for unit in UNIT for path in ([unit] if unit.is_file() else unit.rglob("*.py"))]
    assert modules, "it is of no use any more"
    assert [
        path.name
        for path in tests
        if path not in shared and any(f"from {module} import" in path.read_text() for module in modules)
    ] == []
