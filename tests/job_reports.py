"""The reports of a job under test, and waiting for more of them."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from jobs.report import Report

Seen = dict[str, Any]
"""A report: its fields, and ``report``, the name of its class."""


def seen(report: Report) -> Seen:
    """A report as a dictionary; an error is its text."""
    fields: Seen = {"report": type(report).__name__}
    for name, value in asdict(report).items():
        # Like a report from another process, which comes through JSON.
        fields[name] = (
            str(value) if isinstance(value, Exception) else list(value) if isinstance(value, tuple) else value
        )
    return fields


class Reports:
    """Reports in the order in which they came. A subclass's ``poll`` says whether more may come."""

    def __init__(self) -> None:
        self.reports: list[Seen] = []
        self._arrived = threading.Condition()

    def poll(self) -> int | None:
        """The exit code once it has ended and all its reports are here, else None."""
        raise NotImplementedError

    def add(self, report: Seen) -> None:
        """Add a report and wake up those that wait for one."""
        with self._arrived:
            self.reports.append(report)
            self._arrived.notify_all()

    def wait_for(self, what: str, timeout_s: float = 300, since: int = 0, **fields: Any) -> Seen:
        """The first report of this class with these fields, from index ``since`` on."""
        return self.wait_until(
            lambda report: (
                report["report"] == what and all(report.get(name) == value for name, value in fields.items())
            ),
            timeout_s,
            since,
        )

    def wait_until(self, matches: Callable[[Seen], bool], timeout_s: float = 300, since: int = 0) -> Seen:
        """The first report that matches. Fails at the time-out, and if the job has ended without one."""
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                is_over = self.poll() is not None
                for report in self.reports[since:]:
                    if matches(report):
                        return report
                since = len(self.reports)
                remaining = deadline - time.monotonic()
                assert remaining > 0, f"no such report in {timeout_s:.0f} s; the last ones were {self.reports[-5:]}"
                assert not is_over, f"it has ended without such a report; the last ones were {self.reports[-5:]}"
                self._arrived.wait(min(remaining, 0.2))

    def total(self, field: str) -> int:
        return sum(report[field] for report in self.reports if report["report"] == "BatchApplied")

    def output(self) -> str:
        """The last reports except the many of watermarks, to explain a failed test."""
        telling = [report for report in self.reports if report["report"] != "WatermarkRaised"]
        return "\n".join(map(str, telling[-50:]))
