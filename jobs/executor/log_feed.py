"""Shared by tasks that apply whole transactions: reads topics and progress records into a ``ViewLog``."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Final

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import ForeignRecord
from cdc.protocol.control_records import ProgressRecord
from jobs.executor.log_reader import Client, Polled, Range
from jobs.executor.view_log import ViewLog
from jobs.offsets import Offsets
from sinks.contract import TopicPartition

STALLED_S: Final = 10.0
"""A task that hasn't read for so long counts as behind: the next records may be compacted."""


class LogFeed:
    """Reads ``topics`` for one batch. Raises as ``ProgressReader``."""

    def __init__(
        self, client: Client, log: ViewLog, *, pipeline: str, progress_topic: str, topics: Sequence[str]
    ) -> None:
        self._client = client
        self.log = log
        self._pipeline = pipeline
        self._progress_topic = progress_topic
        self._topics = topics
        # When records were last taken.
        self._taken_s = time.monotonic()

    @cached_property
    def cluster(self) -> TopicAdmin:
        return TopicAdmin(self._client)

    def begin(self, starts: Mapping[TopicPartition, int]) -> list[Range]:
        """Let the log catch up to the topics' present ends. Returns what to follow, from ``starts`` on; the last range
        is that of the progress records."""
        # The first answer is a record whose bounds are the present ends of all topics.
        progress = ProgressReader(self._client, self._pipeline, self._topics)
        with closing(progress):
            for record in progress.new_records():
                self.log.add_record(record)
            following = progress.next_offset
        ends = self._ends()
        self._taken_s = time.monotonic()
        self.log.catch_up(ends, self._taken_s)
        wanted = [Range(*at, starts.get(at), max(end, starts.get(at, 0))) for at, end in ends.items()]
        return [*wanted, Range(self._progress_topic, 0, following, following)]

    def take(self, polled: Polled) -> int:
        """Give the log what was polled. Returns how many records of tables there were."""
        log, now_s = self.log, time.monotonic()
        if not log.is_behind and (now_s - self._taken_s > STALLED_S or log.is_late(now_s)):
            log.catch_up(self._ends(), now_s)
        self._taken_s, rows = now_s, 0
        for batch in polled.records:
            if batch.column("topic")[0].as_py() == self._progress_topic:
                for value in batch.column("value").to_pylist():
                    if (record := _record(value)) is not None:
                        log.add_record(record)
            else:
                log.add(batch)
                rows += batch.num_rows
        log.reach(self.of_topics(polled.ends))
        if log.is_behind and log.is_at_target and not log.has_caught_up(time.monotonic()):
            log.catch_up(self._ends(), time.monotonic())
        return rows

    @property
    def read(self) -> Offsets:
        """The next offsets of the topics that are read."""
        return self.of_topics(self.log.next_offsets)

    def of_topics(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """The offsets of the topics that are read."""
        return {at: offset for at, offset in offsets.items() if at[0] in self._topics}

    def _ends(self) -> Offsets:
        return self.cluster.end_offsets(partitions_of(self._topics, self.cluster.partition_counts(self._topics)))


def _record(value: bytes | None) -> ProgressRecord | None:
    """None for a foreign record, as in ``ProgressReader``."""
    try:
        return ProgressRecord.from_bytes(value, "a record of the progress topic")
    except ForeignRecord:
        return None
