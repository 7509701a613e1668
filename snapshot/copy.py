"""Copies tables into their topics: rows become ``r`` events tagged (consistent point, 0), with a ledger in the state.

A table is in the ledger once its last row is committed. After an interruption of the first copy the tables that are not in it are
copied whole, under a new snapshot with a later consistent point: a row that changed in between has an event of its own in the
stream, whose last one has the content that the later snapshot saw, so both orders end in the same state.

A table that joins later, or that changed without events, is copied in the middle of the stream: when everything that committed
before the consistent point has been published and nothing behind it. Then the order of the log is the order of the tags, also for
the deletes of the keys that the table no longer has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cdc.capture.assembler import PublishedTable
from cdc.capture.settings import CaptureSettings
from cdc.capture.side_channels import Headers
from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ
from cdc.protocol.control import CaptureState, SchemaRecord, SnapshotPhase
from cdc.protocol.envelope import event_value, tag_prefix, tag_text
from cdc.protocol.pgoutput import Fields

_REPORT_EVERY = 5000


class Reader(Protocol):
    """Rows under a snapshot."""

    def estimated_rows(self, table: Table) -> int: ...

    def rows(self, table: Table, leaves: Sequence[int] = ()) -> Iterable[Fields]:
        """All rows, or only those of these partitions."""
        ...


class Publisher(Protocol):
    """Takes events, commits them with the state."""

    def send(self, topic: str, key: bytes, value: bytes | None, extra: bytes | Headers | None = None) -> None: ...

    def commit(
        self,
        state: CaptureState,
        schemas: Sequence[SchemaRecord] = (),
        *,
        covering: Sequence[str] = (),
        progress: bool = True,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far the copy of a table is. ``rows_estimated`` is the planner's, so the end may differ."""

    table: TableName
    rows: int
    rows_estimated: int
    bytes: int
    finished: bool


class Interrupted(Exception):
    """The copy was told to stop before its end; what is committed is not in the ledger."""


class _TableCopy:
    """One table's copy at one consistent point."""

    def __init__(
        self,
        published: PublishedTable,
        *,
        reader: Reader,
        publisher: Publisher,
        state: CaptureState,
        consistent_point: int,
        settings: CaptureSettings,
        stopping: Callable[[], bool],
        report: Callable[[CopyProgress], None],
    ) -> None:
        self._published = published
        self._reader = reader
        self._publisher = publisher
        self._state = state
        self._consistent_point = consistent_point
        self._settings = settings
        self._stopping = stopping
        self._report = report
        self._prefix = tag_prefix(state.epoch, consistent_point)
        self._source = published.encoder.source(commit_time_ms=state.commit_time_ms, xid=0, snapshot=True)
        self._pending = 0
        self._size = 0
        self._estimated = reader.estimated_rows(published.table)

    def rows(self, leaves: Sequence[int] = (), copied: Callable[[bytes], None] = lambda _: None) -> int:
        """Publish every row and return their number; ``copied`` gets their keys. Raises Interrupted."""
        published = self._published
        encode_key, encode_row = published.encoder.key, published.encoder.row
        rows = 0
        for fields in self._reader.rows(published.table, leaves):
            try:
                key, row = encode_key(fields), encode_row(fields)
            except ValueError as error:
                # The error may not show the value, so the cause isn't chained.
                raise LockstepError(
                    f"a row of {published.table.name} can't be encoded ({type(error).__name__})",
                    hint="is the database's encoding SQL_ASCII? Its text must be valid UTF-8",
                ) from None
            self._send(key, self._value(b"r", row))
            copied(key)
            rows += 1
            if rows % _REPORT_EVERY == 0:
                self._report(CopyProgress(published.table.name, rows, self._estimated, self._size, finished=False))
        return rows

    def deletes(self, keys: Iterable[bytes]) -> None:
        """Publish that these keys are gone. Raises Interrupted."""
        for key in keys:
            self._send(key, self._value(b"d", b"null"))
            self._publisher.send(self._published.topic, key, None, tag_text(self._prefix, SNAPSHOT_SEQ))

    def finished(self, rows: int) -> None:
        """Say that the last row is committed."""
        name = self._published.table.name
        self._report(CopyProgress(name, rows, max(rows, self._estimated), self._size, finished=True))

    def _value(self, op: bytes, row: bytes) -> bytes:
        return event_value(
            op,
            self._prefix,
            SNAPSHOT_SEQ,
            b"null",
            row,
            self._source,
            self._consistent_point,
            self._state.commit_time_ms,
        )

    def _send(self, key: bytes, value: bytes) -> None:
        self._publisher.send(self._published.topic, key, value)
        self._pending += 1
        self._size += len(value)
        if self._pending >= self._settings.batch_rows:
            self._publisher.commit(self._state, progress=False)
            self._pending = 0
            if self._stopping():
                raise Interrupted


def copy_tables(
    *,
    reader: Reader,
    publisher: Publisher,
    tables: Mapping[TableName, PublishedTable],
    state: CaptureState,
    consistent_point: int,
    settings: CaptureSettings,
    stopping: Callable[[], bool],
    report: Callable[[CopyProgress], None],
) -> CaptureState:
    """Copy what the ledger lacks; returns the state with phase DONE, committed, or COPYING when ``stopping`` came first."""
    for name, published in tables.items():
        if name in state.copied:
            continue
        copy = _TableCopy(
            published,
            reader=reader,
            publisher=publisher,
            state=state,
            consistent_point=consistent_point,
            settings=settings,
            stopping=stopping,
            report=report,
        )
        try:
            rows = copy.rows()
        except Interrupted:
            return state
        state = replace(state, copied={**state.copied, name: rows})
        publisher.commit(state)
        copy.finished(rows)
        if stopping():
            return state
    state = replace(state, phase=SnapshotPhase.DONE)
    publisher.commit(state, covering=[published.topic for published in tables.values()])
    return state


def copy_into_stream(
    published: PublishedTable,
    *,
    reader: Reader,
    publisher: Publisher,
    state: CaptureState,
    consistent_point: int,
    membership: str,
    leaves: Sequence[int],
    live_keys: Callable[[str], Iterator[bytes]],
    schemas: Sequence[SchemaRecord],
    settings: CaptureSettings,
    stopping: Callable[[], bool],
    report: Callable[[CopyProgress], None],
) -> CaptureState:
    """Copy one table where the stream stands; returns the committed state with the table in its ledger.

    With ``leaves`` only the rows of these new partitions are added. Without, all rows, and a delete for every key that the topic
    holds and the table doesn't. Raises Interrupted when ``stopping`` came first: the next start begins this copy anew.
    """
    copy = _TableCopy(
        published,
        reader=reader,
        publisher=publisher,
        state=state,
        consistent_point=consistent_point,
        settings=settings,
        stopping=stopping,
        report=report,
    )
    publisher.commit(state, schemas, progress=False)
    name = published.table.name
    if leaves:
        rows = state.copied.get(name, 0) + copy.rows(leaves)
    else:
        # Keys of an append-only table are all the same, so nothing is ever left of them to delete.
        vanished = set(live_keys(published.topic)) if published.table.key else set()
        rows = copy.rows(copied=vanished.discard)
        copy.deletes(vanished)
    state = replace(state, copied={**state.copied, name: rows}, memberships={**state.memberships, name: membership})
    publisher.commit(state, covering=[published.topic])
    copy.finished(rows)
    return state
