"""What came out, case by case and version by version: for a terminal, and as Markdown for the README."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from tests.conformance.case import MAJORS, Case
from tests.conformance.run import Complaints
from tests.conformance.suite import NOT_YET

BEGIN = "<!-- conformance: written by `make conformance` -->"
END = "<!-- /conformance -->"


class Verdict(StrEnum):
    """``NONE``: the version doesn't know what the case is about."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_YET = "not yet"
    NONE = "-"


def verdict(case: Case, major: int, complaints: Complaints) -> Verdict:
    """A case that was meant to run and has no entry has failed: nothing is skipped without a word."""
    if case.since > major:
        return Verdict.NONE
    if case.id in complaints:
        return Verdict.FAILED if complaints[case.id] else Verdict.OK
    return Verdict.NOT_YET if case.id in NOT_YET else Verdict.FAILED


def markdown(cases: Sequence[Case], results: Mapping[int, Complaints]) -> str:
    """One row for each case; versions in order."""
    head = ["case", "what happens", *map(str, results)]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for case in cases:
        verdicts = [verdict(case, major, complaints) for major, complaints in results.items()]
        lines.append(f"| {' | '.join((case.id, case.about, *verdicts))} |")
    return "\n".join(lines)


def write_readme(path: Path, table: str) -> None:
    """Replace what is between the markers."""
    text = path.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


def rows_in_readme(path: Path) -> list[list[str]]:
    """The cells of the table between the markers, without its head."""
    table = path.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    return rows[2:]


def is_whole(results: Mapping[int, Complaints]) -> bool:
    """Whether every version was run: only then the table may replace the one in the README."""
    return tuple(results) == MAJORS
