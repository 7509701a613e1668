"""Capture as one process: start safely, take the initial snapshot where there is none, then stream until told to stop.

The order of the start matters. Fencing comes before the state is read, else an older process could commit after it. The
state names the slot before the slot is made, so that whatever was interrupted is known to be ours.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import psycopg

from cdc.capture.assembler import Assembler, PublishedTable
from cdc.capture.loop import CaptureLoop, Clock, Committed, Confirmation, Pause
from cdc.capture.side_channels import MessageChannel, OutboxChannel
from cdc.kafka.cluster import (
    COMMIT_MARKER_LOSS,
    Cluster,
    TopicPlan,
    control_topic_plans,
    message_topic_plans,
    table_topic_plan,
)
from cdc.kafka.control_topics import read_state, read_tables
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.topic_reader import TopicReader
from cdc.kafka.topics import MESSAGES, control_topic, outbox_topic
from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table import ReplicaIdentity, Table, TableName, quote_identifier
from cdc.model.tag import SNAPSHOT_SEQ
from cdc.postgres.catalogue import Membership, keys_can_swap, memberships, name_of_oid, unpublished_kinds
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.preflight import check_source
from cdc.postgres.preflight.finding import Severity
from cdc.postgres.replication import (
    APPLICATION,
    ComingSlot,
    CreatedSlot,
    ReplicationConnection,
    SystemIdentity,
)
from cdc.postgres.slot import (
    blocking_transactions,
    drop_slot,
    emit_heartbeat,
    end_other_reader,
    find_slot,
    sender_timeout_s,
    wal_end,
)
from cdc.postgres.storage import load_rule
from cdc.protocol.control import CaptureState, SchemaRecord, SnapshotPhase
from cdc.protocol.envelope import TableEncoder
from lockstep.config import Config
from lockstep.large_values import LargeValues
from lockstep.shapes import CatalogueShapes
from migrations.source import publication_sql
from snapshot.copy import CopyProgress, Interrupted, copy_into_stream, copy_tables
from snapshot.table_reader import SnapshotReader

FIRST_EPOCH = 0

_SLOT_NAME_MAX = 63
_SLOT_PATIENCE_S = 3.0
"""How long the stream may stand for a slot that is created while nothing else is done."""

_STATUS_INTERVAL_S = 10.0
_TAKE_OVER_S = 30.0
_RETRY_MAX_S = 10.0
_REPORT_BLOCKERS_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Observer:
    """Who wants to know: ``say`` gets sentences for people, the others numbers for displays."""

    say: Callable[[str], None] = lambda _: None
    copied: Callable[[CopyProgress], None] = lambda _: None
    committed: Callable[[Committed], None] = lambda _: None


PublisherWrapper = Callable[[TransactionalPublisher], Any]
StreamWrapper = Callable[[ReplicationConnection], Any]


def capture(
    config: Config,
    *,
    stopping: Callable[[], bool],
    observer: Observer,
    wrap_publisher: PublisherWrapper = lambda publisher: publisher,
    wrap_stream: StreamWrapper = lambda stream: stream,
) -> None:
    """Run until ``stopping``. What can heal by itself is tried again from the committed state; the rest is raised.

    ``wrap_publisher`` and ``wrap_stream`` put something around the two edges; the crash tests kill the process there.
    """
    wait_s = 0.5
    owner = uuid.uuid4().hex
    is_first = True
    while not stopping():
        started = time.monotonic()
        session = _Session(config, stopping, observer, wrap_publisher, wrap_stream, owner=owner, takes_over=is_first)
        is_first = False
        try:
            session.run()
        except _Stopped:
            return
        except (Unavailable, psycopg.OperationalError) as raised:
            error = connection_error(raised) if isinstance(raised, psycopg.OperationalError) else raised
            if not isinstance(error, Unavailable):
                raise error from raised
            wait_s = 0.5 if time.monotonic() - started > _RETRY_MAX_S else min(wait_s * 2, _RETRY_MAX_S)
            observer.say(f"{error.message}; starting over from the committed state in {wait_s:.1f} s")
            _sleep(wait_s, stopping)
        finally:
            session.close()


def _sleep(seconds: float, stopping: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not stopping():
        time.sleep(0.1)


class _Stopped(Exception):
    """Told to stop while waiting for PostgreSQL."""


class _Session:
    """One try: connections that are opened together and given up together."""

    def __init__(
        self,
        config: Config,
        stopping: Callable[[], bool],
        observer: Observer,
        wrap_publisher: PublisherWrapper,
        wrap_stream: StreamWrapper,
        *,
        owner: str,
        takes_over: bool,
    ) -> None:
        self._owner = owner
        self._takes_over = takes_over
        self._config = config
        self._stopping = stopping
        self._observer = observer
        self._wrap_publisher = wrap_publisher
        self._wrap_stream = wrap_stream
        self._client = config.kafka.client()
        self._closing = contextlib.ExitStack()
        self._confirmation: Confirmation | None = None
        self._absent: set[TableName] = set()
        self._renamed_to: dict[TableName, TableName] = {}
        self._altered: dict[TableName, Lsn] = {}
        self._only_leaves: dict[TableName, str] = {}
        self._coming_slot: ComingSlot | None = None

    def run(self) -> None:
        config = self._config
        sql: psycopg.Connection[Any] = self._closing.enter_context(
            contextlib.closing(connect(config.source, application=APPLICATION))
        )
        sql.execute(LOCK_TIMEOUT)
        with ReplicationConnection(config.source) as connection:
            identity = connection.identify_system()
        self._create_topics()
        publisher = TransactionalPublisher(
            self._client,
            prefix=config.pipeline.name,
            transactional_id=f"{config.pipeline.name}.{config.slot}",
            queue_bytes=config.capture.queue_bytes,
            max_message_bytes=config.kafka.topics.max_message_bytes,
            while_waiting=self._while_waiting,
            new_topic=self._outbox_topic_plan if config.source.outbox_name else None,
        )
        self._closing.callback(publisher.close)
        if not self._takes_over:
            self._require_still_owner()
        publisher.start()
        wrapped = self._wrap_publisher(publisher)
        state = read_state(self._client, config.pipeline.name, config.slot)
        if state is not None:
            _check_system(state, identity, config)
            # Also when we are the owner already: what an earlier session owed of progress is made good for all topics.
            state = replace(state, owner=self._owner)
            # Nobody follows a table that isn't configured: if it comes back, it has to be copied.
            state = state.to_be_copied(state.copied.keys() - config.topics().keys())
            publisher.commit(state, covering=list(config.topics().values()))
        if state is None or state.phase is not SnapshotPhase.DONE:
            state = self._snapshot(sql, wrapped, state, identity)
            if state.phase is not SnapshotPhase.DONE:
                return  # told to stop; the next start goes on with the tables that are missing
        self._stream(sql, wrapped, state)

    def _require_still_owner(self) -> None:
        """A process that starts takes over; one that only lost its connections must not, since that may have been done to it."""
        state = read_state(self._client, self._config.pipeline.name, self._config.slot)
        if state is not None and state.owner != self._owner:
            raise Fenced(
                "another capture process of this slot has taken over; this one stops",
                hint="exactly one may run: if it wasn't you, look for a second `lockstep capture` or `lockstep run`",
            )

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error, LockstepError):
            self._closing.close()

    def _while_waiting(self) -> None:
        if self._confirmation is not None:
            self._confirmation.say_if_due()

    def _outbox_topic_plan(self, topic: str) -> TopicPlan:
        self._observer.say(f"creating topic {topic}")
        return table_topic_plan(topic, self._config.kafka.topics, append_only=True)

    def _create_topics(self) -> None:
        config = self._config
        cluster = Cluster(self._client)
        plans = [
            *control_topic_plans(config.pipeline.name, config.kafka.topics),
            *(message_topic_plans(config.pipeline.name, config.kafka.topics) if config.source.messages else []),
            *(
                table_topic_plan(topic, config.kafka.topics, append_only=name in config.source.append_only)
                for name, topic in config.topics().items()
            ),
        ]
        missing = cluster.missing(plans)
        if missing:
            self._observer.say(f"creating topics: {', '.join(plan.name for plan in missing)}")
            cluster.create(missing)
        wrong = [sentence for sentence in cluster.differences(plans) if "cleanup.policy" in sentence]
        if wrong:
            raise LockstepError(
                "\n".join(wrong), hint="a topic of a table must be compacted; was it made by something else?"
            )

    def _publish(self, sql: psycopg.Connection[Any], table: Table) -> PublishedTable:
        config = self._config
        encoder = TableEncoder(table, server=config.pipeline.name, database=self._database, version=version("lockstep"))
        rule = None
        if table.replica_identity is not ReplicaIdentity.FULL and table.key:
            rule = load_rule(sql, table)
        return PublishedTable(
            config.topics()[table.name],
            encoder,
            keys_can_swap=keys_can_swap(sql, table.oid),
            toast=rule if rule is not None and rule.positions else None,
        )

    def _snapshot(
        self,
        sql: psycopg.Connection[Any],
        publisher: Any,
        state: CaptureState | None,
        identity: SystemIdentity,
    ) -> CaptureState:
        config = self._config
        self._preflight(sql)
        self._database = sql.info.dbname
        if state is None:
            if find_slot(sql, config.slot) is not None:
                raise PositionMismatch(
                    f"slot {config.slot} exists, but Kafka holds no state for it: it isn't known what was published",
                    hint=f"if nobody else needs the slot: select pg_drop_replication_slot('{config.slot}');"
                    " else set source.slot to another name",
                )
            state = CaptureState(
                slot=config.slot,
                owner=self._owner,
                publication=config.publication,
                database=self._database,
                system_id=identity.system_id,
                timeline=identity.timeline,
                epoch=FIRST_EPOCH,
                phase=SnapshotPhase.CREATING,
                handoff=0,
                commit_lsn=0,
                seq=SNAPSHOT_SEQ,
                end_lsn=0,
                commit_time_ms=0,
                copied={},
                memberships={},
            )
            publisher.commit(state)
        with ReplicationConnection(config.source) as holder:
            if state.phase is SnapshotPhase.CREATING:
                if find_slot(sql, config.slot) is not None:
                    drop_slot(sql, config.slot)  # made by a start that was interrupted before its first row
                self._observer.say(f"creating replication slot {config.slot}")
                slot = holder.create_slot(config.slot, temporary=False, while_waiting=self._waiting_for_slot(sql))
            else:
                self._require_slot(sql, state)
                self._observer.say("the snapshot was interrupted: copying the tables that are missing")
                slot = holder.create_slot(
                    self._temporary_slot(), temporary=True, while_waiting=self._waiting_for_slot(sql)
                )
            with SnapshotReader(config.source, slot.snapshot_name) as reader:
                names = config.source.table_names
                shapes = reader.tables(names, config.publication, config.source.keys)
                found = reader.memberships(config.publication, names)
                missing = [name for name in names if name not in shapes or name not in found]
                if missing:
                    raise self._not_published(missing)
                self._lock_unchanged(sql, reader, found)
                now_ms = time.time_ns() // 1_000_000
                if state.phase is SnapshotPhase.CREATING:
                    point = slot.consistent_point
                    state = replace(
                        state,
                        phase=SnapshotPhase.COPYING,
                        handoff=point,
                        commit_lsn=point,
                        seq=SNAPSHOT_SEQ,
                        end_lsn=point,
                        commit_time_ms=now_ms,
                    )
                now = {name: found[name].to_text() for name in names if name not in state.copied}
                state = replace(state, memberships={**state.memberships, **now})
                self._observer.say(f"handoff at {format_lsn(state.handoff)}, copying {len(shapes)} tables")
                publisher.commit(state, [SchemaRecord(table, slot.consistent_point) for table in shapes.values()])
                return copy_tables(
                    reader=reader,
                    publisher=publisher,
                    tables={name: self._publish(sql, table) for name, table in shapes.items()},
                    state=state,
                    consistent_point=slot.consistent_point,
                    settings=config.capture,
                    stopping=self._stopping,
                    report=self._observer.copied,
                )

    def _preflight(self, sql: psycopg.Connection[Any]) -> None:
        config = self._config
        create = publication_sql(config.publication, config.source.published_names)
        findings = check_source(
            sql,
            tables=config.source.published_names,
            publication=config.publication,
            slot=config.slot,
            create_publication=create,
            keys=config.source.keys,
            append_only=config.source.append_only,
        )
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        if errors:
            raise LockstepError(
                "the source isn't ready:\n"
                + "\n".join(f"  {found.subject} {found.what}: {found.why}\n    {found.fix}" for found in errors),
                hint="`lockstep doctor` shows all findings",
            )
        exists = sql.execute("select 1 from pg_publication where pubname = %s", (config.publication,)).fetchone()
        if exists is None:
            self._observer.say(f"creating the publication: {create}")
            try:
                sql.execute(create.encode())
            except psycopg.errors.InsufficientPrivilege as error:
                raise LockstepError(
                    f"our role may not create publication {config.publication}",
                    hint=f"let the tables' owner run: {create}",
                ) from error

    def _waiting_for_slot(self, sql: psycopg.Connection[Any]) -> Callable[[float], None]:
        """Says now and then which transactions a new slot waits for; without it, an idle session looks like a hang."""
        next_report_s = _REPORT_BLOCKERS_AFTER_S

        def waiting(seconds: float) -> None:
            nonlocal next_report_s
            self._while_waiting()
            if self._stopping():
                raise _Stopped
            if seconds >= next_report_s:
                next_report_s *= 2
                blockers = ", ".join(
                    f"pid {pid} ({name or 'no name'}, {age:.0f} s)" for pid, name, age in blocking_transactions(sql)
                )
                self._observer.say(f"the slot waits for writing transactions to end: {blockers or 'none are left'}")

        return waiting

    def _require_slot(self, sql: psycopg.Connection[Any], state: CaptureState) -> None:
        slot = find_slot(sql, state.slot)
        if slot is None or slot.wal_status == "lost" or slot.plugin != "pgoutput" or slot.database != state.database:
            what = "is gone" if slot is None else "is lost" if slot.wal_status == "lost" else "isn't the one we made"
            raise PositionMismatch(
                f"slot {state.slot} {what}: changes after {format_lsn(state.end_lsn)} can't be read any more",
                hint="start a pipeline of another name (pipeline.name), which takes a new snapshot",
            )

    def _not_published(self, names: Sequence[TableName]) -> LockstepError:
        publication = quote_identifier(self._config.publication)
        tables = ", ".join(name.sql for name in names)
        return LockstepError(
            f"{', '.join(map(str, names))}: not in publication {self._config.publication}, or not there at all",
            hint=f"alter publication {publication} add table {tables}; or take it out of source.tables",
        )

    def _lock_unchanged(
        self, sql: psycopg.Connection[Any], reader: SnapshotReader, found: Mapping[TableName, Membership]
    ) -> None:
        """Make sure that the tables are still what the snapshot says, and stay it until they are copied."""
        reader.lock(list(found))
        now = memberships(sql, self._config.publication, list(found))
        altered = [str(name) for name, before in found.items() if now.get(name) != before]
        if altered:
            raise Unavailable(f"{', '.join(altered)} changed while the copy began")

    def _record_altered(
        self, assembler: Assembler, shapes: CatalogueShapes, name: TableName, state: CaptureState
    ) -> bool:
        """Whether an ALTER TABLE of which the stream shows no row is recorded. It is when the stream is past it."""
        passed = self._altered.get(name)
        if passed is None or state.end_lsn < passed:
            return False
        relation, known = shapes.by_now(name), assembler.tables.get(name)
        if relation is not None and known is not None:
            assembler.record(shapes.adopt(relation, known))
        del self._altered[name]
        return True

    def _renamed(
        self, sql: psycopg.Connection[Any], state: CaptureState, found: Mapping[TableName, Membership]
    ) -> dict[TableName, Membership]:
        """Captured tables that have another name now, under the one that they are captured by."""
        renamed = {}
        for name, before in state.memberships.items():
            if name in found or name not in state.copied or name not in self._config.topics():
                continue
            called = name_of_oid(sql, Membership.oid_of(before))
            published = memberships(sql, state.publication, [called]) if called else {}
            if called in published:
                if name not in self._renamed_to:
                    self._observer.say(
                        f"warning: {name} is called {called} now; its events stay where they are, as {name}"
                    )
                self._renamed_to[name] = called
                renamed[name] = published[called]
        return renamed

    def _look(
        self,
        sql: psycopg.Connection[Any],
        state: CaptureState,
        shape_id: Callable[[TableName], str] = lambda _: "",
        record_altered: Callable[[TableName, CaptureState], bool] = lambda _name, _state: False,
    ) -> CaptureState:
        """Compare tables and publication with what was copied; the stream doesn't show a table that left it, an ALTER TABLE
        that rewrote rows, or a partition that was attached, detached or truncated. Such tables are to be copied again.
        """
        config = self._config
        try:
            unpublished = unpublished_kinds(sql, state.publication)
            if unpublished:
                raise LockstepError(
                    f"publication {state.publication} no longer sends {', '.join(unpublished)}: such changes would be lost",
                    hint=f"alter publication {quote_identifier(state.publication)} set (publish = 'insert, update, delete,"
                    " truncate'); then start again: the tables are copied anew",
                )
            outbox = config.source.outbox_name
            if outbox is not None and outbox not in memberships(sql, state.publication, [outbox]):
                raise self._not_published([outbox])  # it is never copied, so its rows would be lost
            now = memberships(sql, state.publication, config.source.table_names)
            now |= self._renamed(sql, state, now)
            end = wal_end(sql)
        except psycopg.errors.LockNotAvailable:
            return state  # somebody is altering a table; there will be another look
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        changed = set()
        refreshed = dict(state.memberships)
        for name, before in state.memberships.items():
            if name not in state.copied or name not in config.topics():
                continue
            if name not in now:
                if name not in self._absent:
                    self._observer.say(
                        f"warning: {self._not_published([name])}. Until then its changes aren't seen; it is copied anew after"
                    )
                self._absent.add(name)
                continue
            self._absent.discard(name)
            change = now[name].since(before)
            if change.whole or change.leaves:
                changed.add(name)
                if not change.whole and not change.altered:
                    self._only_leaves[name] = shape_id(name)
                what = "partitions came" if not change.whole else "rows may have changed without an event"
                self._observer.say(f"{name}: {what}; copying {'them' if not change.whole else 'it anew'}")
            elif not change.altered or record_altered(name, state):
                refreshed[name] = now[name].to_text()
            else:
                self._altered.setdefault(name, end)
        return replace(state, memberships=refreshed).to_be_copied(changed)

    def _heartbeat(self, sql: psycopg.Connection[Any]) -> None:
        try:
            emit_heartbeat(sql)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def _stream(self, sql: psycopg.Connection[Any], publisher: Any, state: CaptureState) -> None:
        config = self._config
        self._database = state.database
        self._require_slot(sql, state)
        recorded = read_tables(self._client, config.pipeline.name)
        # Topics keep the shapes of all tables that were ever captured; those no longer configured are left out.
        published = {name: self._publish(sql, recorded[name]) for name in config.source.table_names if name in recorded}
        state = self._look(sql, state)
        stream = self._start_stream(sql, state)
        clock = Clock(time.monotonic, lambda: time.time_ns() // 1000)
        wrapped = self._wrap_stream(stream)
        self._confirmation = Confirmation(
            wrapped,
            clock,
            interval_s=min(_STATUS_INTERVAL_S, sender_timeout_s(sql) / 4),
            confirmed=Lsn(state.end_lsn),
        )
        log = TopicReader(self._client, self._while_waiting)
        shapes = CatalogueShapes(sql, config, lambda table: self._publish(sql, table), self._observer.say)
        values = LargeValues(config, log, state, published.values(), self._observer.say)
        self._closing.callback(values.close)
        assembler = Assembler(
            published,
            epoch=state.epoch,
            skip_to=(state.commit_lsn, state.seq),
            end_lsn=Lsn(state.end_lsn),
            commit_time_ms=state.commit_time_ms,
            include_before=config.capture.include_before,
            shapes=shapes,
            log=log,
            memory=values.store,
            messages=MessageChannel(
                frozenset(config.source.messages),
                control_topic(config.pipeline.name, MESSAGES),
                server=config.pipeline.name,
                database=self._database,
                version=version("lockstep"),
            ),
            outbox=None
            if config.source.outbox_name is None
            else OutboxChannel(config.source.outbox_name, lambda kind: outbox_topic(config.pipeline.name, kind)),
        )

        assembler.refill = lambda table: values.refill(table, assembler.position)
        loop = CaptureLoop(
            stream=wrapped,
            publisher=publisher,
            assembler=assembler,
            confirmation=self._confirmation,
            state=state,
            settings=config.capture,
            clock=clock,
            stopping=self._stopping,
            heartbeat=lambda: self._heartbeat(sql),
            heartbeat_interval_s=config.source.heartbeat_interval_s,
            report=self._observer.committed,
            look=lambda state: self._look(
                sql,
                state,
                lambda name: assembler.tables[name].table.schema_id if name in assembler.tables else "",
                lambda name, state: self._record_altered(assembler, shapes, name, state),
            ),
            memory=values.store,
            may_copy=self._may_copy,
        )
        self._observer.say(f"streaming from {format_lsn(state.end_lsn)}")
        pause: Pause | None = Pause(state, None)
        while pause is not None:
            frame = pause.frame
            if self._coming_slot is not None and self._coming_slot.is_ready():
                pause = self._copy_into_stream(sql, loop, assembler, publisher, log, frame)
                frame = None if pause is None else pause.frame
            if pause is not None:
                pause = loop.run(first=frame)

    def _temporary_slot(self) -> str:
        """Another name each time: the server may still be busy with ending the last one."""
        return f"{self._config.slot[: _SLOT_NAME_MAX - 9]}_{uuid.uuid4().hex[:8]}"

    def _may_copy(self, state: CaptureState) -> bool:
        """Whether tables lack their copy, and a snapshot for them can be had at once.

        PostgreSQL makes none before every transaction that is writing has ended, which may take hours, and the stream goes on
        meanwhile. So the first one only tells that the wait is over: the stream may be past it.
        """
        if all(name in state.copied for name in self._config.source.table_names):
            return False
        if self._coming_slot is None:
            self._coming_slot = ComingSlot(self._config.source, self._temporary_slot())
            self._closing.callback(self._coming_slot.close)
        return self._coming_slot.is_ready()

    def _copy_into_stream(
        self,
        sql: psycopg.Connection[Any],
        loop: CaptureLoop,
        assembler: Assembler,
        publisher: Any,
        log: TopicReader,
        frame: bytes | None,
    ) -> Pause | None:
        """Copy tables at one point of the stream: publish all that committed before a new snapshot, then the snapshot's rows."""
        config = self._config
        assert self._coming_slot is not None
        waited, self._coming_slot = self._coming_slot, None
        with waited:
            waited.created()
        names = [name for name in config.source.table_names if name not in loop.state.copied]
        with ComingSlot(config.source, self._temporary_slot()) as coming:
            if not coming.wait(_SLOT_PATIENCE_S, self._while_waiting):
                return Pause(loop.state, frame)  # another long transaction has begun
            return self._copy_at(coming.created(), names, sql, loop, assembler, publisher, log, frame)

    def _copy_at(
        self,
        slot: CreatedSlot,
        names: Sequence[TableName],
        sql: psycopg.Connection[Any],
        loop: CaptureLoop,
        assembler: Assembler,
        publisher: Any,
        log: TopicReader,
        frame: bytes | None,
    ) -> Pause | None:
        """Publish what committed before the slot's snapshot, then the tables as it shows them. None when told to stop."""
        config = self._config
        with SnapshotReader(config.source, slot.snapshot_name) as reader:
            shapes = reader.tables(names, config.publication, config.source.keys)
            found = reader.memberships(config.publication, names)
            missing = [name for name in names if name not in shapes or name not in found]
            if missing:
                raise self._not_published(missing)
            self._lock_unchanged(sql, reader, found)
            self._heartbeat(sql)  # so that something behind the snapshot comes, also when nobody writes
            pause = loop.run(first=frame, until=slot.consistent_point)
            if pause is None:
                return None
            for name in names:
                published = self._publish(sql, shapes[name])
                known = assembler.tables.get(name)
                new = known is None or known.table != shapes[name]
                before = loop.state.memberships.get(name)
                change = found[name].since(before) if before else None
                # Only where nothing but new partitions is the reason: a table that was altered as well is copied whole.
                only_leaves = self._only_leaves.pop(name, "") == shapes[name].schema_id and not new
                leaves = change.leaves if change is not None and not change.whole and only_leaves else ()
                self._observer.say(f"copying {name} at {format_lsn(slot.consistent_point)}")
                try:
                    loop.state = copy_into_stream(
                        published,
                        reader=reader,
                        publisher=publisher,
                        state=loop.state,
                        consistent_point=slot.consistent_point,
                        membership=found[name].to_text(),
                        leaves=leaves,
                        live_keys=log.live_keys,
                        schemas=[SchemaRecord(shapes[name], slot.consistent_point)] if new else [],
                        settings=config.capture,
                        stopping=self._attentively_stopping,
                        report=self._observer.copied,
                    )
                except Interrupted:
                    return None
                assembler.replace(published)
                assembler.refill(published)  # the copy went past it
            return pause

    def _attentively_stopping(self) -> bool:
        """Asked between the batches of a copy, while nobody reads the stream: PostgreSQL has to hear from us all the same."""
        self._while_waiting()
        return self._stopping()

    def _start_stream(self, sql: psycopg.Connection[Any], state: CaptureState) -> ReplicationConnection:
        """Stream from the state's end; an older reader of the slot, which is fenced by now, is ended first."""
        deadline = time.monotonic() + _TAKE_OVER_S
        while True:
            slot = find_slot(sql, state.slot)
            if slot is not None and slot.active_pid is not None:
                self._observer.say(
                    f"slot {slot.name} is still read by pid {slot.active_pid}, which is fenced: ending it"
                )
                end_other_reader(sql, slot)
                time.sleep(0.2)
            stream = ReplicationConnection(self._config.source)
            try:
                stream.start(
                    state.slot,
                    publication=state.publication,
                    at=Lsn(state.end_lsn),
                    only_local=self._config.source.origin == "none",
                )
            except LockstepError as error:
                stream.close()
                if "is active for PID" in error.message and time.monotonic() < deadline:
                    continue
                raise
            break
        self._closing.callback(stream.close)
        # Asked only now: from here on nobody else can move the slot.
        slot = find_slot(sql, state.slot)
        if slot is None or slot.confirmed is None or slot.confirmed > state.end_lsn:
            at = "nowhere" if slot is None or slot.confirmed is None else format_lsn(slot.confirmed)
            raise PositionMismatch(
                f"slot {state.slot} stands at {at}, but only {format_lsn(state.end_lsn)} was published:"
                " what lies between is lost to this slot",
                hint=f"was the slot advanced or made anew by hand? Or did Kafka lose a transaction? {COMMIT_MARKER_LOSS}."
                " Start a pipeline of another name, which takes a new snapshot",
            )
        return stream


def _check_system(state: CaptureState, identity: SystemIdentity, config: Config) -> None:
    """The database must be the one whose WAL the state speaks of. Raises PositionMismatch with all differences."""
    differences = [
        f"{what}: was {was}, is {is_}"
        for what, was, is_ in (
            ("system identifier", state.system_id, identity.system_id),
            ("timeline", state.timeline, identity.timeline),
            ("publication", state.publication, config.publication),
        )
        if was != is_
    ]
    if differences:
        raise PositionMismatch(
            "the source isn't the one that was published from:\n" + "\n".join(f"  {line}" for line in differences),
            hint="after a restore or a promotion published changes may not exist any more: start a pipeline of another"
            " name, which takes a new snapshot",
        )
