"""All tests in parts that share one set of servers: ``python -m tests``, and with ``--soak`` those that take too long.

What is ``busy`` runs first and alone, on servers that hold nothing yet. The others follow in several processes. The
last line is pytest's closing line for all parts together.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.services import shared_servers

# Most tests of capture wait for a server half of their time.
PROCESSES = 2 * (os.cpu_count() or 1)
BESIDE = ("-n", str(PROCESSES), "--dist", "loadfile")

CHANGE = (
    ("busy and not soak",),
    ("not busy and not soak", *BESIDE),
)
# Hypothesis tries more there, so its tests are among them.
SOAK = (
    ("busy and soak",),
    ("(soak or hypothesis) and not busy", *BESIDE),
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
    with tempfile.TemporaryDirectory() as reports, shared_servers() as servers:
        os.environ.setdefault("LOCKSTEP_TEST_STACK", str(servers))
        codes = [
            _run(part, Path(reports) / f"{number}.xml", options.arguments)
            for number, part in enumerate(SOAK if options.soak else CHANGE)
        ]
        counts = sum((_counts(report) for report in sorted(Path(reports).iterdir())), Counter[str]())
    print(closing_line(counts, time.monotonic() - began), flush=True)
    return next((code for code in codes if code), 0)


def _run(part: tuple[str, ...], report: Path, arguments: list[str]) -> int:
    marks, *others = part
    command = ["-m", "pytest", "-m", marks, *others, "--durations=30", f"--junitxml={report}", *arguments]
    return subprocess.run([sys.executable, *command], check=False).returncode


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
