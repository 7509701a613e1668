"""A view task's reports to the driver, and which of them the driver has stored."""

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from jobs.executor.driver_line import DriverLine, TaskReport
from jobs.executor.log_feed import LogFeed
from jobs.executor.reports import Reports
from jobs.executor.result import Result
from jobs.executor.view_building import FiguresNow
from jobs.offsets import Offsets

KEPT_S: Final = 10.0
"""How long a shard waits for its rejections to be stored. After that they come with the batch's result."""


class SinkProgress:
    """What is known to be in the sink's progress, as next offsets, and which rejections the driver has stored. A batch
    has one of these for all its attempts and builds."""

    def __init__(self, stored: Offsets, rejected: Mapping[tuple[str, bytes], str]) -> None:
        """``rejected`` are the earlier rejections, each with its tag."""
        self.offsets: Offsets = dict(stored)
        self.rejected = dict(rejected)
        self._not_stored: deque[Offsets] = deque()

    def send(self, offsets: Offsets) -> None:
        """A report with these offsets was sent."""
        self._not_stored.append(dict(offsets))

    @property
    def not_stored(self) -> int:
        """How many reports the driver hasn't confirmed as stored."""
        return len(self._not_stored)

    def hear(self, times: int) -> None:
        """So many more reports are stored."""
        for _ in range(times):
            self.offsets |= self._not_stored.popleft()


class ViewReports:
    """The reports of one attempt to maintain a view. Without a ``line`` nobody gets them."""

    def __init__(
        self,
        line: DriverLine | None,
        result: Result,
        progress: SinkProgress,
        feed: LogFeed,
        figures: FiguresNow,
        *,
        goes_on: bool,
    ) -> None:
        """``feed`` says how far the task has read. A batch that ends with the log only reports a build."""
        self._line = line
        self._result = result
        self.progress = progress
        self.figures = figures
        self._goes_on = goes_on
        self.feed = feed
        self._reports = Reports(line, result, lambda: feed.log.came)

    @property
    def are_heard(self) -> bool:
        """Whether there is a driver at the other end."""
        return self._line is not None

    @property
    def is_over(self) -> bool:
        """Whether the driver has ended the batch."""
        return self._goes_on and self._line is not None and self._line.is_over()

    def hear(self) -> None:
        """Learn what the driver has stored."""
        if self._line is not None:
            self.progress.hear(self._line.take_stored())

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext() if self._line is None else self._line.at_work_on(self.feed.read)

    def send(self, now_s: float) -> None:
        """Report the position to the driver, if that is due."""
        has_news = self.figures.building is not None or (self._goes_on and self._reports.has_moved)
        if not self._reports.is_due(now_s, has_news=has_news):
            return
        report = self._reports.take(now_s) if self._goes_on else self._reports.sign_of_life(now_s, has_got_on=False)
        report.view, report.shard = self.figures(), self._result.shard
        report.read = self.feed.read if self.feed.log.waits else {}
        self._reports.send(report)
        self.progress.send(self._result.next_offsets)

    def are_kept(self) -> bool:
        """Have the driver store a shard's rejections now, and forget void ones. Returns whether it has. The driver
        reads a batch's result only when all of its tasks have ended, and a task that builds a state ends late."""
        return self._result.shard is not None and self.keeps_now()

    def keeps_now(self) -> bool:
        """As ``are_kept``, whether or not the view is divided."""
        result, line = self._result, self._line
        if line is None:
            return False
        line.send_report(TaskReport(rejected=result.rejected, resolved=result.resolved, shard=result.shard))
        self.progress.send({})
        line.wait_stored(self.progress.not_stored, KEPT_S)
        self.progress.hear(line.take_stored())
        if self.progress.not_stored:
            return False
        for row in result.resolved:
            self.progress.rejected.pop(row, None)
        self.progress.rejected |= {(event.position.topic, event.key): event.tag for event in result.rejected}
        result.rejected, result.resolved = [], []
        return True
