"""Run the suite on PostgreSQL 14 to 18: ``python -m tests.conformance [--major N]... [--case ID]... [--write]``."""

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stack.stack import Stack
from tests.conformance.case import MAJORS, Case
from tests.conformance.report import Verdict, is_whole, markdown, verdict, write_page
from tests.conformance.run import Complaints, Runner
from tests.conformance.server import source_server
from tests.conformance.suite import NOT_YET, cases
from tests.services import KAFKA_OVERRIDES, temporary_directory

_WIDTH = 120
_COLOURS = {Verdict.OK: "green", Verdict.FAILED: "bold red", Verdict.NOT_YET: "yellow", Verdict.NONE: "dim"}


def main() -> int:
    """Exit code 1 when a case failed. A case that is named runs also when it isn't supported yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--major", type=int, action="append", choices=MAJORS, help="a version of PostgreSQL; default all"
    )
    parser.add_argument("--case", action="append", metavar="ID", help="a case; default all that are supported")
    parser.add_argument("--write", action="store_true", help="write the table into docs/conformance.md")
    options = parser.parse_args()
    results: dict[int, Complaints] = {}
    with ExitStack() as closing:
        directory = closing.enter_context(temporary_directory())
        stack = _kafka(directory, closing)
        for major in sorted(options.major or MAJORS):
            results[major] = _run(major, directory, stack.endpoints().kafka_bootstrap, options.case)
    shown = [case for case in cases(MAJORS[-1]) if not options.case or case.id in options.case]
    _show(shown, results)
    if options.write and not options.case and is_whole(results):
        write_page(markdown(shown, results))
    failed = [
        case
        for case in shown
        for major, complaints in results.items()
        if verdict(case, major, complaints) is Verdict.FAILED
    ]
    return 1 if failed else 0


def _kafka(directory: Path, closing: ExitStack) -> Stack:
    """A stack that is up already (LOCKSTEP_TEST_STACK), or a broker of our own."""
    if existing := os.environ.get("LOCKSTEP_TEST_STACK"):
        return Stack(Path(existing), durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
    stack = Stack(directory, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
    closing.callback(stack.remove)
    stack.up(["kafka"])
    return stack


def _run(major: int, directory: Path, kafka_bootstrap: str, ids: list[str] | None) -> Complaints:
    began = time.monotonic()
    wanted = [
        case for case in cases(major) if case.since <= major and (case.id in ids if ids else case.id not in NOT_YET)
    ]
    with source_server(major, directory) as dsn:
        # The time makes names of topics unique on a broker that was up before.
        prefix = f"c{major}_{int(time.time())}"
        complaints = Runner(dsn, kafka_bootstrap, directory, prefix=prefix).run(wanted)
    sys.stderr.write(f"PostgreSQL {major}: {len(complaints)} cases in {time.monotonic() - began:.1f} s\n")
    return complaints


def _show(shown: list[Case], results: dict[int, Complaints]) -> None:
    table = Table("case", "what happens", *map(str, results))
    for case in shown:
        verdicts = [verdict(case, major, complaints) for major, complaints in results.items()]
        table.add_row(case.id, case.about, *(f"[{_COLOURS[word]}]{word}[/]" for word in verdicts))
    # Wide enough for one line a case, also where the output isn't a terminal.
    console = Console(width=max(Console().width, _WIDTH))
    console.print(table)
    for major, complaints_by_case in results.items():
        for name, complaints in complaints_by_case.items():
            for complaint in complaints:
                console.print(f"{name} on {major}: {complaint}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
