"""What came out, case by case and version by version: for a terminal, and as Markdown for docs/conformance.md."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from tests.conformance.case import MAJORS, Case
from tests.conformance.run import Complaints
from tests.conformance.suite import NOT_YET
from tests.docs.generated import DOCS, lines_between, write_between

PAGE = DOCS / "conformance.md"
BEGIN = "<!-- conformance: written by `make conformance` -->"
END = "<!-- /conformance -->"


class Verdict(StrEnum):
    """``NONE``: the version doesn't know what the case is about."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_YET = "not yet"
    NONE = "-"


_WORDS = {Verdict.NONE: "not"}


def verdict(case: Case, major: int, complaints: Complaints, *, not_yet: Collection[str] = NOT_YET) -> Verdict:
    """A case that was meant to run and has no entry has failed: nothing is skipped without a word."""
    if case.since > major:
        return Verdict.NONE
    if case.id in complaints:
        return Verdict.FAILED if complaints[case.id] else Verdict.OK
    return Verdict.NOT_YET if case.id in not_yet else Verdict.FAILED


def markdown(cases: Sequence[Case], results: Mapping[int, Complaints]) -> str:
    """One row for each case, with the versions on which it didn't pass."""
    lines = ["| case | what happens |", "| --- | --- |"]
    for case in cases:
        others: dict[Verdict, list[str]] = {}
        for major, complaints in results.items():
            others.setdefault(verdict(case, major, complaints), []).append(str(major))
        others.pop(Verdict.OK, None)
        exceptions = "; ".join(f"{_WORDS.get(found, found)} on {', '.join(on)}" for found, on in others.items())
        lines.append(f"| {case.id} | {case.about}{f' ({exceptions})' if exceptions else ''} |")
    return "\n".join(lines)


def write_page(table: str) -> None:
    """Replace the table of the page. Raises ValueError when a marker is missing."""
    write_between(PAGE, BEGIN, END, table.splitlines())


def table_in_page() -> str:
    """The table that the page has now."""
    return "\n".join(lines_between(PAGE, BEGIN, END))


def is_whole(results: Mapping[int, Complaints]) -> bool:
    """Whether every version was run: only then the table may replace the one of the page."""
    return tuple(results) == MAJORS
