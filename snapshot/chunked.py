"""Copies in the middle of the stream that don't stop it: a chunk of rows, what the stream has, and so on.

A chunk is read between two transactions of the stream, under a snapshot of its own, and without a slot. What that sees
has its commit records before H, the WAL's end after the snapshot was taken. Then the stream goes on up to H. The rows
are published there, tagged (H, 0). Why the order of the log is the order of the tags, and no row is older than its tag:

* Everything published before the rows commits before H, and everything after them at H or later.
* A row that a transaction before H changes which the snapshot doesn't see is left out. The event is a full row, or a
  delete, and newer than what the snapshot shows.
* A row that the stream changes later is older than that, and one that it changed before the chunk was read is seen as
  it became, if its transaction is visible. That is not so for a while after a commit, which is in the WAL before. So
  the xids of published transactions are kept until a snapshot sees them. Before that, no chunk is read.
* Nobody alters or empties the table between the snapshot and its reading: it is locked. Whoever did that before is
  visible. Partitions are locked later, when they are read. Where one was moved to another file in between, no key is
  taken for gone, and a copy that has read it begins again at the next look at the table.

Keys that the topic holds and the source doesn't have are found at the end. They are those whose newest event is older
than the copy, and a chunk of chosen keys says of each what the source has.

A row in which a large value is missing that nobody knows isn't published. Its key is read again by a chunk. The state
holds such keys, since they belong to the stream's position.

Why a copy ends, whatever is written meanwhile. Each chunk has at least one row, and the next one begins behind it.
Between a snapshot and its H lies a moment alone, however far the stream lags behind, so hardly any key is left out.
From the second pass on, what was read of a row is remembered, so it isn't missing in later updates. Keys that are read
again and the next rows come by turns; once there are too many of those keys, only rows do, up to the next pass.
While a chunk waits for commits to become visible, none is published that it would have to wait for as well. But a chunk
comes with the stream: where capture falls behind the source for good, it waits for ever longer.
"""

import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import orjson
import psycopg

from cdc.capture.assembler import Event, OrdinaryRows
from cdc.capture.loop import Pause
from cdc.capture.published_table import PublishedTable
from cdc.kafka.topic_reader import Record
from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connection_error
from cdc.postgres.slot import current_snapshot, emit_heartbeat
from cdc.protocol.control_records import CaptureState, SchemaRecord, ShapeChange, TableCopy
from cdc.protocol.copy_text import split_row
from cdc.protocol.envelope import DELETE_START, EVENT_START, TAG_END, TAG_START, tag_prefix, tag_text
from cdc.protocol.membership import Membership
from cdc.protocol.pgoutput import Field, Fields
from cdc.protocol.walsender import Frame
from cdc.spilling import SpillingMap
from cdc.stream.live_stream import LiveStream
from cdc.stream.repair_requests import RepairRequests
from snapshot.chunk_reader import ChunkReader, Gone, KeyOrder, Locked, NothingYet, Point, TooLarge
from snapshot.chunks import FIRST_ROWS, PendingChunk, next_chunk_rows
from snapshot.copy import CopyProgress
from snapshot.keys import key_texts
from snapshot.preparation import require_keys
from snapshot.row_events import RowEvents
from snapshot.row_rate import RowRate
from snapshot.table_reader import FoundKey, NoRoomForLocks
from snapshot.waits import Waits

KEYS_AT_ONCE: Final = 500
"""How many chosen keys one query reads, and one Kafka transaction takes at most."""

_LATER_S: Final = 0.2
"""When a chunk is tried again that couldn't be read."""

_MUCH_LATER_S: Final = 5.0
"""The same where somebody has to do something before."""

_ROW_LIMIT_S: Final = 1.0
"""How long the first row of a chunk may take at first, while the stream stands still."""

_UNSEEN_PATIENCE_S: Final = (0.05, 0.25)
"""How long the stream stands still for commits to become visible, at first and at most. Then it goes on for longer."""

_LOOK_S: Final = 0.002
"""How often is looked whether they have."""

_RATE_PORTION_S: Final = 0.1
"""A chunk has about as many rows as the limit of rows allows in this time."""

_SCAN_WAIT_S: Final = 0.005
"""How long a record of the topic is waited for, before the stream goes on."""

_LOCKED: Final = "it is locked, or another published table is, by an ALTER TABLE that isn't committed for instance"

_UNSEEN: Final = "transactions that are committed aren't visible to others so far: see synchronous_standby_names"


@dataclass(frozen=True, slots=True)
class _Look:
    """A table as it is at a point of the source. ``order`` is None where no index gives the order of its key."""

    point: Point
    shape: Table
    membership: Membership
    order: KeyOrder | None


@dataclass(slots=True)
class _Repaired:
    """What was published so far of one table's repair, and why keys of it were not."""

    rows: int = 0
    deletes: int = 0
    problems: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Active:
    """What is known of the table that is being copied, beside the state."""

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
    scan: "_TopicScan | None" = None


class _TopicScan:
    """Finds the keys of a topic whose newest event is a row of before a copy, a little at a time."""

    def __init__(self, records: Generator[list[Record], None, None], since_tag: bytes, keys: SpillingMap) -> None:
        self._records: Generator[list[Record], None, None] | None = records
        self._since_tag = since_tag
        self._keys = keys
        self._left: Iterator[bytes] | None = None
        self._portion: list[bytes] = []

    def go_on(self, seconds: float) -> bool:
        """Read for about so long. Whether all is read."""
        deadline = time.monotonic() + seconds
        while self._records is not None and time.monotonic() < deadline:
            records = next(self._records, None)
            if records is None:
                self._records = None
                break
            for record in records:
                value = record.value
                if value is None or value.startswith(DELETE_START):
                    self._keys.discard(record.key)
                elif value.startswith(EVENT_START):
                    if value[TAG_START:TAG_END] < self._since_tag:
                        self._keys[record.key] = b""
                    else:
                        self._keys.discard(record.key)
        return self._records is None

    def portion(self, keys: int) -> list[bytes]:
        """So many of the keys that were found, the same ones until they are ``answered``; none after the last."""
        if not self._portion:
            if self._left is None:
                self._left = iter(self._keys)
            self._portion = list(islice(self._left, KEYS_AT_ONCE))
        return self._portion[:keys]

    def answered(self, keys: int) -> None:
        """Go on behind so many of them."""
        del self._portion[:keys]

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
        self._records = self._left = None
        self._keys.close()


class ChunkedCopies:
    """The copies of one session that don't stop its stream, and the repairs."""

    def __init__(
        self,
        pipeline: Pipeline,
        sql: psycopg.Connection[Any],
        stream: LiveStream,
        *,
        publisher: Any,
        repairs: RepairRequests,
        say: Callable[[str], None],
        copied: Callable[[CopyProgress], None],
        while_waiting: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._sql = sql
        self._stream = stream
        self._loop = stream.loop
        self._assembler = stream.assembler
        self._publisher = publisher
        self._repairs = repairs
        self._say = say
        self._copied = copied
        self._while_waiting = while_waiting
        self._target_s = pipeline.snapshot.chunk_ms / 1000
        self._rate = RowRate(pipeline.snapshot.rows_per_s, time.monotonic)
        self._rows_max = math.ceil(pipeline.snapshot.rows_per_s * _RATE_PORTION_S) or sys.maxsize
        self._keys_at_once = KEYS_AT_ONCE
        self._reader: ChunkReader | None = None
        self._active: _Active | None = None
        self._unserved: set[TableName] = set()
        self._unseen_patience_s = _UNSEEN_PATIENCE_S[0]
        self._waits = Waits(time.monotonic, say)
        self._asked_at: object = None
        self._repaired: dict[TableName, _Repaired] = {}
        self._repair_waits_for = ""

    def close(self) -> None:
        self._put_down()
        if self._reader is not None:
            self._reader.close()

    def serves(self, name: TableName) -> bool:
        """Whether a table is copied in chunks, as far as that is known; else the stream has to stop for it."""
        return (
            name in self._pipeline.source.keyed_names
            and name not in self._unserved
            and not self._stream.watch.only_leaves(name)
        )

    def wants(self, state: CaptureState) -> bool:
        """Whether a chunk can be read now."""
        if self._next(state) is not None or self._next_repair(state) is not None:
            return True
        if self._waits or self._rate.wait_s() > 0:
            self._loop.pause_after(_LATER_S)
        return False

    def step(self, frame: Frame | None) -> Pause | None:
        """Read and publish one chunk, or what comes between two. ``frame`` comes after it. None when told to stop.

        Raises what the source, the stream and Kafka raise.
        """
        began_s = time.monotonic()
        state = self._loop.state
        pause: Pause | None = Pause(state, frame)
        if self._reader is not None and self._reader.is_closed:
            self._put_down()  # what it has asked is gone with it
        repaired = self._next_repair(state)  # first, since it is short
        name = repaired or self._next(state)
        if name is None:
            return pause
        try:
            if repaired is not None:
                pause = self._repair(name, frame)
            elif self._sees_all(name):
                pause = self._copy(name, frame)
        except Gone:
            self._stream.watch.missing(name)
            self._put_down()
            self._waits.later(name, _MUCH_LATER_S)
        except Locked:
            self._waits.later(name, _LATER_S, _LOCKED)
        except NoRoomForLocks:
            self._leave(name)
        except TooLarge:
            self._keys_at_once = max(1, self._keys_at_once // 8)
        # Under a backlog the stream gets as much time as the chunk took.
        self._loop.pause_after(min(time.monotonic() - began_s, 1.0))
        return pause

    def _next(self, state: CaptureState) -> TableName | None:
        """The table to go on with: one that has begun first."""
        if self._rate.wait_s() > 0:
            return None
        lacking = [
            name
            for name in self._pipeline.source.table_names
            if name not in state.copied
            and self.serves(name)
            and not (name in state.copying and state.copying[name].paused)
            and not self._waits.for_table(name)
        ]
        begun = [name for name in lacking if name in state.copying and state.copying[name].has_begun]
        return next(iter([*begun, *lacking]), None)

    def _next_repair(self, state: CaptureState) -> TableName | None:
        """A table of which rows are to be read again. One that lacks its copy gets that instead."""
        names = (name for name in self._repairs.tables() if name in state.copied and not self._waits.for_table(name))
        return next(names, None)

    def _put_down(self) -> None:
        if self._active is not None and self._active.scan is not None:
            self._active.scan.close()
        self._active = None

    # One table.

    def _copy(self, name: TableName, frame: Frame | None) -> Pause | None:
        state = self._loop.state
        copy = state.copying.get(name)
        if self._active is not None and self._active.name != name:
            self._put_down()
        if copy is None or not copy.has_begun:
            return self._begin(name, frame)
        active = self._active or self._resume(name, copy)
        if active is None:
            return Pause(self._loop.state, frame)
        self._active = active
        if copy.keys and not copy.is_incomplete and (copy.is_through or not active.has_read_again):
            active.has_read_again = True  # by turns: there may be new ones all the time
            return self._read_again(active, copy, frame)
        active.has_read_again = False
        if not copy.is_through:
            return self._next_range(active, copy, frame)
        if copy.is_incomplete:
            self._adopt(name, replace(copy, after=None, is_through=False, is_incomplete=False, passes=copy.passes + 1))
            return Pause(self._loop.state, frame)
        return self._find_gone(active, copy, frame)

    def _begin(self, name: TableName, frame: Frame | None) -> Pause | None:
        """From here on the table is followed, in the shape that it has at this point."""
        self._put_down()
        emit_heartbeat(self._sql)  # so that no event of before has the tag of this point
        look = self._look(name)
        if look is None:
            raise Gone
        require_keys(self._pipeline, [look.shape])
        if look.order is None:
            self._unserved.add(name)
            return Pause(self._loop.state, frame)
        pause = self._publish_up_to(look.point.lsn, frame)
        if pause is None:
            return None
        loop, assembler = self._loop, self._assembler
        at = look.point.lsn
        shape = replace(look.shape, epoch=loop.state.epoch)
        published = self._stream.tables.of(shape)
        before = assembler.tables.get(name) or assembler.passed_over.get(name)
        is_new = before is None or before.table != shape
        asked = loop.state.copying.get(name, TableCopy())
        self._say(f"copying {name} at {format_lsn(at)}, in chunks beside the stream")
        # A process that dies after the commit must not complete an update from values of before it.
        self._stream.toast.store.clear(published.topic)
        self._stream.toast.store.commit(assembler.position)
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
        assembler.replace(published, copying=True)
        self._active = self._as_active(look)
        return Pause(loop.state, pause.frame)

    def _resume(self, name: TableName, copy: TableCopy) -> _Active | None:
        """Go on with a copy of an earlier session; None where it has to begin again."""
        look = self._look(name)
        published = self._assembler.tables.get(name)
        if look is not None and look.order is not None and published is not None:
            change = look.membership.since(copy.membership)
            if not change.whole and not change.altered and look.shape.schema_id == published.table.schema_id:
                self._say(f"going on with the copy of {name}, after {copy.rows} rows")
                return self._as_active(look)
        self._begin_again(name)
        return None

    def _as_active(self, look: _Look) -> _Active:
        assert look.order is not None
        estimated = self._reading().estimated_rows(look.shape)
        return _Active(look.shape.name, look.shape, look.order, look.point.oid, look.point.columns, estimated)

    def _begin_again(self, name: TableName) -> None:
        self._say(f"{name}: its copy begins again, since the table was altered")
        self._put_down()
        self._assembler.distrust(name)
        self._loop.adopt(self._loop.state.to_be_copied([name]))

    def _leave(self, name: TableName) -> None:
        """Have the stream stop for the table's copy, which begins again there: that locks one partition at a time."""
        self._say(
            f"{name}: PostgreSQL has no room for the locks that a chunk takes, of all partitions and their indexes;"
            " the table is copied as a whole, and the stream stops for that"
        )
        self._unserved.add(name)
        self._put_down()
        copy = self._loop.state.copying.get(name)
        if copy is not None and copy.has_begun:
            self._assembler.distrust(name)
            self._loop.adopt(self._loop.state.to_be_copied([name]))

    def _next_range(self, active: _Active, copy: TableCopy, frame: Frame | None) -> Pause | None:
        name = active.name
        began_s = time.monotonic()
        rows_at_once = min(active.rows_at_once, self._rows_max)
        with self._reading().at_point(name) as point:
            if not self._is_as_before(active, point):
                return Pause(self._loop.state, frame)
            try:
                found = self._reading().rows_after(
                    active.shape, active.order, copy.after, rows=rows_at_once, limit_s=active.limit_s
                )
            except NothingYet:
                active.rows_at_once = max(1, rows_at_once // 8)
                active.limit_s *= 2
                self._waits.later(name, 0, "its next row takes long to be found; VACUUM removes dead ones")
                return Pause(self._loop.state, frame)
        published = self._assembler.tables[name]
        events = row_events(published, point.lsn, self._loop.state).of_lines(list(found.lines))
        lines = {key: line for (key, _), line in zip(events, found.lines, strict=True)} if copy.passes > 1 else {}
        size = sum(len(value) for _, value in events)
        took_s = time.monotonic() - began_s
        chunk = PendingChunk(published.topic, point.snapshot, dict(events))
        pause = self._publish_up_to(point.lsn, frame, chunk)
        if pause is None or not self._goes_on(active, copy):
            return pause
        rows_left = [(key, value) for key, value in chunk.events.items() if value is not None]
        self._loop.send_rows(OrdinaryRows(published.topic, rows_left, size, None))
        for key, line in lines.items():
            if key in chunk.events:
                self._assembler.remember(published, key, split_row(line[:-1]))
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
        done = _without(self._loop.state.copying[name], chunk)
        rows = done.rows + (len(found.lines) if copy.passes == 1 else 0)
        copy = replace(done, after=found.last or copy.after, rows=rows, is_through=found.last is None)
        self._adopt(name, copy, point.lsn)
        self._waits.over(name)
        self._copied(CopyProgress(name, rows, max(rows, active.estimated), active.size, finished=False))
        return Pause(self._loop.state, pause.frame)

    def _read_again(self, active: _Active, copy: TableCopy, frame: Frame | None) -> Pause | None:
        """The rows of updates that couldn't be completed."""
        done = self._look_up(active, copy, [key.encode() for key in copy.keys[: self._keys_at_once]], frame)
        return done.pause

    def _find_gone(self, active: _Active, copy: TableCopy, frame: Frame | None) -> Pause | None:
        """Keys whose newest event is older than the copy; when none is left, the copy has ended."""
        if active.scan is None:
            topic = self._assembler.tables[active.name].topic
            since = tag_text(tag_prefix(self._loop.state.epoch, copy.since), SNAPSHOT_SEQ)
            log = self._stream.log
            active.scan = _TopicScan(log.record_lists(topic, wait_s=_SCAN_WAIT_S), since, log.key_set())
        if not active.scan.go_on(self._target_s):
            return Pause(self._loop.state, frame)
        keys = active.scan.portion(self._keys_at_once)
        if not keys:
            return self._end(active, frame)
        done = self._look_up(active, copy, keys, frame)
        if done.is_published:
            active.scan.answered(len(keys))
        return done.pause

    def _look_up(self, active: _Active, copy: TableCopy, keys: Sequence[bytes], frame: Frame | None) -> "_Step":
        """Publish what the source has of these keys of events: a row, or that it is gone."""
        name, loop = active.name, self._loop
        published = self._assembler.tables[name]
        texts = []
        for key in keys:
            with contextlib.suppress(ValueError):  # of another key than the table has now: there is no such row
                texts.append(key_texts(published.table, orjson.loads(key)))
        reader = self._reading()
        with reader.at_point(name) as point:
            if not self._is_as_before(active, point):
                return _Step(Pause(loop.state, frame))
            found, _ = reader.find_readable(published.table, texts)
            rows = self._rows_of(published, found)
        answer = _Answer(published, point.lsn, self._loop.state, rows, keys)
        chunk = PendingChunk(published.topic, point.snapshot, answer.events)
        pause = self._publish_up_to(point.lsn, frame, chunk)
        if pause is None or not self._goes_on(active, copy):
            return _Step(pause)
        self._send_answer(self._assembler.tables[name], answer, chunk)
        self._rate.taken(len(rows))
        self._keys_at_once = min(2 * self._keys_at_once, KEYS_AT_ONCE)
        self._adopt(name, _without(loop.state.copying[name], chunk), point.lsn)
        self._waits.over(name)
        return _Step(Pause(loop.state, pause.frame), is_published=True)

    def _end(self, active: _Active, frame: Frame | None) -> Pause:
        """Every row is on the topic, and every key that the source hasn't is deleted from it."""
        name, loop = active.name, self._loop
        topic = self._assembler.tables[name].topic
        state = loop.state.with_whole(name)
        self._publisher.commit(state, covering=[topic])
        loop.adopt(state)
        self._assembler.copied(name)
        rows = state.copied[name]
        self._put_down()
        self._repairs.done(name)
        self._copied(CopyProgress(name, rows, rows, active.size, finished=True))
        self._say(f"{name} is copied: {rows} rows")
        return Pause(loop.state, frame)

    # Repairs.

    def _repair(self, name: TableName, frame: Frame | None) -> Pause | None:
        """Publish what the source has of keys that wait.

        What keeps it from being read is said, and keeps nothing else: it is tried again later.
        """
        loop = self._loop
        problems = Counter[str]()
        try:
            if not self._sees_all(name):
                return Pause(loop.state, frame)
            asked = self._repairs.keys(name)[: self._keys_at_once]
            with self._looking(name) as look:
                published = self._repairable(name, look)
                if look is None or published is None:
                    return Pause(loop.state, frame)
                texts = []
                for key in asked:
                    try:
                        texts.append(key_texts(look.shape, key))
                    except ValueError as error:
                        problems[str(error)] += 1
                found, unreadable = self._reading().find_readable(look.shape, texts)
                rows = self._rows_of(published, found)
        except (LockstepError, psycopg.Error) as raised:
            waits_for = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
            if waits_for.message != self._repair_waits_for:
                self._repair_waits_for = waits_for.message
                self._say(f"warning: a repair waits: {waits_for.message}")
            self._waits.later(name, _MUCH_LATER_S)
            return Pause(loop.state, frame)
        types = ", ".join(f"{column.name} {column.type_name}" for column in look.shape.key_columns)
        for _, why in unreadable:
            problems[f"PostgreSQL doesn't take them for a key ({types}): {why}"] += 1
        answer = _Answer(
            published, look.point.lsn, loop.state, rows, [published.encoder.key(key.fields) for key in found]
        )
        chunk = PendingChunk(published.topic, look.point.snapshot, answer.events)
        pause = self._publish_up_to(look.point.lsn, frame, chunk)
        if pause is None:
            return None
        if not self._has_shape(name, look):
            return Pause(loop.state, pause.frame)
        self._send_answer(self._assembler.tables[name], answer, chunk)
        self._adopt(name, None, look.point.lsn)
        loop.commit()  # a session that is lost before has the next one answer the request
        self._repairs.done_keys(name, asked)
        self._keys_at_once = min(2 * self._keys_at_once, KEYS_AT_ONCE)
        self._waits.over(name)
        self._repair_waits_for = ""
        repaired = self._repaired.setdefault(name, _Repaired())
        repaired.problems += problems
        repaired.rows += sum(value is not None for value in chunk.events.values())
        repaired.deletes += sum(value is None for value in chunk.events.values())
        if name not in self._repairs.tables():
            self._say(
                f"{name}: published {repaired.rows} rows and {repaired.deletes} deletes again at"
                f" {format_lsn(look.point.lsn)}, for a repair"
            )
            for reason, count in repaired.problems.items():
                self._say(f"warning: keys of a repair of {name} are ignored ({count}): {reason}")
            del self._repaired[name]
        return Pause(loop.state, pause.frame)

    def _repairable(self, name: TableName, look: _Look | None) -> PublishedTable | None:
        """How the table is published in the shape that it has now; None where the repair isn't to be done so."""
        if look is None:
            self._ignore(name, f"it isn't in publication {self._pipeline.publication} under this name")
            return None
        known = self._assembler.tables.get(name)
        if known is None or known.table.key != look.shape.key:
            self._ignore(name, "its key is another one by now")
            return None
        require_keys(self._pipeline, [look.shape])
        recorded = self._loop.state.memberships.get(name)
        whole = "it lacks its copy" if recorded is None else look.membership.since(recorded).whole
        if whole:
            self._say(f"{name}: {whole}; copying it again instead of a repair")
            self._loop.adopt(self._loop.state.to_be_copied([name]))
            return None
        if known.table.schema_id == look.shape.schema_id:
            return known
        return self._stream.tables.of(replace(look.shape, epoch=known.table.epoch))

    def _has_shape(self, name: TableName, look: _Look) -> bool:
        """Whether the stream is at the shape of the chunk. One of which it has had no row yet is recorded first."""
        loop, assembler = self._loop, self._assembler
        if name not in loop.state.copied or name not in assembler.tables:
            return False
        known = assembler.tables[name]
        if known.table.schema_id != look.shape.schema_id:
            relation = self._stream.shapes.current_relation(name)
            adopted = self._stream.shapes.adopt(relation, known) if relation is not None else None
            if adopted is not None and adopted.table.schema_id == look.shape.schema_id:  # else altered again since
                assembler.record(adopted)
                loop.commit()
            known = assembler.tables[name]
            if known.table.schema_id != look.shape.schema_id:
                loop.adopt(loop.state.to_be_copied([name]))
        return name in loop.state.copied  # a copy of the whole table answers the repair as well

    def _ignore(self, name: TableName, why: str) -> None:
        self._say(f"warning: a repair of {name} is ignored: {why}")
        self._repairs.done(name)
        self._repaired.pop(name, None)

    # What all chunks need.

    def _reading(self) -> ChunkReader:
        if self._reader is None or self._reader.is_closed:
            self._reader = ChunkReader(self._pipeline.source, self._while_waiting)
        return self._reader

    def _look(self, name: TableName) -> _Look | None:
        with self._looking(name) as look:
            return look

    @contextlib.contextmanager
    def _looking(self, name: TableName) -> Iterator[_Look | None]:
        """The table at a point of the source; None where it isn't published under this name."""
        pipeline, reader = self._pipeline, self._reading()
        try:
            with reader.at_point(name) as point:
                shape = reader.tables([name], pipeline.publication, pipeline.source.keys).get(name)
                membership = reader.memberships(pipeline.publication, [name]).get(name)
                if shape is None or membership is None:
                    yield None
                else:
                    yield _Look(point, shape, membership, reader.key_order(shape))
        except Gone:
            yield None

    def _is_as_before(self, active: _Active, point: Point) -> bool:
        """Whether the table has the shape that its copy began with."""
        if (point.oid, point.columns) == (active.oid, active.columns):
            return True
        self._begin_again(active.name)
        return False

    def _sees_all(self, name: TableName) -> bool:
        """Whether all later snapshots see everything that is published; else the table is put off."""
        if self._asked_at is None:
            self._ask_who_may_be_committing()
        unfinished = self._stream.unfinished
        if unfinished.of_before:
            self._leave_out_those_that_run(unfinished.of_before)
        deadline = time.monotonic() + self._unseen_patience_s
        while not unfinished.all_seen_by(current_snapshot(self._sql)):
            if time.monotonic() > deadline:
                self._waits.later(name, 4 * self._unseen_patience_s, _UNSEEN)
                self._unseen_patience_s = min(2 * self._unseen_patience_s, _UNSEEN_PATIENCE_S[1])
                return False
            time.sleep(_LOOK_S)
        self._unseen_patience_s = _UNSEEN_PATIENCE_S[0]
        return True

    def _ask_who_may_be_committing(self) -> None:
        """An earlier process may have published transactions that aren't visible yet. They are among those that run."""
        emit_heartbeat(self._sql)
        self._asked_at, running = self._reading().running_now()
        self._leave_out_those_that_run(running)

    def _leave_out_those_that_run(self, xids: frozenset[int]) -> None:
        running = self._reading().not_committing(self._asked_at)
        self._stream.unfinished.may_be_of_before([xid for xid in xids if xid & 0xFFFFFFFF not in running])

    def _publish_up_to(self, lsn: Lsn, frame: Frame | None, chunk: PendingChunk | None = None) -> Pause | None:
        """Publish what commits before ``lsn``, and leave out of the chunk what that knows better."""
        emit_heartbeat(self._sql)  # so that something after it comes, also when nobody writes
        if chunk is None:
            return self._loop.run(first=frame, until=lsn)
        pending = chunk

        def changed(topic: str, keys: Sequence[bytes]) -> None:
            pending.changed(topic, keys, xid=self._stream.unfinished.newest)

        with self._loop.watching(changed):
            return self._loop.run(first=frame, until=lsn)

    def _goes_on(self, active: _Active, copy: TableCopy) -> bool:
        """Whether the table is still being copied by this copy, in the same shape."""
        now = self._loop.state.copying.get(active.name)
        if now is None or now.since != copy.since:
            self._put_down()
            return False
        published = self._assembler.tables.get(active.name)
        if published is None or published.table.schema_id != active.shape.schema_id:
            self._begin_again(active.name)
            return False
        return True

    def _rows_of(self, published: PublishedTable, found: Sequence[FoundKey]) -> list[Fields]:
        """The rows of the keys that have one."""
        table = published.table
        positions = published.encoder.key_positions
        wanted = [tuple(_text(key.fields[position]) for position in positions) for key in found if key.has_row]
        return self._reading().rows_in_bounds(table, wanted) if wanted else []

    def _send_answer(self, published: PublishedTable, answer: "_Answer", chunk: PendingChunk) -> None:
        # Before Kafka has the new rows: whoever dies in between must not complete a later update from the old ones.
        for key in chunk.events:
            self._assembler.forget(published, key)
        self._stream.toast.store.commit(self._assembler.position)
        events: list[Event] = []
        for key, value in chunk.events.items():
            if value is not None:
                self._assembler.remember(published, key, answer.fields[key])
                events.append((published.topic, key, value, None))
            else:
                events.append((published.topic, key, answer.deleted, None))
                events.append((published.topic, key, None, answer.tombstone_tag))
        self._loop.send(events)

    def _adopt(self, name: TableName, copy: TableCopy | None, lsn: int = 0) -> None:
        """The state with what is published now, of rows as of ``lsn``: a source must have that."""
        state = self._loop.state
        if copy is not None:
            state = state.with_copy(name, copy)
        self._loop.adopt(replace(state, handoff=max(state.handoff, lsn)))


@dataclass(frozen=True, slots=True)
class _Step:
    """A pause after a chunk, None when told to stop, and whether the chunk was published."""

    pause: Pause | None
    is_published: bool = False


class _Answer:
    """The events of rows that were looked up by key; those of ``keys`` that have none are gone."""

    def __init__(
        self, published: PublishedTable, lsn: int, state: CaptureState, rows: Sequence[Fields], keys: Sequence[bytes]
    ) -> None:
        encode = row_events(published, lsn, state)
        self.fields: dict[bytes, Fields] = {}
        self.events: dict[bytes, bytes | None] = dict.fromkeys(keys)
        for fields in rows:
            key, value = encode.of_fields(fields)
            self.fields[key] = fields
            self.events[key] = value
        self.deleted = encode.of_delete()
        self.tombstone_tag = encode.tombstone_tag


def row_events(published: PublishedTable, lsn: int, state: CaptureState) -> RowEvents:
    """The encoder of rows as of this position."""
    return RowEvents(
        published.encoder,
        published.kernel,
        epoch=state.epoch,
        consistent_point=lsn,
        commit_time_ms=state.commit_time_ms,
    )


def _without(copy: TableCopy, chunk: PendingChunk) -> TableCopy:
    """The copy when the chunk is published: what is in it needn't be read again."""
    return replace(copy, keys=tuple(key for key in copy.keys if key.encode() not in chunk.events))


def _text(value: Field) -> str:
    assert isinstance(value, bytes)  # a key's: it was read as one
    return value.decode()
