"""What a task reports to the driver while a batch goes on: its position, every so often, or that it is alive."""

import time
from collections.abc import Callable

from jobs.executor.driver_line import ALIVE_S, REPORT_S, DriverLine, TaskReport
from jobs.executor.result import Result
from jobs.offsets import Offsets


class Reports:
    """Takes what is to be reported out of a task's result, so that it is counted once."""

    def __init__(self, line: DriverLine | None, result: Result, came: Callable[[], int] = lambda: 0) -> None:
        """Without a ``line`` no report is ever due. ``came`` grows with the task's progress, even if nothing is
        applied."""
        self._line = line
        self._result = result
        self._came = came
        # What was reported to the driver, and the value of ``came`` then.
        self._sent: Offsets = {}
        self._sent_came = 0
        self._sent_s = time.monotonic()

    @property
    def has_moved(self) -> bool:
        """Whether more was applied since the last report."""
        return self._result.next_offsets != self._sent

    def is_due(self, now_s: float, *, has_news: bool) -> bool:
        """Whether to report now: news soon, otherwise that the task is alive."""
        return self._line is not None and now_s - self._sent_s >= (REPORT_S if has_news else ALIVE_S)

    def sign_of_life(self, now_s: float, *, has_got_on: bool) -> TaskReport:
        """A report that only says that the task is alive. The position follows later."""
        self._sent_s = now_s
        return TaskReport(has_got_on=has_got_on)

    def take(self, now_s: float) -> TaskReport:
        """The next report. The offsets also stay in the result. Counts wait until what they count is applied."""
        result, came = self._result, self._came()
        has_got_on, self._sent_came, self._sent_s = came > self._sent_came, came, now_s
        moved = {at: offset for at, offset in result.next_offsets.items() if self._sent.get(at) != offset}
        if not moved:
            return TaskReport(has_got_on=has_got_on)
        taken = TaskReport(
            result.rows, result.applied, result.stale, result.commit_time_ms, moved, has_got_on=has_got_on
        )
        result.rows = result.applied = result.stale = 0
        self._sent = dict(result.next_offsets)
        return taken

    def send(self, report: TaskReport) -> None:
        """Send the driver a report that was taken when due."""
        assert self._line is not None
        self._line.send_report(report)
