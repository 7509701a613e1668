"""Copies in the middle of the stream: whole tables that lack theirs.

``snapshot.chunked`` copies most of them while the stream goes on. That needs an index in key order, a key that no two
rows share, and no more partitions than a chunk can read together. This module copies the other tables, and the rows of
new partitions. They are published at the stream's position. First a snapshot is taken. Then everything that committed
before its consistent point is published, and nothing after it. Then come the rows as the snapshot shows them.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from cdc.capture.loop import Pause
from cdc.capture.published_table import PublishedTable
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.timeouts import SLOT_COMES_S
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connection_error
from cdc.postgres.memberships import memberships
from cdc.postgres.replication import ComingSlot, CreatedSlot, SlotRefused
from cdc.postgres.slot import emit_heartbeat, temporary_slot_name
from cdc.postgres.unended_transactions import told, unended_transactions
from cdc.protocol.control_records import CaptureState, SchemaRecord, ShapeChange
from cdc.protocol.membership import Membership
from cdc.protocol.walsender import Frame
from cdc.stream.live_stream import LiveStream
from cdc.stream.repair_requests import RepairRequests
from snapshot.chunk_session import ChunkSession
from snapshot.chunked import LATER_S, LOCKED, MUCH_LATER_S, ChunkedCopies
from snapshot.copy import CopyProgress, Interrupted, StreamCopy
from snapshot.preparation import require_keys
from snapshot.table_reader import SnapshotReader
from snapshot.waits import SAID_AFTER_S, Waits

SLOT_PATIENCE_S: Final = 3.0
"""How long the stream may stop, at first, for a slot whose creation blocks everything else."""


@dataclass(frozen=True, slots=True)
class _Point:
    """The point at which the stream pauses, and what a snapshot shows there. The tables are locked."""

    slot: CreatedSlot
    reader: SnapshotReader
    shapes: Mapping[TableName, Table]
    memberships: Mapping[TableName, Membership]


@dataclass
class StreamCopies:
    """The copies of one session, in the middle of its stream."""

    pipeline: Pipeline
    sql: psycopg.Connection[Any]
    stream: LiveStream
    publisher: Any
    repairs: RepairRequests
    say: Callable[[str], None]
    copied: Callable[[CopyProgress], None]
    stopping: Callable[[], bool]
    while_waiting: Callable[[], None]

    def __post_init__(self) -> None:
        self._tables = self.pipeline.source.table_names  # read after each commit, and parsed at each access
        self._waits = Waits(time.monotonic, self.say)
        self._coming: ComingSlot | None = None
        self._coming_since_s = 0.0
        self._refused = ""
        self._patience_s = SLOT_PATIENCE_S
        session = ChunkSession(self.pipeline, self.sql, self.stream, say=self.say, while_waiting=self.while_waiting)
        self._chunks = ChunkedCopies(session, self.repairs, self.publisher, self.copied)

    def close(self) -> None:
        self._chunks.close()
        self._close_slot()

    def _close_slot(self) -> None:
        if self._coming is not None:
            self._coming.close()
            self._coming = None

    def may_begin(self, state: CaptureState) -> bool:
        """Whether there is something to copy that can be read at once.

        PostgreSQL takes no snapshot before every transaction that is writing has ended. That may take hours, during
        which the stream and copies in chunks go on. So the first snapshot only shows that the wait is over: the stream
        may be past it.

        Raises as ``connect``, and LockstepError as ``TableWatch.missing``.
        """
        if not self._lacking(state):
            # Its purpose was paused, cancelled or unpublished, and a slot holds back WAL.
            self._close_slot()
        elif self._coming is None and self._are_published(self._lacking(state)):
            with self._waiting_for_a_slot():
                self._coming = ComingSlot(self.pipeline.source, temporary_slot_name(self.pipeline.slot))
                self._coming_since_s = time.monotonic()
        if self._slot_is_ready():
            return True
        if self._coming is not None and time.monotonic() - self._coming_since_s > SAID_AFTER_S:
            self._coming_since_s = math.inf  # once for each
            self._say_waiting()
        return self._chunk_is_next()

    def is_ready(self) -> bool:
        return self._slot_is_ready() or self._chunk_is_next()

    def _chunk_is_next(self) -> bool:
        return self._chunks.wants(self.stream.loop.state)

    def _slot_is_ready(self) -> bool:
        return self._coming is not None and self._coming.is_ready()

    @contextlib.contextmanager
    def _waiting_for_a_slot(self) -> Iterator[None]:
        """Let the copies wait if PostgreSQL refuses a slot: the stream already has one, and goes on."""
        try:
            yield
        except SlotRefused as error:
            if error.message != self._refused:
                self.say(f"warning: a copy waits, since PostgreSQL refused a slot for it: {error.message}")
            self._refused = error.message
            for name in self._lacking(self.stream.loop.state):
                self._waits.later(name, MUCH_LATER_S)

    def _say_waiting(self) -> None:
        self.say(f"a copy waits for writing transactions to end: {told(unended_transactions(self.sql))}")

    def _lacking(self, state: CaptureState) -> list[TableName]:
        """The tables for which the stream must stop."""
        return [
            name
            for name in self._tables
            if name not in state.copied
            and not self._chunks.serves(name)
            and not (name in state.copying and state.copying[name].paused)
            and not self._waits.for_table(name)
        ]

    def _are_published(self, names: Sequence[TableName]) -> bool:
        """Whether all of these tables are published; those that aren't wait. Raises as ``TableWatch.missing``."""
        try:
            published = memberships(self.sql, self.pipeline.publication, names)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InternalError_):
            for name in names:
                self._waits.later(name, LATER_S, LOCKED)
            return False
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        for name in names:
            self._waits.over(name)
        return not self._put_off(name for name in names if name not in published)

    def _put_off(self, missing: Iterable[TableName]) -> bool:
        """Let unpublished tables wait; returns whether there are any. Raises as ``TableWatch.missing``."""
        names = list(missing)
        for name in names:
            self.stream.watch.missing(name)
            self._waits.later(name, MUCH_LATER_S)
        return bool(names)

    def copy(self, frame: Frame | None) -> Pause | None:
        """Copy, at one point of the stream, what must be copied. ``frame`` comes after it. None if asked to stop.
        Raises what the stream, the snapshot and the publisher raise."""
        if self._coming is None or not self._coming.is_ready():
            return self._chunks.step(frame) if self._chunk_is_next() else Pause(self.stream.loop.state, frame)
        waited, self._coming = self._coming, None
        names = self._lacking(self.stream.loop.state)
        with contextlib.ExitStack() as opened:
            point = None
            with self._waiting_for_a_slot():
                with waited:
                    waited.created()
                point = self._point(names, opened)
            if point is None:
                return Pause(self.stream.loop.state, frame)
            self._refused = ""
            emit_heartbeat(self.sql)  # so that something follows the snapshot even if nobody writes
            pause = self.stream.loop.run(first=frame, until=point.slot.consistent_point)
            if pause is None:
                return None
            try:
                for name in point.shapes:
                    self._copy_table(point, name)
            except Interrupted:
                return None
            return pause

    def _point(self, names: Sequence[TableName], opened: contextlib.ExitStack) -> _Point | None:
        """A snapshot for these tables. None if there are none, one has left the publication, or another long
        transaction has begun."""
        pipeline = self.pipeline
        if not names:
            return None
        coming = opened.enter_context(ComingSlot(pipeline.source, temporary_slot_name(pipeline.slot)))
        if not coming.wait(self._patience_s, self.while_waiting):
            self._patience_s = min(SLOT_COMES_S, 2 * self._patience_s)
            self._say_waiting()
            return None
        self._patience_s = SLOT_PATIENCE_S
        slot = coming.created()
        reader = opened.enter_context(SnapshotReader(pipeline.source, slot.snapshot_name))
        shapes = reader.tables(names, pipeline.publication, pipeline.source.keys)
        found = reader.memberships(pipeline.publication, names)
        if self._put_off(name for name in names if name not in shapes or name not in found):
            return None
        require_keys(pipeline, shapes.values())
        reader.lock_unchanged(found, pipeline.publication, self.sql)
        return _Point(slot, reader, shapes, found)

    def _copy_table(self, point: _Point, name: TableName) -> None:
        """Copy a table as the snapshot shows it, or only its new partitions. Raises Interrupted."""
        loop, assembler = self.stream.loop, self.stream.assembler
        membership = point.memberships[name]
        # All rows come again, so the earlier meaning of column numbers doesn't matter.
        shape = replace(point.shapes[name], epoch=loop.state.epoch)
        published = self.stream.tables.of(shape)
        published_before = assembler.relations.tables.get(name) or assembler.relations.passed_over.get(name)
        new = published_before is None or published_before.table != shape
        recorded = loop.state.memberships.get(name)
        change = membership.since(recorded) if recorded else None
        # Only if new partitions are the only reason: a table that was also altered is copied whole.
        only_leaves = self.stream.watch.take_only_leaves(name, shape.schema_id) and not new
        is_asked_for = name in loop.state.copying  # for a copy of the whole table
        leaves = (
            change.partitions if change is not None and not change.whole and only_leaves and not is_asked_for else ()
        )
        if leaves and not shape.key and any(leaf.blocks != 0 for leaf in point.reader.relations(shape, leaves)):
            leaves = ()  # after an interruption, rows of a partition would be doubled
        self.say(f"copying {name} at {format_lsn(point.slot.consistent_point)}")
        # A process that dies after the copy's last commit must not complete an update from older values.
        self.stream.toast.store.clear(published.topic)
        self.stream.toast.store.commit(assembler.progress.position)
        copy = StreamCopy(
            published,
            point.reader,
            self.publisher,
            loop.state,
            point.slot.consistent_point,
            self.pipeline.batch,
            self._stopping_after_status,
            self.copied,
        )
        copy.copy(
            membership.to_text(),
            leaves=leaves,
            live_keys=self.stream.log.live_key_set,
            schemas=[_record(shape, point, loop.state, published_before)] if new else [],
        )
        loop.adopt(copy.state)
        loop.follow(assembler.relations.replace(published))
        self.stream.toast.reload(published, assembler.progress.position)  # the copy bypassed the store
        if not leaves:
            self.repairs.done(name)

    def _stopping_after_status(self) -> bool:
        """Whether to stop, after a status to PostgreSQL. Called between batches, while nobody reads the stream."""
        self.while_waiting()
        return self.stopping()


def _record(shape: Table, point: _Point, state: CaptureState, before: PublishedTable | None) -> SchemaRecord:
    """The record of a table's shape that comes with its copy."""
    change = ShapeChange() if before is None else ShapeChange(rewritten="it was copied again")
    return SchemaRecord(shape, point.slot.consistent_point, change, from_epoch=state.epoch)
