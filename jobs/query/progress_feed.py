"""Progress records -> the progress of one query."""

from dataclasses import replace
from threading import Event

from cdc.kafka.control_topics import ProgressReader
from cdc.protocol.control_records import ProgressRecord
from jobs.executor.task_input import Task
from jobs.query.captured_tables import CapturedWatch
from jobs.query.log_bell import Listener
from jobs.query.progress import ProgressKeeper
from jobs.query.topic_watch import TopicWatch
from jobs.report import Reporter, WatermarkRaised


class ProgressFeed:
    """Called by the thread that follows the watermark, and before the first batch."""

    def __init__(
        self,
        task: Task,
        reader: ProgressReader,
        bell: Listener,
        topics: TopicWatch,
        keeper: ProgressKeeper,
        captured: CapturedWatch | None,
        *,
        on_change: Event | None,
        report: Reporter,
    ) -> None:
        """``captured`` says whether the sink should have other tables by now. ``on_change`` is then set if it is given:
        the query ends, and the next one begins with all of the records."""
        self._task = task
        self._reader = reader
        self._bell = bell
        self._topics = topics
        self._keeper = keeper
        self._captured = captured
        self._on_change = on_change
        self._report = report
        self._unlearned: list[ProgressRecord] = []

    def learn(self, *, is_last: bool = False) -> bool:
        """Returns whether there were new records. Raises PositionMismatch if a topic was recreated. ``is_last``: the
        last batch has ended, and the bell may not have rung yet for what it applied."""
        if not self._unlearned:  # while nobody answers, only these are stored
            self._unlearned = self._reader.new_records(None if is_last else self._bell.take_heard())
        records = self._unlearned
        if self._captured is not None and self._captured.has_changed(records):
            # The records aren't true of a table that the sink doesn't read.
            self._unlearned = []
            if self._on_change is not None:
                self._on_change.set()
            return bool(records)
        # A recreated topic's offsets restart, so all its bounds lie below what was applied of the old one.
        if records:
            self._topics.check_identities(self._reader.identities)
        self._unlearned = []
        known = records[-1].selection if records else ""
        selection = known if self._captured is None else self._captured.selection
        learned = map(self._of_captured, records)
        progress = self._keeper.learn(learned, selection=selection, known_at_ms=self._reader.known_at_ms)
        if progress is not None:
            position = progress.watermark_lsn, progress.commit_time_ms
            self._report(WatermarkRaised(self._task.sink, self._task.generation, *position))
        return bool(records)

    def close(self) -> None:
        self._reader.close()

    def _of_captured(self, record: ProgressRecord) -> ProgressRecord:
        """The record; if it was written with other captured tables, only its bounds count."""
        if self._captured is None or self._captured.holds(record):
            return record
        return replace(record, uncopied=tuple(self._task.tables))
