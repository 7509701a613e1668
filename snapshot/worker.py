"""A process that copies parts of tables beside others, all under one snapshot, and commits them by itself.

It tells the process that started it what is committed. That one alone writes the state. Each worker has a transactional
id of its own: whoever takes over fences them all. It ends when the other one does.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

import psycopg

from cdc.capture.settings import COPY_WORKERS_MAX
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connection_error
from cdc.protocol.envelope import TableEncoder
from cdc.stream.row_encoding import chosen_row_encoding
from snapshot.copy import TRANSACTION_AGE_MAX_S
from snapshot.ranges import Part
from snapshot.row_events import RowEvents
from snapshot.table_reader import SnapshotReader


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers of one copy share. ``tables`` are all that they may be given, ``filters`` their conditions."""

    pipeline: Pipeline
    snapshot_name: str
    consistent_point: int
    epoch: int
    commit_time_ms: int
    database: str
    version: str
    tables: Mapping[TableName, Table]
    filters: Mapping[TableName, str]


@dataclass(frozen=True, slots=True)
class Ready:
    """It has the snapshot and the locks, and has fenced whoever had its transactional id before."""


@dataclass(frozen=True, slots=True)
class Committed:
    """So many more rows and bytes of a part are committed. ``is_last``: that was all of it."""

    part: Part
    rows: int
    size: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """It has ended, by an error that may pass or that somebody has to see to."""

    may_pass: bool
    message: str
    hint: str | None


Report = Ready | Committed | Failed


class _Ended(Exception):
    """The process that started this one wants no more, or has ended."""


def copy_publisher(
    pipeline: Pipeline, number: int, *, while_waiting: Callable[[], None] = lambda: None
) -> TransactionalPublisher:
    """The publisher of a worker; not started yet."""
    return TransactionalPublisher(
        pipeline.kafka.client(),
        prefix=pipeline.name,
        transactional_id=f"{pipeline.name}.{pipeline.slot}.copy{number}",
        queue_bytes=pipeline.capture.queue_bytes,
        max_message_bytes=pipeline.kafka.topics.max_message_bytes,
        while_waiting=while_waiting,
    )


def fence_workers(pipeline: Pipeline, *, while_waiting: Callable[[], None]) -> None:
    """End what workers of an earlier process have open, and keep them from committing more. Raises Unavailable."""
    for number in range(COPY_WORKERS_MAX):
        publisher = copy_publisher(pipeline, number, while_waiting=while_waiting)
        try:
            publisher.start()
        finally:
            publisher.close()


def work(number: int, job: Job, pipe: Connection) -> None:
    """Copy the parts that come through the pipe, one after the other, until there are no more. Raises nothing."""
    for name in (signal.SIGINT, signal.SIGTERM):  # a whole group may get them: the other process decides
        signal.signal(name, signal.SIG_IGN)
    worker = _Worker(number, job, pipe)
    try:
        worker.run()
    except (_Ended, EOFError, OSError):
        return
    except (psycopg.Error, LockstepError) as raised:
        error = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
        with contextlib.suppress(_Ended):
            worker.report(Failed(isinstance(error, Unavailable), error.message, error.hint))


class _Worker:
    def __init__(self, number: int, job: Job, pipe: Connection) -> None:
        self._number = number
        self._job = job
        self._pipe = pipe
        self._events: dict[TableName, RowEvents] = {}

    def run(self) -> None:
        job, pipeline = self._job, self._job.pipeline
        publisher = copy_publisher(pipeline, self._number, while_waiting=self._heed_end)
        reader = self._reader()
        try:
            reader.join(job.tables, job.filters)
            publisher.start()
            self.report(Ready())
            while (part := self._pipe.recv()) is not None:
                self._copy(part, reader, publisher)
        finally:
            publisher.close()
            reader.close()

    def _reader(self) -> SnapshotReader:
        """Raises Unavailable also where the snapshot is gone: the connection that has exported it was lost."""
        pipeline = self._job.pipeline
        try:
            return SnapshotReader(
                pipeline.source, self._job.snapshot_name, lock_timeout_ms=pipeline.snapshot.lock_timeout_ms
            )
        except psycopg.Error as error:
            raise Unavailable(f"a worker can't read the snapshot: {connection_error(error).message}") from error

    def report(self, report: Report) -> None:
        """Tell the other process. Raises _Ended where there is none."""
        try:
            self._pipe.send(report)
        except OSError:
            raise _Ended from None

    def _heed_end(self) -> None:
        """Whatever comes while a part is copied says that this is the end: ``None``, or the end of the pipe."""
        if self._pipe.poll():
            raise _Ended

    def _copy(self, part: Part, reader: SnapshotReader, publisher: TransactionalPublisher) -> None:
        settings = self._job.pipeline.capture
        topic = table_topic(self._job.pipeline.name, part.table)
        events = self._events_of(part.table)
        rows = size = 0
        opened_s = time.monotonic()

        def commit(*, is_last: bool) -> None:
            nonlocal rows, size, opened_s
            self._heed_end()
            publisher.commit_events()
            self.report(Committed(part, rows, size, is_last))
            rows = size = 0
            opened_s = time.monotonic()

        def commit_if_due() -> None:
            is_full = rows >= settings.batch_rows or size >= settings.batch_bytes
            if is_full or (rows and time.monotonic() - opened_s > TRANSACTION_AGE_MAX_S):
                commit(is_last=False)
            else:
                self._heed_end()

        for lines in reader.part(self._job.tables[part.table], part, while_waiting=commit_if_due):
            if not rows:
                opened_s = time.monotonic()
            pairs = events.of_lines(lines)
            publisher.send_rows(topic, pairs)
            rows += len(pairs)
            size += sum(len(value) for _, value in pairs)
            commit_if_due()
        commit(is_last=True)

    def _events_of(self, name: TableName) -> RowEvents:
        known = self._events.get(name)
        if known is None:
            job = self._job
            encoder = TableEncoder(
                job.tables[name], server=job.pipeline.name, database=job.database, version=job.version
            )
            known = self._events[name] = RowEvents(
                encoder,
                chosen_row_encoding().kernel(encoder),
                epoch=job.epoch,
                consistent_point=job.consistent_point,
                commit_time_ms=job.commit_time_ms,
            )
        return known
