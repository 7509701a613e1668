"""Capture as one process: starts safely, takes the initial snapshot if there is none, then streams until told to stop.

The order of the start matters: older processes are fenced before the state that counts is read. Otherwise one of them
could commit after it.
"""

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from cdc.capture.batch import Committed
from cdc.capture.confirmation import KeepAlive
from cdc.capture.loop import Pause
from cdc.capture.ownership import Ownership
from cdc.kafka.control_topics import read_state, read_tables
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.record_limits import RecordLimit
from cdc.kafka.topic_admin import TopicPlan, table_topic_plan
from cdc.kafka.topic_names import is_outbox_topic, shared_outbox_topic
from cdc.model.errors import Fenced, LockstepError, TransactionTimedOut, Unavailable
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.replication import APPLICATION, ReplicationConnection, SystemIdentity
from cdc.postgres.slot import announce_capture, is_standby
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.stream.first_copy_pause import FirstCopyPause
from cdc.stream.live_stream import StreamOpener, StreamWrapper
from cdc.stream.repair_requests import RepairRequests
from cdc.stream.row_encoding import chosen_row_encoding
from cdc.stream.slot_watch import HeldWal, SlotWatch, look_at_slot
from cdc.stream.source_checks import check_system, require_primary, require_slot
from cdc.stream.table_publication import PublishedTables
from cdc.stream.table_selection import Selection, SelectionChanged, is_first_start, select_tables, why_left
from cdc.stream.topics import (
    adopt_topics,
    create_missing_topics,
    holding_events,
    order_secret,
    require_empty_topics,
    require_shapes,
    topic_identities,
)
from lockstep.capture.publisher import capture_publisher
from lockstep.captured_tables import recorded_shapes, recorded_state
from migrations.source import publication_sql
from snapshot.copy import CopyProgress
from snapshot.in_stream import StreamCopies
from snapshot.initial import InitialSnapshot
from snapshot.preparation import Stopped, waiting_for_slot
from snapshot.recovery import create_slot_again
from snapshot.worker import fence_workers

_RETRY_MAX_S = 10.0
_SAY_PAUSED_EVERY_S = 60.0
"""How often a waiting first copy reports how much WAL is held for it."""
_REQUIRE_SLOT_EVERY_S = 1.0
"""How often it checks that its slot still holds all that."""


@dataclass(frozen=True, slots=True)
class Observer:
    """``say`` gets sentences for people, the others numbers for displays."""

    say: Callable[[str], None] = lambda _: None
    copied: Callable[[CopyProgress], None] = lambda _: None
    committed: Callable[[Committed], None] = lambda _: None
    held: Callable[[HeldWal], None] = lambda _: None
    restarted: Callable[[], None] = lambda: None


PublisherWrapper = Callable[[TransactionalPublisher], Any]


def capture(
    pipeline: Pipeline,
    *,
    stopping: Callable[[], bool],
    observer: Observer,
    wrap_publisher: PublisherWrapper = lambda publisher: publisher,
    wrap_stream: StreamWrapper = lambda stream: stream,
) -> None:
    """Run until ``stopping``. If a server isn't available, begin again from the committed state after a while.

    Raises LockstepError if somebody has to act; Fenced and PositionMismatch are kinds of it. ``wrap_publisher`` and
    ``wrap_stream`` put something around the two edges; the crash tests kill the process there.
    """
    observer.say(f"rows are encoded by {chosen_row_encoding()}")
    wait_s = 0.5
    lasting = _Lasting(
        Ownership(uuid.uuid4().hex),
        RepairRequests(pipeline.slot, observer.say),
        SlotWatch(pipeline.slot, observer.say, observer.held),
        FirstCopyPause(pipeline.slot, observer.say),
    )
    while not stopping():
        started = time.monotonic()
        try:
            with contextlib.closing(
                _Session(pipeline, stopping, observer, wrap_publisher, wrap_stream, lasting)
            ) as session:
                try:
                    session.run()
                finally:
                    pipeline = session.pipeline
        except Stopped:
            return
        except SelectionChanged as changed:  # no server was away, so it is no restart
            observer.say(str(changed))
        except (Unavailable, psycopg.Error) as raised:
            error = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
            if not isinstance(error, Unavailable):
                raise error from raised
            wait_s = 0.5 if time.monotonic() - started > _RETRY_MAX_S else min(wait_s * 2, _RETRY_MAX_S)
            observer.restarted()
            observer.say(f"{error.message}; starting over from the committed state in {wait_s:.1f} s")
            _sleep(wait_s, stopping)


def _sleep(seconds: float, stopping: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not stopping():
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class _Lasting:
    """What outlives a session."""

    ownership: Ownership
    repairs: RepairRequests
    slot: SlotWatch
    pause: FirstCopyPause
    was_published: set[TableName] = field(default_factory=set)


class _Session:
    """One try: connections that are opened together and given up together."""

    def __init__(
        self,
        pipeline: Pipeline,
        stopping: Callable[[], bool],
        observer: Observer,
        wrap_publisher: PublisherWrapper,
        wrap_stream: StreamWrapper,
        lasting: _Lasting,
    ) -> None:
        self._lasting = lasting
        self._pipeline = self.pipeline = pipeline
        self._stopping = stopping
        self._observer = observer
        self._wrap_publisher = wrap_publisher
        self._wrap_stream = wrap_stream
        self._closing = contextlib.ExitStack()
        self._keep_alive = KeepAlive()
        self._limits: Mapping[str, RecordLimit] = {}
        self._order_secret = b""
        self._said_idle: set[str] = set()
        self._said_left: set[TableName] = set()

    def run(self) -> None:
        """Begin or go on. Returns when told to stop, or when the first copy should pause. Raises Unavailable if another
        try may succeed."""
        pipeline = self._pipeline
        sql: psycopg.Connection[Any] = self._closing.enter_context(
            contextlib.closing(connect(pipeline.source, application=APPLICATION))
        )
        sql.execute(LOCK_TIMEOUT)
        self._await_promotion(sql)
        self._lasting.pause.listen(sql)  # a process that sees capture at work may give it orders
        announce_capture(sql, pipeline.slot)
        self._keep_alive.add(lambda: self._lasting.slot.look_if_due(sql))
        self._keep_alive()  # even if Kafka is down, so that no session gets further than that
        identity = self._identify()
        if pipeline.source.has_patterns:
            self._select_tables(sql, recorded_state(pipeline))
        # Report what is wrong before anybody is fenced.
        self._limits = create_missing_topics(self._pipeline, self._observer.say)
        self._order_secret = order_secret(pipeline)
        self._lasting.pause.trust(self._order_secret)
        publisher = self._publisher()
        state = self._take_over(sql, publisher)
        pipeline = self._pipeline
        wrapped = self._wrap_publisher(publisher)
        if state is not None and state.phase is SnapshotPhase.RECOVERING:
            waiting = waiting_for_slot(sql, self._stopping, self._observer.say)
            state = create_slot_again(pipeline, sql, wrapped, state, while_waiting=waiting, say=self._observer.say)
        if state is not None and state.phase is SnapshotPhase.COPYING:
            state = self._wait_while_paused(sql, wrapped, state)
            if state.first_copy_paused:
                return  # told to stop
        if state is None or state.phase is not SnapshotPhase.DONE:
            state = self._initial_snapshot(sql, wrapped, state, identity)
            if state.phase is not SnapshotPhase.DONE:
                return  # the next session goes on with what is missing, or waits until it may
        self._lasting.pause.over()
        self._stream(sql, wrapped, state)

    def _await_promotion(self, sql: psycopg.Connection[Any]) -> None:
        """Raise Unavailable for a standby if something was captured before, and LockstepError if nothing was.

        In the middle of a failover, the standby may already have the source's address. It may lack WAL that it has yet
        to replay, or a slot. What is really missing is known once it is promoted.
        """
        pipeline = self._pipeline
        if is_standby(sql):
            if is_first_start(recorded_state(pipeline)):
                require_primary(sql)
            raise Unavailable("the source is a standby, and isn't promoted so far (is source.dsn right?)")

    def _select_tables(self, sql: psycopg.Connection[Any], state: CaptureState | None) -> None:
        """Take in what the patterns match, for a capture that goes on from this state, and report tables that left.

        Each session looks again: tables that match and can be captured by then join. Raises ConfigurationError for idle
        patterns before the first start.
        """
        source, say = self._pipeline.source, self._observer.say
        selection = select_tables(sql, self._pipeline, state, recorded_shapes(self._pipeline))
        if is_first_start(state):
            selection.require_any(source)
        for pattern in sorted(set(selection.idle) - self._said_idle):
            say(f"warning: no table matches {pattern!r} of source.tables")
        self._said_idle |= set(selection.idle)
        before = set() if state is None else set(state.captured or ())
        for name in sorted(before - {*selection.taken_in, *source.named}):
            self._say_left(name, selection)
        self.pipeline = self._pipeline = self._pipeline.capturing(selection.taken_in)

    def _say_left(self, name: TableName, selection: Selection) -> None:
        """Report a table that was captured before this session, once."""
        if name not in self._said_left:
            why = why_left(name, selection)
            if not self._pipeline.source.matches(name):
                why = "source.tables and source.exclude_tables leave it out; its topic stays as it is"
            self._observer.say(f"{name}: isn't captured any more; {why}")
        self._said_left.add(name)

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error, LockstepError):
            self._closing.close()

    def _publisher(self) -> TransactionalPublisher:
        publisher = capture_publisher(
            self._pipeline,
            while_waiting=self._keep_alive,
            new_topic=self._new_topic_plan,
            limits=self._limits,
            say=self._observer.say,
        )
        self._closing.callback(publisher.close)
        return publisher

    def _new_topic_plan(self, topic: str) -> TopicPlan | None:
        pipeline = self._pipeline
        is_shared = topic == shared_outbox_topic(pipeline.name)
        if not (pipeline.source.outbox_name and (is_shared or is_outbox_topic(pipeline.name, topic))):
            return None
        # Its name isn't shown: it is a row's type.
        self._observer.say("creating a topic for rows of the outbox")
        return table_topic_plan(topic, self._pipeline.kafka.topics, append_only=True)

    def _identify(self) -> SystemIdentity:
        with ReplicationConnection(self._pipeline.source) as connection:
            return connection.identify_system()

    def _take_over(self, sql: psycopg.Connection[Any], publisher: TransactionalPublisher) -> CaptureState | None:
        """Fence older processes, and sign the state with our name. None if nothing was ever published. A state of
        another version or another server is refused before anybody is fenced: the process that writes it goes on."""
        pipeline, client = self._pipeline, self._pipeline.kafka.client()
        state_before = read_state(client, pipeline.name, pipeline.slot)
        if self._lasting.ownership.is_taken:
            self._lasting.ownership.check(state_before)
        if state_before is not None:
            # The server is asked after the state was read: its WAL only grows, and its publisher goes on.
            check_system(state_before, self._identify(), pipeline)
        publisher.start()
        state = read_state(client, pipeline.name, pipeline.slot)
        if state is not None and state.phase is not SnapshotPhase.DONE:
            fence_workers(pipeline, while_waiting=self._keep_alive)
            # Records committed behind a transaction that a worker had open couldn't be seen before.
            state = read_state(client, pipeline.name, pipeline.slot)
        self._lasting.ownership.take(state)
        if state is None:
            return None
        if pipeline.source.has_patterns:
            # Again: until it was fenced, the process before this one may have taken tables in.
            self._select_tables(sql, state)
            create_missing_topics(self._pipeline, self._observer.say)
            pipeline = self._pipeline
        was_timeline, state = state.timeline, check_system(state, self._identify(), pipeline)
        if state.timeline != was_timeline:
            self._observer.say(
                f"the source was promoted, from timeline {was_timeline} to {state.timeline}, and has all that was"
                " published: going on"
            )
        # Even if we are the owner already: this also publishes progress that an earlier session owed, for all topics.
        source = pipeline.source
        state = replace(
            state, owner=self._lasting.ownership.name, captured=source.table_names, append_only=source.append_only_names
        )
        # Nobody follows a table that isn't configured: if it comes back, it must be copied.
        state = state.never_copied((state.memberships.keys() | state.copying.keys()) - pipeline.topics().keys())
        require_empty_topics(pipeline, state)
        asked = holding_events(pipeline)
        state = adopt_topics(state, topic_identities(pipeline), pipeline, self._observer.say, asked)
        require_shapes(state, read_tables(client, pipeline.name).keys(), pipeline, asked)
        publisher.commit(state, covering=list(pipeline.topics().values()))
        return state

    def _initial_snapshot(
        self, sql: psycopg.Connection[Any], publisher: Any, state: CaptureState | None, identity: SystemIdentity
    ) -> CaptureState:
        pipeline = self._pipeline
        snapshot = InitialSnapshot(
            pipeline,
            sql,
            owner=self._lasting.ownership.name,
            publish=PublishedTables(pipeline, sql, sql.info.dbname).of,
            say=self._observer.say,
            copied=self._observer.copied,
            stopping=self._stopping_after_look,
            pausing=lambda: self._is_to_pause(sql),
            limits=self._limits,
            create_publication=publication_sql(
                pipeline.publication, pipeline.source.published_names, version=sql.info.server_version
            ),
        )
        try:
            return snapshot.take(publisher, state, identity)
        except TransactionTimedOut:
            self._take_smaller_batches()
            raise

    def _take_smaller_batches(self) -> None:
        """Make the next session copy with smaller transactions, or with the same if they are as small as possible."""
        before = self._pipeline.copy_batch
        after = before.halved()
        self.pipeline = replace(self._pipeline, copy_batch=after)
        how = "has smaller transactions" if after != before else "can't have smaller transactions by itself"
        self._observer.say(
            f"the first copy {how}, until capture is started again: of {after.rows} rows or {after.bytes} bytes"
        )

    def _wait_while_paused(self, sql: psycopg.Connection[Any], publisher: Any, state: CaptureState) -> CaptureState:
        """The committed state once the first copy may go on, or when told to stop.

        Meanwhile nothing is open in the source: no snapshot, and no lock. The slot keeps its WAL. Raises
        PositionMismatch once it doesn't, since waiting would be in vain.
        """
        said_s = -math.inf
        required_s = -math.inf
        while not self._stopping_after_look():
            self._lasting.pause.look_if_due(sql)
            if time.monotonic() - required_s >= _REQUIRE_SLOT_EVERY_S:
                required_s = time.monotonic()
                require_slot(sql, state)
            before, state = state, self._lasting.pause.obeyed(state)
            if state is not before:
                publisher.commit(state)
            self._lasting.pause.committed(state)
            if not state.first_copy_paused:
                break
            if time.monotonic() - said_s >= _SAY_PAUSED_EVERY_S:
                said_s = time.monotonic()
                look = look_at_slot(sql, self._pipeline.slot, at_s=said_s)
                held = "" if look is None else f"; {HeldWal.of(look, None)}"
                self._observer.say(f"the first copy is paused, until `lockstep snapshot resume`{held}")
            time.sleep(0.1)
        return state

    def _is_to_pause(self, sql: psycopg.Connection[Any]) -> bool:
        self._lasting.pause.look_if_due(sql)
        return self._lasting.pause.is_ordered

    def _stopping_after_look(self) -> bool:
        self._keep_alive()
        return self._stopping()

    def _stream(self, sql: psycopg.Connection[Any], publisher: Any, state: CaptureState) -> None:
        """Follow the stream, and copy the tables that lack a copy in the middle of it."""
        require_slot(sql, state)
        stream = StreamOpener(
            pipeline=self._pipeline,
            sql=sql,
            publisher=publisher,
            repairs=self._lasting.repairs,
            keep_alive=self._keep_alive,
            say=self._observer.say,
            committed=self._observer.committed,
            stopping=self._stopping,
            closing=self._closing,
            wrap_stream=self._wrap_stream,
            order_secret=self._order_secret,
            was_published=self._lasting.was_published,
        ).open(state)
        copies = StreamCopies(
            self._pipeline,
            sql,
            stream,
            publisher=publisher,
            repairs=self._lasting.repairs,
            say=self._observer.say,
            copied=self._observer.copied,
            stopping=self._stopping,
            while_waiting=self._keep_alive,
        )
        self._closing.callback(copies.close)
        self._observer.say(f"streaming from {format_lsn(state.end_lsn)}")

        def may_copy(state: CaptureState) -> bool:
            return stream.is_resumed() and copies.may_begin(state)

        pause: Pause | None = Pause(stream.loop.state, None)
        while pause is not None:
            frame = pause.frame
            if stream.is_resumed() and copies.is_ready():
                try:
                    pause = copies.copy(frame)
                except (LockstepError, psycopg.Error) as error:
                    if not isinstance(error, Unavailable | Fenced):
                        stream.watch.require_selection(stream.loop.state)  # a table that joins stops no other one
                    raise
                frame = None if pause is None else pause.frame
            if pause is not None:
                pause = stream.loop.run(first=frame, may_copy=may_copy)
