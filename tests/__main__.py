"""All tests in parts that share one set of servers: ``python -m tests``, and with ``--soak`` those that take too long.

What must be ``alone`` runs first, on servers that hold nothing yet, and beside it what asks no server. What is ``busy``
follows, one test after the other. All others run beside that, in several processes which take what it leaves of the
processor. The last line is pytest's closing line for all parts together.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from tests.services import shared_servers


@dataclass(frozen=True)
class Part:
    """Tests that are chosen by their marks, and how pytest runs them."""

    marks: str
    options: tuple[str, ...] = ()
    niceness: int = 0


# Most of these tests wait for a server half of their time, and the busy ones leave half of the processor.
BESIDE = ("-n", str(max(2, 3 * (os.cpu_count() or 1) // 2)), "--dist", "loadfile")

# The parts of a step run beside each other.
Steps = tuple[tuple[Part, ...], ...]

CHANGE: Steps = (
    (Part("alone and not soak"), Part("unit and not busy and not alone and not soak", niceness=19)),
    (
        Part("busy and not alone and not soak"),
        Part("not unit and not busy and not alone and not soak", BESIDE, niceness=10),
    ),
)
# Hypothesis tries more there, so its tests are among them.
SOAK: Steps = (
    (Part("alone and soak"),),
    (Part("busy and not alone and soak"), Part("(soak or hypothesis) and not busy and not alone", BESIDE, niceness=10)),
)


def main() -> int:
    """Run all parts, also after one has failed; the exit code is that of the first that did."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--soak", action="store_true", help="run what is too long for every change")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the servers are stopped all the same
    if options.soak:
        os.environ["LOCKSTEP_HYPOTHESIS"] = "soak"
    began = time.monotonic()
    codes: list[int] = []
    with tempfile.TemporaryDirectory() as reports, shared_servers() as servers:
        os.environ.setdefault("LOCKSTEP_TEST_STACK", str(servers))
        for number, step in enumerate(SOAK if options.soak else CHANGE):
            codes += _run(step, Path(reports) / str(number), options.arguments)
        counts = sum((_counts(report) for report in sorted(Path(reports).rglob("*.xml"))), Counter[str]())
    print(closing_line(counts, time.monotonic() - began), flush=True)
    return next((code for code in codes if code), 0)


def _run(step: Sequence[Part], reports: Path, arguments: Sequence[str]) -> list[int]:
    """Run parts beside each other. The first one's output is seen at once, that of the others when they are done."""
    reports.mkdir()
    running: list[subprocess.Popen[bytes]] = []
    outputs: list[Path] = []
    try:
        for number, part in enumerate(step):
            report = reports / f"{number}.xml"
            if number == 0:
                running.append(_start(part, report, arguments, output=None))
                continue
            outputs.append(report.with_suffix(".log"))
            with outputs[-1].open("wb") as output:
                running.append(_start(part, report, arguments, output=output))
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            if process.poll() is None:  # interrupted
                process.terminate()
                process.wait()
        for path in outputs:
            sys.stdout.buffer.write(path.read_bytes())
            sys.stdout.flush()
    return codes


def _start(part: Part, report: Path, arguments: Sequence[str], *, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-m", part.marks, *part.options, "--durations=30"]
    process = subprocess.Popen(
        [*command, f"--junitxml={report}", *arguments], stdout=output, stderr=None if output is None else output
    )
    if part.niceness:
        os.setpriority(os.PRIO_PROCESS, process.pid, part.niceness)  # what it starts has the same
    return process


def _counts(report: Path) -> Counter[str]:
    """How many tests ended how. A file that pytest wrote to a directory of ours."""
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        outcomes = [outcome.tag for outcome in case if outcome.tag in ("failure", "error", "skipped")]
        xfailed = any(outcome.get("type") == "pytest.xfail" for outcome in case.iter("skipped"))
        counts["xfailed" if xfailed else outcomes[0] if outcomes else "passed"] += 1
    return counts


def closing_line(counts: Counter[str], seconds: float) -> str:
    """As pytest writes it: ``=== 2 failed, 10 passed in 12.34s (0:00:12) ===``."""
    words = {
        "failure": "failed",
        "passed": "passed",
        "skipped": "skipped",
        "xfailed": "xfailed",
        "error": "error" if counts["error"] == 1 else "errors",
    }
    outcomes = [f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome]]
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f" {', '.join(outcomes) or 'no tests ran'} in {seconds:.2f}s ({hours}:{minutes:02}:{rest:02}) "
    return text.center(80, "=")


if __name__ == "__main__":
    raise SystemExit(main())
