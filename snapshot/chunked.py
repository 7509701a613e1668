"""Copies in the middle of the stream that don't stop it: a chunk of rows, then the stream's changes, and so on.

``snapshot.chunk_session`` explains why log order is tag order then.

Keys that the topic holds and the source lacks are found at the end: their newest event is older than the copy, and a
chunk of these keys shows what the source has of each.

A row with a large value that nobody knows isn't published; a chunk reads its key again. The state holds such keys,
since they belong to the stream's position.

A copy ends, whatever is written meanwhile. Each chunk has at least one row, and the next one begins after it. Only a
moment lies between a snapshot and its H, however far the stream lags, so hardly any key is left out. From the second
pass on, values that were read are remembered, so later updates don't lack them. Keys to read again and further rows
alternate; if there are too many such keys, only rows are read until the next pass. While a chunk waits for commits to
become visible, nothing is published that it would have to wait for as well. But chunks come with the stream: if capture
permanently falls behind the source, they wait ever longer.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from cdc.capture.loop import Pause
from cdc.capture.row_changes import OrdinaryRows
from cdc.event_format.encode import is_key
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ, tag_prefix, tag_text
from cdc.protocol.control_records import CaptureState, SchemaRecord, ShapeChange, TableCopy
from cdc.protocol.copy_text import split_row
from cdc.protocol.walsender import Frame
from cdc.row_rate import RowRate
from cdc.stream.repair_requests import RepairRequests
from snapshot.chunk_reader import Gone, KeyOrder, Locked, NothingYet, Point, TooLarge
from snapshot.chunk_session import Answer, ChunkSession, Look
from snapshot.chunked_repairs import ChunkedRepairs
from snapshot.chunks import FIRST_ROWS, PendingChunk, next_chunk_rows
from snapshot.copy import Copied, CopyProgress
from snapshot.keys import key_texts
from snapshot.preparation import require_keys
from snapshot.row_events import RowEvents
from snapshot.table_reader import NoRoomForLocks
from snapshot.topic_scan import TopicScan

LATER_S: Final = 0.2
"""When a chunk that couldn't be read is tried again."""

MUCH_LATER_S: Final = 5.0
"""The same if somebody must act first."""

_ROW_LIMIT_S: Final = 1.0
"""How long the first row of a chunk may take at first, while the stream stands still."""

_RATE_PORTION_S: Final = 0.1
"""A chunk has about as many rows as the rate limit allows in this time."""

_CHUNK_S: Final = 0.05
"""Chunks are sized so that the stream waits for each about so long."""

_SCAN_WAIT_S: Final = 0.005
"""How long to wait for a record of the topic before the stream goes on."""

LOCKED: Final = "it is locked, or another published table is, by an ALTER TABLE that isn't committed for instance"


@dataclass(slots=True)
class _Active:
    """What is known of the table being copied, besides the state."""

    name: TableName
    shape: Table
    order: KeyOrder
    oid: int
    columns: str
    estimated: int
    rows_at_once: int = FIRST_ROWS
    limit_s: float = _ROW_LIMIT_S
    has_read_again: bool = False
    size: int = 0
    scan: TopicScan | None = None


class ChunkedCopies:
    """The copies of one session that don't stop its stream, and the repairs."""

    def __init__(
        self,
        session: ChunkSession,
        repairs: RepairRequests,
        publisher: Any,
        copied: Callable[[CopyProgress], None],
    ) -> None:
        settings = session.pipeline.snapshot
        self._session = session
        self._repairs = ChunkedRepairs(session, repairs)
        self._publisher = publisher
        self._copied = copied
        self._target_s = _CHUNK_S
        self._rate = RowRate(settings.rows_per_s, time.monotonic)
        self._rows_max = math.ceil(settings.rows_per_s * _RATE_PORTION_S) or sys.maxsize
        self._keyed = frozenset(session.pipeline.source.keyed_names)
        self._active: _Active | None = None
        self._unserved: set[TableName] = set()

    def close(self) -> None:
        self._put_down()
        self._session.close()

    def serves(self, name: TableName) -> bool:
        """Whether a table is copied in chunks, as far as known; otherwise the stream must stop for it."""
        return name in self._keyed and name not in self._unserved and not self._session.stream.watch.only_leaves(name)

    def wants(self, state: CaptureState) -> bool:
        """Whether a chunk can be read now."""
        if self._next(state) is not None or self._repairs.next(state) is not None:
            return True
        if self._session.waits or self._rate.wait_s() > 0:
            self._session.loop.pause_after(LATER_S)
        return False

    def step(self, frame: Frame | None) -> Pause | None:
        """Read and publish one chunk, or do what comes between two. ``frame`` comes after it. None if asked to stop.
        Raises what the source, the stream and Kafka raise."""
        began_s = time.monotonic()
        state = self._session.loop.state
        pause: Pause | None = Pause(state, frame)
        if self._session.is_lost():
            self._put_down()  # what it had asked for is lost with it
        repaired = self._repairs.next(state)  # first, since it is short
        name = repaired or self._next(state)
        if name is None:
            return pause
        try:
            if repaired is not None:
                pause = self._repairs.repair(name, frame)
            elif self._session.sees_all(name):
                pause = self._copy(name, frame)
        except Gone:
            self._session.stream.watch.missing(name)
            self._put_down()
            self._session.waits.later(name, MUCH_LATER_S)
        except Locked:
            self._session.waits.later(name, LATER_S, LOCKED)
        except NoRoomForLocks:
            self._leave(name)
        except TooLarge:
            self._session.take_fewer_keys()
        # Under a backlog the stream gets as much time as the chunk took.
        self._session.loop.pause_after(min(time.monotonic() - began_s, 1.0))
        return pause

    def _next(self, state: CaptureState) -> TableName | None:
        """The table to continue with: preferably one that has begun."""
        if self._rate.wait_s() > 0:
            return None
        lacking = [
            name
            for name in self._session.pipeline.source.table_names
            if name not in state.copied
            and self.serves(name)
            and not (name in state.copying and state.copying[name].paused)
            and not self._session.waits.for_table(name)
        ]
        begun = [name for name in lacking if name in state.copying and state.copying[name].has_begun]
        return next(iter([*begun, *lacking]), None)

    def _put_down(self) -> None:
        if self._active is not None and self._active.scan is not None:
            self._active.scan.close()
        self._active = None

    def _copy(self, name: TableName, frame: Frame | None) -> Pause | None:
        state = self._session.loop.state
        copy = state.copying.get(name)
        if self._active is not None and self._active.name != name:
            self._put_down()
        if copy is None or not copy.has_begun:
            return self._begin(name, frame)
        active = self._active or self._resume(name, copy)
        if active is None:
            return Pause(self._session.loop.state, frame)
        self._active = active
        if copy.keys and not copy.is_incomplete and (copy.is_through or not active.has_read_again):
            active.has_read_again = True  # alternates: there may be new ones all the time
            return self._read_again(active, copy, frame)
        active.has_read_again = False
        if not copy.is_through:
            return self._next_range(active, copy, frame)
        if copy.is_incomplete:
            self._session.adopt(
                name, replace(copy, after=None, is_through=False, is_incomplete=False, passes=copy.passes + 1)
            )
            return Pause(self._session.loop.state, frame)
        return self._find_gone(active, copy, frame)

    def _begin(self, name: TableName, frame: Frame | None) -> Pause | None:
        """From here on the table is followed, in its shape at this point."""
        self._put_down()
        self._session.heartbeat()  # so that no earlier event has the tag of this point
        look = self._session.look(name)
        if look is None:
            raise Gone
        require_keys(self._session.pipeline, [look.shape])
        if look.order is None:
            self._unserved.add(name)
            return Pause(self._session.loop.state, frame)
        pause = self._session.publish_up_to(look.point.lsn, frame)
        if pause is None:
            return None
        loop, assembler = self._session.loop, self._session.assembler
        at = look.point.lsn
        shape = replace(look.shape, epoch=loop.state.epoch)
        published = self._session.stream.tables.of(shape)
        before = assembler.relations.tables.get(name) or assembler.relations.passed_over.get(name)
        is_new = before is None or before.table != shape
        asked = loop.state.copying.get(name, TableCopy())
        self._session.say(f"copying {name} at {format_lsn(at)}, in chunks beside the stream")
        # A process that dies after the commit must not complete an update from older values.
        self._session.stream.toast.store.clear(published.topic)
        self._session.stream.toast.store.commit(assembler.progress.position)
        copy = TableCopy(
            since=at,
            membership=look.membership.to_text(),
            copied_before=-1 if is_new else asked.copied_before,
            paused=asked.paused,
        )
        state = loop.state.to_be_copied([name]).with_copy(name, copy)
        change = ShapeChange() if before is None else ShapeChange(rewritten="it was copied again")
        records = [SchemaRecord(shape, at, change, from_epoch=state.epoch)] if is_new else []
        self._publisher.commit(state, records, progress=False)
        loop.adopt(state)
        loop.follow(assembler.relations.replace(published, copying=True))
        self._active = self._as_active(look)
        return Pause(loop.state, pause.frame)

    def _resume(self, name: TableName, copy: TableCopy) -> _Active | None:
        """Continue a copy of an earlier session; None if it must begin again."""
        look = self._session.look(name)
        published = self._session.assembler.relations.tables.get(name)
        if look is not None and look.order is not None and published is not None:
            change = look.membership.since(copy.membership)
            if not change.whole and not change.altered and look.shape.schema_id == published.table.schema_id:
                self._session.say(f"going on with the copy of {name}, after {copy.rows} rows")
                return self._as_active(look)
        self._begin_again(name)
        return None

    def _as_active(self, look: Look) -> _Active:
        assert look.order is not None
        estimated = self._session.reading().estimated_rows(look.shape)
        return _Active(look.shape.name, look.shape, look.order, look.point.oid, look.point.columns, estimated)

    def _begin_again(self, name: TableName) -> None:
        self._session.say(f"{name}: its copy begins again, since the table was altered")
        self._put_down()
        self._session.assembler.relations.distrust(name)
        self._session.loop.adopt(self._session.loop.state.to_be_copied([name]))

    def _leave(self, name: TableName) -> None:
        """Let the stream stop for the table's copy, which restarts there: that locks one partition at a time."""
        self._session.say(
            f"{name}: PostgreSQL has no room for the locks that a chunk takes, of all partitions and their indexes;"
            " the table is copied as a whole, and the stream stops for that"
        )
        self._unserved.add(name)
        self._put_down()
        copy = self._session.loop.state.copying.get(name)
        if copy is not None and copy.has_begun:
            self._session.assembler.relations.distrust(name)
            self._session.loop.adopt(self._session.loop.state.to_be_copied([name]))

    def _next_range(self, active: _Active, copy: TableCopy, frame: Frame | None) -> Pause | None:
        name = active.name
        began_s = time.monotonic()
        rows_at_once = min(active.rows_at_once, self._rows_max)
        with self._session.reading().at_point(name) as point:
            if not self._is_as_before(active, point):
                return Pause(self._session.loop.state, frame)
            try:
                found = self._session.reading().rows_after(
                    active.shape, active.order, copy.after, rows=rows_at_once, limit_s=active.limit_s
                )
            except NothingYet:
                active.rows_at_once = max(1, rows_at_once // 8)
                active.limit_s *= 2
                self._session.waits.later(name, 0, "its next row takes long to be found; VACUUM removes dead ones")
                return Pause(self._session.loop.state, frame)
            self._session.note_partitions(name, point.oid)
        published = self._session.assembler.relations.tables[name]
        events = RowEvents.of(published, point.lsn, self._session.loop.state).of_lines(list(found.lines))
        lines = {key: line for (key, _), line in zip(events, found.lines, strict=True)} if copy.passes > 1 else {}
        size = sum(len(value) for _, value in events)
        took_s = time.monotonic() - began_s
        chunk = PendingChunk(published.topic, point.snapshot, dict(events))
        pause = self._session.publish_up_to(point.lsn, frame, chunk)
        if pause is None or not self._goes_on(active, copy):
            return pause
        rows_left = [(key, value) for key, value in chunk.events.items() if value is not None]
        self._session.loop.send_rows(OrdinaryRows(published.topic, rows_left, size, None))
        for key, line in lines.items():
            if key in chunk.events:
                self._session.assembler.rows.toast.remember_read(published, key, split_row(line[:-1]))
        if found.lines:
            active.rows_at_once = next_chunk_rows(
                len(found.lines) if found.is_cut else rows_at_once,
                took_s=took_s,
                target_s=self._target_s,
                row_bytes=size // len(found.lines),
            )
        active.limit_s = _ROW_LIMIT_S
        active.size += size
        self._rate.taken(len(found.lines))
        done = _without(self._session.loop.state.copying[name], chunk)
        rows = done.rows + (len(found.lines) if copy.passes == 1 else 0)
        copy = replace(done, after=found.last or copy.after, rows=rows, is_through=found.last is None)
        self._session.adopt(name, copy, point.lsn)
        self._session.waits.over(name)
        new = Copied(len(rows_left), size)
        self._copied(CopyProgress(name, rows, max(rows, active.estimated), active.size, finished=False, new=new))
        return Pause(self._session.loop.state, pause.frame)

    def _read_again(self, active: _Active, copy: TableCopy, frame: Frame | None) -> Pause | None:
        """Read the rows of updates that couldn't be completed."""
        done = self._look_up(active, copy, [key.encode() for key in copy.keys[: self._session.keys_at_once]], frame)
        return done.pause

    def _find_gone(self, active: _Active, copy: TableCopy, frame: Frame | None) -> Pause | None:
        """Look up keys whose newest event is older than the copy; if none is left, the copy has ended."""
        if active.scan is None:
            topic = self._session.assembler.relations.tables[active.name].topic
            since = tag_text(tag_prefix(self._session.loop.state.epoch, copy.since), SNAPSHOT_SEQ)
            log = self._session.stream.log
            active.scan = TopicScan(log.record_lists(topic, wait_s=_SCAN_WAIT_S), since, log.key_set())
        if not active.scan.go_on(self._target_s):
            return Pause(self._session.loop.state, frame)
        keys = active.scan.portion(self._session.keys_at_once)
        if not keys:
            return self._end(active, frame)
        done = self._look_up(active, copy, keys, frame)
        if done.is_published:
            active.scan.answered(len(keys))
        return done.pause

    def _look_up(self, active: _Active, copy: TableCopy, keys: Sequence[bytes], frame: Frame | None) -> "_Step":
        """Publish what the source has of these event keys: a row, or its deletion."""
        name, loop = active.name, self._session.loop
        published = self._session.assembler.relations.tables[name]
        # Keys from before the table's key, or the key's type, was changed have no row.
        own = [key for key in map(orjson.loads, keys) if is_key(published.table, key)]
        texts = [key_texts(published.table, key) for key in own]
        reader = self._session.reading()
        with reader.at_point(name) as point:
            if not self._is_as_before(active, point):
                return _Step(Pause(loop.state, frame))
            found, _ = reader.find_readable(published.table, texts)
            rows = self._session.rows_of(published, found)
            self._session.note_partitions(name, point.oid)
        answer = Answer(published, point.lsn, self._session.loop.state, rows, keys)
        chunk = PendingChunk(published.topic, point.snapshot, answer.events)
        pause = self._session.publish_up_to(point.lsn, frame, chunk)
        if pause is None or not self._goes_on(active, copy):
            return _Step(pause)
        self._session.send_answer(self._session.assembler.relations.tables[name], answer, chunk)
        self._rate.taken(len(rows))
        self._session.take_more_keys()
        self._session.adopt(name, _without(loop.state.copying[name], chunk), point.lsn)
        self._session.waits.over(name)
        return _Step(Pause(loop.state, pause.frame), is_published=True)

    def _end(self, active: _Active, frame: Frame | None) -> Pause:
        """Every row is on the topic, and every key that the source lacks is deleted from it. Waiting repairs of the
        table come next: their keys may be in chunks that were read before the requests came."""
        name, loop = active.name, self._session.loop
        topic = self._session.assembler.relations.tables[name].topic
        state = loop.state.with_whole(name)
        self._publisher.commit(state, covering=[topic])
        loop.adopt(state)
        self._session.assembler.relations.copied(name)
        rows = state.copied[name]
        self._put_down()
        self._copied(CopyProgress(name, rows, rows, active.size, finished=True))
        self._session.say(f"{name} is copied: {rows} rows")
        return Pause(loop.state, frame)

    def _is_as_before(self, active: _Active, point: Point) -> bool:
        """Whether the table still has the shape that its copy began with."""
        if (point.oid, point.columns) == (active.oid, active.columns):
            return True
        self._begin_again(active.name)
        return False

    def _goes_on(self, active: _Active, copy: TableCopy) -> bool:
        """Whether this copy of the table is still under way, in the same shape."""
        now = self._session.loop.state.copying.get(active.name)
        if now is None or now.since != copy.since:
            self._put_down()
            return False
        published = self._session.assembler.relations.tables.get(active.name)
        if published is None or published.table.schema_id != active.shape.schema_id:
            self._begin_again(active.name)
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Step:
    """A pause after a chunk, None if asked to stop, and whether the chunk was published."""

    pause: Pause | None
    is_published: bool = False


def _without(copy: TableCopy, chunk: PendingChunk) -> TableCopy:
    """The copy after the chunk is published: its keys needn't be read again."""
    return replace(copy, keys=tuple(key for key in copy.keys if key.encode() not in chunk.events))
