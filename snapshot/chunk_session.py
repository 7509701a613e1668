"""What the chunks of one session share: where they are read, and how they get into the stream.

A chunk is read between two transactions of the stream, under a snapshot of its own, without a slot. Everything that
this snapshot sees has its commit records before H, the WAL's end after the snapshot. Then the stream goes on up to H,
where the rows are published, tagged (H, 0). Log order is tag order, and no row is older than its tag, because:

* Everything published before the rows commits before H, and everything after them at H or later.
* A row is left out if a transaction before H changes it that the snapshot doesn't see. That event is a full row, or a
  delete, and newer than the snapshot's row.
* If the stream changes a row later, the event is newer than the chunk. If it changed the row before the chunk was read,
  the snapshot shows the result, provided that the transaction is visible. A commit is in the WAL for a while before it
  is visible, so the xids of published transactions are kept until a snapshot sees them. Before that, no chunk is read.
* The table is locked, so nobody alters or empties it between the snapshot and its reading, and earlier changes of that
  kind are visible. Partitions are locked later, when they are read. If one was moved to another file in between, no key
  counts as gone, and a copy that has read it begins again at the next inspection of the table. The same happens if a
  partition that came after the copy's beginning was read, and goes or is emptied.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import psycopg

from cdc.capture.loop import Pause
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import Event
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.memberships import storage_of
from cdc.postgres.slot import current_snapshot, emit_heartbeat
from cdc.postgres.unended_transactions import told, unended_transactions
from cdc.protocol.control_records import CaptureState, TableCopy
from cdc.protocol.membership import Membership, read
from cdc.protocol.pgoutput import Field, Fields
from cdc.protocol.walsender import Frame
from cdc.stream.live_stream import LiveStream
from snapshot.chunk_reader import ChunkReader, Gone, KeyOrder, Point
from snapshot.chunks import PendingChunk
from snapshot.row_events import RowEvents
from snapshot.table_reader import FoundKey
from snapshot.waits import Waits

KEYS_AT_ONCE: Final = 500
"""How many chosen keys one query reads, and the most that one Kafka transaction takes."""

_UNSEEN_PATIENCE_S: Final = (0.05, 0.25)
"""How long the stream stands still for commits to become visible, at first and at most. Then it goes on for longer."""

_LOOK_S: Final = 0.002
"""The interval of checks for that."""


@dataclass(frozen=True, slots=True)
class Look:
    """A table at a point of the source. ``order`` is None if no index gives the order of its key."""

    point: Point
    shape: Table
    membership: Membership
    order: KeyOrder | None


class ChunkSession:
    """The connection that reads chunks, what they wait for, and the stream that they are published in."""

    def __init__(
        self,
        pipeline: Pipeline,
        sql: psycopg.Connection[Any],
        stream: LiveStream,
        *,
        say: Callable[[str], None],
        while_waiting: Callable[[], None],
    ) -> None:
        self.pipeline = pipeline
        self.stream = stream
        self.loop = stream.loop
        self.assembler = stream.assembler
        self.say = say
        self.waits = Waits(time.monotonic, say)
        self.keys_at_once = KEYS_AT_ONCE
        self._sql = sql
        self._while_waiting = while_waiting
        self._reader: ChunkReader | None = None
        self._unseen_patience_s = _UNSEEN_PATIENCE_S[0]
        self._asked_at: object = None

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def is_lost(self) -> bool:
        """Whether the connection was lost, and with it what the session had asked for."""
        return self._reader is not None and self._reader.is_closed

    def heartbeat(self) -> None:
        """Write something, so that the WAL's end is after all that was published."""
        emit_heartbeat(self._sql)

    def take_fewer_keys(self) -> None:
        """Read fewer keys at once: their rows were too large."""
        self.keys_at_once = max(1, self.keys_at_once // 8)

    def take_more_keys(self) -> None:
        """Read more keys at once: a chunk of so many was published."""
        self.keys_at_once = min(2 * self.keys_at_once, KEYS_AT_ONCE)

    def reading(self) -> ChunkReader:
        """The connection that reads. Raises as ``connect`` if a new one is needed."""
        if self._reader is None or self._reader.is_closed:
            self._reader = ChunkReader(self.pipeline.source, self._while_waiting)
        return self._reader

    def look(self, name: TableName) -> Look | None:
        with self.looking(name) as look:
            return look

    @contextlib.contextmanager
    def looking(self, name: TableName) -> Iterator[Look | None]:
        """The table at a point of the source; None if it isn't published under this name."""
        pipeline, reader = self.pipeline, self.reading()
        try:
            with reader.at_point(name) as point:
                shape = reader.tables([name], pipeline.publication, pipeline.source.keys).get(name)
                membership = reader.memberships(pipeline.publication, [name]).get(name)
                if shape is None or membership is None:
                    yield None
                else:
                    yield Look(point, shape, membership, reader.key_order(shape))
        except Gone:
            yield None

    def sees_all(self, name: TableName) -> bool:
        """Whether all later snapshots see everything published. If not, the table has to wait."""
        if self._asked_at is None:
            self._ask_who_may_be_committing()
        unfinished = self.stream.unfinished
        if unfinished.of_before:
            self._leave_out_those_that_run(unfinished.of_before)
        deadline = time.monotonic() + self._unseen_patience_s
        while not unfinished.all_seen_by(current_snapshot(self._sql)):
            if time.monotonic() > deadline:
                self.waits.later(name, 4 * self._unseen_patience_s, self._why_unseen)
                self._unseen_patience_s = min(2 * self._unseen_patience_s, _UNSEEN_PATIENCE_S[1])
                return False
            time.sleep(_LOOK_S)
        self._unseen_patience_s = _UNSEEN_PATIENCE_S[0]
        return True

    def _why_unseen(self) -> str:
        found = unended_transactions(self._sql, self.stream.unfinished.unseen)
        return f"for transactions that some sessions still see as running: {told(found)}"

    def _ask_who_may_be_committing(self) -> None:
        """Find transactions that an earlier process may have published and that aren't visible yet: they are among the
        running ones."""
        emit_heartbeat(self._sql)
        self._asked_at, running = self.reading().running_now()
        self._leave_out_those_that_run(running)

    def _leave_out_those_that_run(self, xids: frozenset[int]) -> None:
        running = self.reading().not_committing(self._asked_at)
        self.stream.unfinished.may_be_of_before([xid for xid in xids if xid & 0xFFFFFFFF not in running])

    def note_partitions(self, name: TableName, oid: int) -> None:
        """Note the partitions that came since the last inspection, as soon as rows were read at a point. A chunk's
        partitions are still locked. Once noted, the next inspection finds if one went or was emptied."""
        storage = storage_of(self._sql, oid)
        if storage is not None and storage.partitions:
            self.loop.adopt(self.loop.state.with_partitions(name, partial(read, storage=storage)))

    def publish_up_to(self, lsn: Lsn, frame: Frame | None, chunk: PendingChunk | None = None) -> Pause | None:
        """Publish what commits before ``lsn``, and leave out of the chunk what the stream knows better."""
        emit_heartbeat(self._sql)  # so that something follows even if nobody writes
        if chunk is None:
            return self.loop.run(first=frame, until=lsn)
        pending = chunk

        def changed(topic: str, keys: Sequence[bytes]) -> None:
            pending.changed(topic, keys, xid=self.stream.unfinished.newest)

        with self.loop.watching(changed):
            return self.loop.run(first=frame, until=lsn)

    def rows_of(self, published: PublishedTable, found: Sequence[FoundKey]) -> list[Fields]:
        """The rows of those keys that have one."""
        table = published.table
        positions = published.encoder.key_positions
        wanted = [tuple(_text(key.fields[position]) for position in positions) for key in found if key.has_row]
        return self.reading().rows_in_bounds(table, wanted) if wanted else []

    def send_answer(self, published: PublishedTable, answer: "Answer", chunk: PendingChunk) -> None:
        """Publish what is left of the answer, once the stream has passed its point."""
        # Before Kafka has the new rows: after a crash in between, no later update may be completed from the old ones.
        for key in chunk.events:
            self.assembler.rows.toast.forget(published, key)
        self.stream.toast.store.commit(self.assembler.progress.position)
        events: list[Event] = []
        for key, value in chunk.events.items():
            if value is not None:
                self.assembler.rows.toast.remember_read(published, key, answer.fields[key])
                events.append((published.topic, key, value, None))
            else:
                events.append((published.topic, key, answer.deleted, None))
                events.append((published.topic, key, None, answer.tombstone_tag))
        self.loop.send(events)

    def adopt(self, name: TableName, copy: TableCopy | None, lsn: int = 0) -> None:
        """Go on with the state that describes what was published, of rows as of ``lsn``: a source must have that
        position."""
        state = self.loop.state
        if copy is not None:
            state = state.with_copy(name, copy)
        self.loop.adopt(replace(state, handoff=max(state.handoff, lsn)))


class Answer:
    """The events of rows that were looked up by key. Those of ``keys`` without a row are deleted."""

    def __init__(
        self, published: PublishedTable, lsn: int, state: CaptureState, rows: Sequence[Fields], keys: Sequence[bytes]
    ) -> None:
        encode = RowEvents.of(published, lsn, state)
        self.fields: dict[bytes, Fields] = {}
        self.events: dict[bytes, bytes | None] = dict.fromkeys(keys)
        for fields in rows:
            key, value = encode.of_fields(fields)
            self.fields[key] = fields
            self.events[key] = value
        self.deleted = encode.of_delete()
        self.tombstone_tag = encode.tombstone_tag


def _text(value: Field) -> str:
    assert isinstance(value, bytes)  # a key's value: it was read as one
    return value.decode()
