"""Records of a view's tables -> events, without those of left-out rows."""

import pyarrow as pa

from cdc.model.event import Events
from jobs.executor.decode import decode
from jobs.executor.deliver import tags_of, with_records
from jobs.executor.left_out_rows import LeftOutRows
from jobs.executor.result import Result
from jobs.executor.task_input import Task
from jobs.executor.view_reports import ViewReports


class ViewEvents:
    """Decodes what the view takes in, and has the driver store which rows were left out."""

    def __init__(self, task: Task, reports: ViewReports, result: Result) -> None:
        self._task = task
        self._reports = reports
        self._result = result
        self._left_out = LeftOutRows()
        self.are_kept_first = False
        """Whether the batch must end so that the driver stores these rows."""

    def decoded(self, records: pa.Table) -> Events:
        """The events of these records. A left-out row stays as it was."""
        decoded = decode(records, self._task)
        known = {row: tag for row, tag in self._reports.progress.rejected.items() if row[0] in self._task.tables}
        if known or self._left_out or decoded.rejections:
            tags = tags_of(self._task, decoded.events)
            self._left_out.take(with_records(decoded.rejections, records), tags, known)
        return decoded.events

    def report_rows(self) -> bool:
        """Whether the driver must store left-out rows before these records are taken in, since they aren't read again
        after that. Asks the driver now; if it doesn't answer, the rows are in the result."""
        if not self._left_out:
            return False
        self._result.rejected += self._left_out.rejected
        self._result.resolved += self._left_out.resolved
        if self._reports.keeps_now():
            self._left_out.forget()
            return False
        self.are_kept_first = self._result.has_more = True
        return True
