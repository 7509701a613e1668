"""What tasks share that take whole transactions: they read tables' topics and progress records into a ``ViewLog``."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Final

import pyarrow as pa

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import ForeignRecord
from cdc.protocol.control_records import ProgressRecord
from jobs.executor.log_reader import Client, Polled, Range, load_ranges, reader_for
from jobs.executor.long_batch import FETCH_WAIT_MS
from jobs.executor.result import Failure, Result, to_arrow
from jobs.executor.view_log import ViewLog
from jobs.offsets import Offsets
from sinks.contract import TopicPartition

_STALLED_S: Final = 10.0
"""Who hasn't read for so long is behind: what comes next may be compacted."""


class LogFeed:
    """Reads ``topics`` for one batch. Raises as ``LogReader.follow`` and ``ProgressReader``."""

    def __init__(
        self, client: Client, log: ViewLog, *, pipeline: str, progress_topic: str, topics: Sequence[str]
    ) -> None:
        self._client = client
        self._log = log
        self._pipeline = pipeline
        self._progress_topic = progress_topic
        self._topics = topics
        self._following = 0

    @cached_property
    def cluster(self) -> TopicAdmin:
        """What it asks the brokers with."""
        return TopicAdmin(self._client)

    def begin(self) -> Offsets:
        """Have the log catch up to where the topics end now, which this returns."""
        # The first answer is a record whose bounds are the ends of all topics as of now.
        progress = ProgressReader(self._client, self._pipeline, self._topics)
        with closing(progress):
            for record in progress.new_records():
                self._log.add_record(record)
            self._following = progress.next_offset
        ends = self._ends()
        self._log.catch_up(ends, time.monotonic())
        return ends

    def follow(self, starts: Mapping[TopicPartition, int], ends: Offsets) -> Generator[int]:
        """Read from ``starts`` on, after ``begin``, without end. Yields how many records came, every now and then."""
        log = self._log
        wanted = [Range(*at, starts.get(at), max(end, starts.get(at, 0))) for at, end in ends.items()]
        progress_range = Range(self._progress_topic, 0, self._following, self._following)
        with (
            reader_for(self._client, wanted, fetch_wait_ms=FETCH_WAIT_MS) as reader,
            closing(reader.follow([*wanted, progress_range])) as all_polled,
        ):
            polled_s = time.monotonic()
            for polled in all_polled:
                now = time.monotonic()
                if not log.is_behind and (now - polled_s > _STALLED_S or log.is_late(now)):
                    log.catch_up(self._ends(), now)
                polled_s = now
                yield self._take(polled)

    def of_topics(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """Those of the topics that are read."""
        return {at: offset for at, offset in offsets.items() if at[0] in self._topics}

    def _take(self, polled: Polled) -> int:
        log, rows = self._log, 0
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

    def _ends(self) -> Offsets:
        return self.cluster.end_offsets(partitions_of(self._topics, self.cluster.partition_counts(self._topics)))


def delivered(
    batches: Iterable[pa.RecordBatch], work: Callable[[Offsets, Result], None], *, close: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """One task's work, which is told how far ``batches`` say that the sink is, and what became of it.

    Nothing is raised. After a failure ``close`` is called: the next attempt opens everything anew.
    """
    result = Result()
    # A worker whose input isn't read to its end is thrown away.
    texts = [text for rows in batches for text in rows.column("ranges").to_pylist()]
    try:
        work({part.at: part.end for text in texts for part in load_ranges(text)}, result)
    except Exception as error:
        close()
        result.failures.append(Failure.of(error))
    yield to_arrow(result)


def _record(value: bytes | None) -> ProgressRecord | None:
    """None for what isn't ours, as ``ProgressReader`` has it."""
    try:
        return ProgressRecord.from_bytes(value, "a record of the progress topic")
    except ForeignRecord:
        return None
