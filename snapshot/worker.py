"""A process that copies parts of tables beside others, all under one snapshot, and commits them itself.

Each worker has its own transactional id, so a process that takes over can fence them all. With the last rows of a part,
it commits the part's record in the ledger. It reports what is committed to the process that started it; only that one
writes the state. It holds the lock of one table until it gets a part of another one, or nothing. It ends when the other
process does.
"""

import contextlib
import gc
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import psycopg

from cdc.capture.settings import COPY_WORKERS_MAX
from cdc.event_format.encode import TableEncoder
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.record_limits import RecordLimit
from cdc.kafka.topic_names import STATE, control_topic, table_topic
from cdc.kafka.transactions import Transactions
from cdc.model.errors import LockstepError, TransactionTimedOut, Unavailable
from cdc.model.table import Table, TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.protocol.copy_ledger import CopiedRange
from cdc.protocol.membership import Membership
from cdc.row_rate import RowRate
from cdc.stream.row_encoding import chosen_row_encoding
from snapshot.ledger import CopyRun, FirstSnapshot, condition
from snapshot.part_copy import PartCopies
from snapshot.ranges import Part
from snapshot.row_events import RowEvents
from snapshot.table_reader import APPLICATION, SnapshotReader, TableLocked

_LINGER_MS: Final = 50
"""How long a batch of a partition waits for more rows, unless it is full. A commit doesn't wait for that."""

_GARBAGE_AT: Final = 100_000
"""The number of objects after which Python looks for garbage in cycles. One list has thousands of rows, none in a
cycle."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers of one copy share. ``tables`` are all that they may get, ``filters`` their conditions.
    ``limits`` are those of the topics that accept smaller records than the settings say. ``memberships`` are the
    tables' in the snapshot. ``first`` is the first snapshot, if this is a later one."""

    pipeline: Pipeline
    run: CopyRun
    snapshot_name: str
    commit_time_ms: int
    database: str
    version: str
    tables: Mapping[TableName, Table]
    filters: Mapping[TableName, str]
    memberships: Mapping[TableName, Membership]
    first: FirstSnapshot | None
    rows_per_s: float
    """The share of each worker."""
    limits: Mapping[str, RecordLimit]


@dataclass(frozen=True, slots=True)
class Ready:
    """It has the snapshot, and has fenced the previous owner of its transactional id."""


@dataclass(frozen=True, slots=True)
class Committed:
    """So many more rows and bytes of a part are committed. ``is_last``: that completed it."""

    part: Part
    rows: int
    size: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of a part was copied: others have the table's lock, or wait for it."""

    part: Part


@dataclass(frozen=True, slots=True)
class Failed:
    """It has ended by an error: a transient one, or one for the operator. ``timed_out``: a TransactionTimedOut."""

    may_pass: bool
    message: str
    hint: str | None
    timed_out: bool


Report = Ready | Committed | Refused | Failed | str
"""A text is a sentence for capture's log."""


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    """There is nothing to copy for now: release the locks."""


Order = Part | ReleaseLocks | None
"""An order to a worker; None: end."""


class _Ended(Exception):
    """The process that started this one wants no more, or has ended."""


def copy_publisher(
    pipeline: Pipeline,
    number: int,
    *,
    while_waiting: Callable[[], None] = lambda: None,
    limits: Mapping[str, RecordLimit] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Transactions:
    """The publisher of a worker; not started yet."""
    sizes = LargeRows(
        pipeline.rejecting_topics, max_message_bytes=pipeline.kafka.topics.max_message_bytes, limits=limits, say=say
    )
    own_id = f"{pipeline.name}.{pipeline.slot}.copy{number}"
    return Transactions(pipeline.kafka.client(), own_id, sizes, while_waiting=while_waiting, linger_ms=_LINGER_MS)


def fence_workers(pipeline: Pipeline, *, while_waiting: Callable[[], None]) -> None:
    """Abort what workers of an earlier process have open, and prevent them from committing more. Raises Unavailable."""
    for number in range(COPY_WORKERS_MAX):
        publisher = copy_publisher(pipeline, number, while_waiting=while_waiting)
        try:
            publisher.start()
        finally:
            publisher.close()


def work(number: int, job: Job, pipe: Connection) -> None:
    """Copy the parts that come through the pipe, one after the other, until there are no more. Raises nothing."""
    for name in (signal.SIGINT, signal.SIGTERM):  # they may go to a whole process group: the other process decides
        signal.signal(name, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(_GARBAGE_AT)
    worker = _Worker(number, job, pipe)
    try:
        worker.run()
    except (_Ended, EOFError, OSError):
        return
    except (psycopg.Error, LockstepError) as raised:
        error = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
        with contextlib.suppress(_Ended):
            timed_out = isinstance(error, TransactionTimedOut)
            worker.report(Failed(isinstance(error, Unavailable), error.message, error.hint, timed_out))


class _Worker:
    def __init__(self, number: int, job: Job, pipe: Connection) -> None:
        self._number = number
        self._job = job
        self._pipe = pipe
        self._events: dict[TableName, RowEvents] = {}
        self._rate = RowRate(job.rows_per_s, time.monotonic)

    def run(self) -> None:
        job, pipeline = self._job, self._job.pipeline
        publisher = copy_publisher(
            pipeline,
            self._number,
            while_waiting=self._heed_end,
            limits=job.limits,
            say=self.report,
        )
        with contextlib.ExitStack() as opened:
            opened.callback(publisher.close)
            reader = opened.enter_context(self._reader())
            # Reads the tables' present state: the reader sees the catalogue as of the snapshot.
            now = opened.enter_context(contextlib.closing(connect(pipeline.source, application=APPLICATION)))
            now.execute(LOCK_TIMEOUT)
            reader.read_with(job.filters)
            publisher.start()
            self.report(Ready())
            while (order := self._order()) is not None:
                if isinstance(order, ReleaseLocks):
                    reader.rest()
                    continue
                try:
                    reader.hold(order, job.memberships[order.table], pipeline.publication, now)
                except TableLocked:
                    self.report(Refused(order))
                    continue
                self._copy(order, reader, publisher)

    def _order(self) -> Order:
        order: Order = self._pipe.recv()
        return order

    def _reader(self) -> SnapshotReader:
        """Raises Unavailable also if the snapshot is gone, because the connection that exported it was lost."""
        pipeline = self._job.pipeline
        try:
            return SnapshotReader(pipeline.source, self._job.snapshot_name)
        except psycopg.Error as error:
            raise Unavailable(f"a worker can't read the snapshot: {connection_error(error).message}") from error

    def report(self, report: Report) -> None:
        """Report to the other process. Raises _Ended if it is gone."""
        try:
            self._pipe.send(report)
        except OSError:
            raise _Ended from None

    def _heed_end(self) -> None:
        """Anything that comes while a part is copied means the end: ``None``, or the end of the pipe."""
        if self._pipe.poll():
            raise _Ended

    def _copy(self, part: Part, reader: SnapshotReader, publisher: Transactions) -> None:
        job, table = self._job, self._job.tables[part.table]

        def commit(rows: int, size: int, done: CopiedRange | None) -> None:
            self._heed_end()
            if done is not None and not part.only_newer:
                publisher.send(control_topic(job.pipeline.name, STATE), done.key(), done.to_bytes())
            publisher.commit_events()
            self.report(Committed(part, rows, size, is_last=done is not None))

        copies = PartCopies(job.run, reader, publisher, job.pipeline.copy_batch, self._rate, self._heed_end)
        topic = table_topic(job.pipeline.name, part.table)
        copies.copy(part, table, condition(part, table, job.first), topic, self._events_of(part.table), commit)

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
                epoch=job.run.epoch,
                consistent_point=job.run.point_lsn,
                commit_time_ms=job.commit_time_ms,
            )
        return known
