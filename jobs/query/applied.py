"""Stores and reports what the tasks of one query have applied."""

import time
from collections.abc import Callable

from cdc.model.errors import DataLost, LockstepError, PositionMismatch, Unavailable
from jobs.executor.driver_line import TaskReport
from jobs.executor.result import Result
from jobs.executor.task_input import Task
from jobs.query.rejections import Rejections
from jobs.query.threads import QueryState, store_reported
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_figures import FiguresKeeper
from jobs.query.whole_progress import WholeProgress
from jobs.report import BatchApplied, LacksRecord, Reporter, SinkWaiting
from sinks.contract import Progress


class Applied:
    """Takes tasks' reports during a batch, in the thread that listens to them, and the batch's result at its end."""

    def __init__(
        self,
        task: Task,
        progress: WholeProgress,
        rejections: Rejections,
        figures: FiguresKeeper,
        topics: TopicWatch,
        check_topics: Callable[[], None],
        state: QueryState,
        report: Reporter,
    ) -> None:
        """``check_topics`` raises PositionMismatch if a topic of the sink was recreated."""
        self._task = task
        self._progress = progress
        self._keeper = progress.keeper
        self._rejections = rejections
        self._figures = figures
        self._topics = topics
        self._check_topics = check_topics
        self._state = state
        self._report = report
        self.batch_id = -1
        """The current batch, or the last one."""
        self.part_began_s = 0.0
        """When the batch began, or when its last part was reported."""
        self._is_stored = True
        # Rejections stored since the last report.
        self._rejected = 0

    def hear(self, task_report: TaskReport) -> bool:
        """Take a task's report. Rejections come with the batch's result, except those of a view's shards. Returns
        whether this report and all earlier ones of the batch are stored."""
        # A task that is behind and makes no progress may be cut off, or its destination hangs: that must get reported.
        if task_report.is_at_work or not self._keeper.is_behind:
            self._state.heard_at = time.monotonic()
        figures = None if task_report.view is None else self._progress.figures(task_report.shard, task_report.view)
        if figures is not None:
            self._figures.take(figures)
        if task_report.read and self._progress.shards is None:  # other shards may not have read this
            self._keeper.read_to(task_report.read)
        if task_report.failure is not None:
            self._hear_failure(task_report.failure.error())
        if (task_report.rejected or task_report.resolved) and not self._keep(task_report):
            self._is_stored = False
            return False
        if not task_report.next_offsets:
            return self._is_stored
        self._topics.heard_of({topic for topic, _ in task_report.next_offsets})
        self._state.look_first()
        progress = store_reported(
            self._state, lambda: self._progress.store(task_report.next_offsets, shard=task_report.shard)
        )
        if progress is not None:
            self.report_part(task_report, progress)
            self._state.has_stored(progress.watermark_lsn)
        self._is_stored = progress is not None
        return self._is_stored

    def report_part(self, part: Result | TaskReport, progress: Progress) -> None:
        """Report a part of the batch, or the remainder at its end."""
        rejected, self._rejected = self._rejected, 0
        if isinstance(part, Result):
            rejected += len(part.rejected)
        began_s, self.part_began_s = self.part_began_s, time.monotonic()
        self._report(
            BatchApplied(
                sink=self._task.sink,
                generation=self._task.generation,
                batch_id=self.batch_id,
                rows=part.rows,
                applied=part.applied,
                stale=part.stale,
                rejected=rejected,
                duration_ms=round((self.part_began_s - began_s) * 1000),
                watermark_lsn=progress.watermark_lsn,
                commit_time_ms=progress.commit_time_ms,
            )
        )

    def keep_rejections(self, part: Result | TaskReport) -> None:
        """Store them. Raises as ``Rejections.keep``."""
        self._rejections.keep(part)

    def end_view(self, result: Result) -> None:
        """Store the view's last figures of the batch."""
        if result.view is not None:
            self._figures.take(result.view, is_last=True)

    def report_lacking(self, progress: Progress, *, awaits_copy: bool) -> None:
        """Report that the newest transactions aren't applied."""
        at = self._task.sink, self._task.generation, progress.watermark_lsn
        self._report(LacksRecord(*at, awaits_copy=awaits_copy))

    def _keep(self, task_report: TaskReport) -> bool:
        """Store rejections from the middle of a batch. Returns whether that succeeded: only then does the task go on.
        After Unavailable they come again with the batch's result. Errors that don't end by themselves end the query."""
        try:
            self._rejections.keep(task_report)
        except Unavailable as error:
            if isinstance(error, DataLost):
                self._state.fail(error)
            return False
        except Exception as error:
            self._state.fail(error)
            return False
        self._keeper.count_rejected(len(task_report.rejected))
        self._rejected += len(task_report.rejected)
        return True

    def _hear_failure(self, error: LockstepError) -> None:
        """Handle the failure of one shard of a view, while the batch may go on for long because another shard is built.
        Errors that don't end by themselves end the query, as they do at the end of a batch."""
        if isinstance(error, Unavailable) and not isinstance(error, DataLost):
            self._report(SinkWaiting(self._task.sink, error.message, error.retry_after_s))
            return
        try:
            if isinstance(error, PositionMismatch):
                self._check_topics()
        except LockstepError as named:
            error = named
        self._state.fail(error)
