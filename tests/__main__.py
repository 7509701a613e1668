"""All tests in parts that share one set of servers: ``python -m tests``, and with ``--soak`` those that take too long.

What must be ``alone`` runs first, on servers that hold nothing yet, and beside it what asks no server. What is ``busy``
follows, one test after the other. All others run beside that, in several processes which take what it leaves of the
processor. When these are done, a second process takes a share of what is busy. The last line is pytest's closing line
for all parts together.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.services import shared_servers


@dataclass(frozen=True)
class Part:
    """Tests that are chosen by their marks, and how pytest runs them. ``is_shared``: another part has the same tests.
    ``files``: loads only files that may have such tests, by their part in ``tests.part_files``."""

    marks: str
    options: tuple[str, ...] = ()
    niceness: int = 0
    is_shared: bool = False
    files: str = ""


# Most of these tests wait for a server half of their time, and the busy ones leave half of the processor.
BESIDE = ("-n", str(max(2, 3 * (os.cpu_count() or 1) // 2)), "--dist", "loadfile")
# Tests that are alone wait half of their time as well, and these tests never wait.
BESIDE_ALONE = ("-n", str(max(2, os.cpu_count() or 1)), "--dist", "loadfile")

# The lanes of a step run beside each other, and the parts of a lane one after the other.
Lane = tuple[Part, ...]
Steps = tuple[tuple[Lane, ...], ...]


def _beside_each_other(busy: str, others: str, files: str = "") -> tuple[Lane, ...]:
    return (
        (Part(busy, is_shared=True, files="busy"),),
        (
            Part(others, BESIDE, niceness=10, files=files),
            Part(busy, ("--backwards",), niceness=10, is_shared=True, files="busy"),
        ),
    )


CHANGE: Steps = (
    (
        (Part("alone and not soak", files="alone"),),
        (Part("unit and not busy and not alone and not soak", BESIDE_ALONE, niceness=19, files="unit"),),
    ),
    _beside_each_other("busy and not alone and not soak", "not unit and not busy and not alone and not soak", "others"),
)
# Hypothesis tries more there, so its tests are among them.
SOAK: Steps = (
    ((Part("alone and soak", files="alone"),),),
    _beside_each_other("busy and not alone and soak", "(soak or hypothesis) and not busy and not alone"),
)


def main() -> int:
    """Run all parts, even after a failure; returns the exit code of the first that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("--soak", action="store_true", help="run what is too long for every change")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stop the servers all the same
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


def _run(step: Sequence[Lane], reports: Path, arguments: Sequence[str]) -> list[int]:
    """Run lanes beside each other. The first one's output shows at once, the others' when all are done."""
    reports.mkdir()
    runs = [_LaneRun(lane, reports / str(number), arguments, is_seen=not number) for number, lane in enumerate(step)]
    try:
        with ThreadPoolExecutor(len(runs)) as pool:
            futures = [pool.submit(run.run) for run in runs]
            try:
                return [code for future in futures for code in future.result()]
            except BaseException:  # interrupted
                for run in runs:
                    run.stop()
                raise
    finally:
        for output in sorted(reports.rglob("*.log")):
            sys.stdout.buffer.write(output.read_bytes())
            sys.stdout.flush()


class _LaneRun:
    """A lane. One part runs at a time."""

    def __init__(self, lane: Lane, reports: Path, arguments: Sequence[str], *, is_seen: bool) -> None:
        reports.mkdir()
        self._lane = lane
        self._reports = reports
        self._arguments = arguments
        self._is_seen = is_seen
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def run(self) -> list[int]:
        """The exit codes of the parts, in order."""
        codes = []
        for number, part in enumerate(self._lane):
            with self._lock:
                if self._is_stopped:
                    break
                self._running = process = self._start(part, self._reports / f"{number}.xml")
            codes.append(process.wait())
        return codes

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._running is not None and self._running.poll() is None:
                self._running.terminate()

    def _start(self, part: Part, report: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pytest", "-m", part.marks, "--durations=30", f"--junitxml={report}"]
        if part.files:
            command += ["-p", "tests.part_files", f"--part={part.files}"]
        if part.is_shared:
            claims = self._reports.parent / "claims"
            claims.mkdir(exist_ok=True)
            command += ["-p", "tests.sharing", f"--claims={claims}"]
        command += [*part.options, *self._arguments]
        if self._is_seen:
            process = subprocess.Popen(command)
        else:
            with report.with_suffix(".log").open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output)
        if part.niceness:
            os.setpriority(os.PRIO_PROCESS, process.pid, part.niceness)  # its children inherit it
        return process


def _counts(report: Path) -> Counter[str]:
    """How many tests ended how. pytest wrote the file to a directory of ours."""
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
