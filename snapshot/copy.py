"""Copies tables in the middle of the stream: rows become ``r`` events tagged (consistent point, 0). This is for a table
that joins later, or that changed without events. By then everything committed before the consistent point is published,
and nothing after it. So log order is tag order, also for the deletes of keys that the table no longer has."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from cdc.capture.batch_size import BatchSize
from cdc.capture.published_table import PublishedTable
from cdc.model.event import Headers
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import CaptureState, SchemaRecord
from snapshot.row_events import EncodedRow, Line, RowEvents

TRANSACTION_AGE_MAX_S: Final = 10.0
"""How long a batch's Kafka transaction stays open. Brokers abort it after a minute, and rows may be wide or rare."""


class Reader(Protocol):
    """Rows under a snapshot."""

    def estimated_rows(self, table: Table) -> int: ...

    def lines(
        self, table: Table, leaves: Sequence[int] = (), *, while_waiting: Callable[[], None] = ...
    ) -> Iterable[list[Line]]:
        """All rows, or only those of these partitions. ``while_waiting`` is called while none comes."""
        ...


class LiveKeys(Protocol):
    """The keys that a topic holds, from which published ones are removed."""

    def discard(self, key: bytes) -> None: ...

    def __iter__(self) -> Iterator[bytes]: ...


class Publisher(Protocol):
    """Takes events and commits them with the state."""

    def send(self, topic: str, key: bytes, value: bytes | None, extra: bytes | Headers | None = None) -> None: ...

    def send_rows(self, topic: str, rows: Sequence[EncodedRow]) -> None: ...

    def send_beside_state(self, key: bytes, value: bytes | None) -> None: ...

    def serve(self) -> None: ...

    def commit(
        self,
        state: CaptureState,
        schemas: Sequence[SchemaRecord] = (),
        *,
        covering: Sequence[str] = (),
        progress: bool = True,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has published. ``records`` are those outside of the stream's batches."""

    rows: int = 0
    bytes: int = 0
    records: int = 0

    def since(self, before: "Copied") -> "Copied":
        return Copied(self.rows - before.rows, self.bytes - before.bytes, self.records - before.records)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far the copy of a table is, earlier starts included. ``rows_estimated`` is the planner's, so the end may
    differ. ``new`` is what it has published since the last report."""

    table: TableName
    rows: int
    rows_estimated: int
    bytes: int
    finished: bool
    new: Copied = Copied()


class Interrupted(Exception):
    """The copy was asked to stop before its end; what it committed isn't in the ledger."""


@dataclass
class StreamCopy:
    """The copy of one table at the stream's position, a consistent point. Raises Interrupted if asked to stop: the next
    start begins it again."""

    published: PublishedTable
    reader: Reader
    publisher: Publisher
    state: CaptureState
    """The committed state. After ``copy``, its ledger has the table."""
    consistent_point: int
    size: BatchSize
    stopping: Callable[[], bool]
    report: Callable[[CopyProgress], None]

    def __post_init__(self) -> None:
        self._events = RowEvents.of(self.published, self.consistent_point, self.state)
        self._pending = self._pending_bytes = 0
        self._opened_s = 0.0
        self._sent_so_far = self._reported = Copied()
        self._estimated = self.reader.estimated_rows(self.published.table)

    def copy(
        self,
        membership: str,
        *,
        leaves: Sequence[int],
        live_keys: Callable[[str], AbstractContextManager[LiveKeys]],
        schemas: Sequence[SchemaRecord],
    ) -> None:
        """With ``leaves``, add only the rows of these new partitions. Otherwise publish all rows, and a delete for
        every key that the topic holds and the table lacks. Rows of an append-only table have no keys, so a truncate
        precedes them: they are all that remains."""
        table, topic = self.published.table, self.published.topic
        if not leaves and not table.key:
            # Its truncate removes what was copied before: from here on, this can't be cancelled.
            self.state = self.state.to_be_copied([table.name])
        self.publisher.commit(self.state, schemas, progress=False)
        if leaves:
            rows = self.state.copied.get(table.name, 0) + self._rows(leaves)
        elif table.key:
            with live_keys(topic) as vanished:
                rows = self._rows(copied=vanished.discard)
                for key in vanished:
                    self._delete(key)
        else:
            # Everything there is removed at once: rows that come again, also after an interrupted copy, would be
            # doubled.
            self._send_rows([self._events.of_truncate()], rows=0)
            rows = self._rows()
        state = replace(
            self.state,
            copied={**self.state.copied, table.name: rows},
            memberships={**self.state.memberships, table.name: membership},
        )
        self.state = state.with_copy(table.name, None)  # it requested this copy
        self.publisher.commit(self.state, covering=[topic])
        self._report_progress(rows, max(rows, self._estimated), finished=True)

    def _rows(self, leaves: Sequence[int] = (), copied: Callable[[bytes], None] = lambda _: None) -> int:
        """Publish every row and return their number; ``copied`` gets their keys."""
        for lines in self.reader.lines(self.published.table, leaves, while_waiting=self._wait):
            events = self._events.of_lines(lines)
            sent = 0
            while sent < len(events):
                some = events[sent : sent + self.size.rows - self._pending]
                self._send_rows(some, rows=len(some))
                sent += len(some)
            for key, _ in events:
                copied(key)
        return self._sent_so_far.rows

    def _delete(self, key: bytes) -> None:
        value = self._events.of_delete()
        self._open()
        self.publisher.send(self.published.topic, key, value)
        self.publisher.send(self.published.topic, key, None, self._events.tombstone_tag)
        self._sent([(key, value)], records=2)

    def _report_progress(self, rows: int, rows_estimated: int, *, finished: bool) -> None:
        """Report that all that was sent is committed."""
        sent, new = self._sent_so_far, self._sent_so_far.since(self._reported)
        self._reported = sent
        name = self.published.table.name
        self.report(CopyProgress(name, rows, rows_estimated, sent.bytes, finished=finished, new=new))

    def _send_rows(self, events: Sequence[EncodedRow], *, rows: int) -> None:
        self._open()
        self.publisher.send_rows(self.published.topic, events)
        self._sent(events, records=len(events), rows=rows)

    def _open(self) -> None:
        if not self._pending:
            self._opened_s = time.monotonic()

    def _sent(self, events: Sequence[EncodedRow], *, records: int, rows: int = 0) -> None:
        size = sum(len(value) for _, value in events)
        self._pending += len(events)
        self._pending_bytes += size + sum(len(key) for key, _ in events)
        before = self._sent_so_far
        self._sent_so_far = Copied(before.rows + rows, before.bytes + size, before.records + records)
        if (
            self._pending >= self.size.rows
            or self._pending_bytes >= self.size.bytes
            or time.monotonic() - self._opened_s > TRANSACTION_AGE_MAX_S
        ):
            self._commit()

    def _wait(self) -> None:
        """No row comes: commit or stop if due. Raises Interrupted."""
        if self._pending and time.monotonic() - self._opened_s > TRANSACTION_AGE_MAX_S:
            self._commit()
        elif self.stopping():
            raise Interrupted

    def _commit(self) -> None:
        self.publisher.commit(self.state, progress=False)
        self._pending = self._pending_bytes = 0
        self._report_progress(self._sent_so_far.rows, self._estimated, finished=False)
        if self.stopping():
            raise Interrupted
