"""The first copy of all tables: slot, handoff, every row in the slot's snapshot, and a ledger of what is done. The
state names the slot before the slot is created, so an interrupted creation is known to be ours. After that,
``snapshot.ledger`` says what must be copied again."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import psycopg

from cdc.capture.published_table import PublishedTable
from cdc.kafka.control_topics import read_copied_ranges
from cdc.kafka.record_limits import RecordLimit
from cdc.model.errors import PositionMismatch
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ
from cdc.pipeline_settings import Pipeline
from cdc.postgres.replication import CreatedSlot, ReplicationConnection, SystemIdentity
from cdc.postgres.slot import drop_slot, emit_heartbeat, find_slot, source_time_ms, temporary_slot_name
from cdc.protocol.control_records import CaptureState, SchemaRecord, SnapshotPhase
from cdc.protocol.membership import Membership, read
from cdc.row_rate import RowRate
from cdc.stream.source_checks import not_published, require_slot
from cdc.stream.topics import require_empty_topics, topic_identities
from snapshot.copy import CopyProgress
from snapshot.ledger import CopyLedger, CopyRun, FirstSnapshot, shape_text, why_not_resumable
from snapshot.one_by_one import OneByOne
from snapshot.preparation import create_missing_publication, require_keys, require_ready, waiting_for_slot
from snapshot.ranges import RANGE_BYTES_MIN, Part, Relation, parts, range_bytes
from snapshot.table_reader import SnapshotReader
from snapshot.worker import Job
from snapshot.workers import CopyWorkers, copy_side_by_side

FIRST_EPOCH = 0


@dataclass(frozen=True, slots=True)
class InitialSnapshot:
    """Takes the first copy over one connection."""

    pipeline: Pipeline
    sql: psycopg.Connection[Any]
    owner: str
    publish: Callable[[Table], PublishedTable]
    """How a table's rows are encoded, and where they go."""
    say: Callable[[str], None]
    copied: Callable[[CopyProgress], None]
    stopping: Callable[[], bool]
    pausing: Callable[[], bool]
    """Whether the copy must end where it is, once it has begun."""
    create_publication: str
    """The SQL that creates a missing publication."""
    limits: Mapping[str, RecordLimit]
    """Those of the topics that accept smaller records than the settings say."""

    def take(
        self,
        publisher: Any,
        state: CaptureState | None,
        identity: SystemIdentity,
    ) -> CaptureState:
        """Begin, or continue an earlier start. If the state stays COPYING, the copy was asked to stop or pause. The
        publisher's open transaction must not be committed then: it may be a part of rows that are committed all at
        once. Raises Stopped, and PositionMismatch if there is no state but a slot or events; nothing was done then."""
        pipeline, sql = self.pipeline, self.sql
        require_ready(pipeline, sql, create_publication=self.create_publication)
        create_missing_publication(pipeline, sql, self.create_publication, self.say)
        if state is None:
            state = self._begun(identity)
            publisher.commit(state)
        with ReplicationConnection(pipeline.source) as holder:
            slot = self._slot(holder, state)
            with SnapshotReader(pipeline.source, slot.snapshot_name) as reader:
                return self._take(publisher, reader, slot, state)

    def _begun(self, identity: SystemIdentity) -> CaptureState:
        """The state that names the slot before it is created."""
        pipeline, sql = self.pipeline, self.sql
        if find_slot(sql, pipeline.slot) is not None:
            raise PositionMismatch(
                f"slot {pipeline.slot} exists, but Kafka holds no state for it: it isn't known what was published",
                hint=f"if nobody else needs the slot: select pg_drop_replication_slot('{pipeline.slot}');"
                " else give the pipeline another name",
            )
        require_empty_topics(pipeline, None)
        return CaptureState(
            slot=pipeline.slot,
            owner=self.owner,
            publication=pipeline.publication,
            database=sql.info.dbname,
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
            topics=topic_identities(pipeline),
            captured=pipeline.source.table_names,
            append_only=pipeline.source.append_only_names,
        )

    def _slot(self, holder: ReplicationConnection, state: CaptureState) -> CreatedSlot:
        """The slot, or a temporary one for its snapshot if the copy continues."""
        pipeline, sql = self.pipeline, self.sql
        waiting = waiting_for_slot(sql, self.stopping, self.say)
        if state.phase is SnapshotPhase.CREATING:
            if find_slot(sql, pipeline.slot) is not None:
                drop_slot(sql, pipeline.slot)  # a start created it that was interrupted before its first row
            self.say(f"creating replication slot {pipeline.slot}")
            return holder.create_slot(pipeline.slot, temporary=False, while_waiting=waiting)
        require_slot(sql, state)
        self.say("the snapshot was interrupted: copying what is missing")
        return holder.create_slot(temporary_slot_name(pipeline.slot), temporary=True, while_waiting=waiting)

    def _take(self, publisher: Any, reader: SnapshotReader, slot: CreatedSlot, state: CaptureState) -> CaptureState:
        pipeline, sql = self.pipeline, self.sql
        names = pipeline.source.table_names
        shapes = reader.tables(names, pipeline.publication, pipeline.source.keys)
        memberships = reader.memberships(pipeline.publication, names)
        missing = [name for name in names if name not in shapes or name not in memberships]
        if missing:
            raise not_published(pipeline, sql, missing)
        require_keys(pipeline, shapes.values())
        first: FirstSnapshot | None = None
        if state.phase is SnapshotPhase.CREATING:
            point = slot.consistent_point
            state = replace(
                state,
                phase=SnapshotPhase.COPYING,
                handoff=point,
                commit_lsn=point,
                seq=SNAPSHOT_SEQ,
                end_lsn=point,
                commit_time_ms=source_time_ms(sql),
                first_snapshot=reader.snapshot(),
            )
        else:
            first = FirstSnapshot(state.first_snapshot, reader.next_xid())
        plan = self._plan(reader, shapes, memberships, state, slot, first)
        state = state.never_copied(plan.put_off)
        # An interrupted copy's records stay: if a table differs from them now, rows may have gone without an event.
        # Then the stream copies the table once more, and deletes them.
        now = {name: memberships[name].to_text() for name in names if name not in plan.put_off}
        # Rows of a partition that came since are copied now. The next inspection finds any later change of it.
        before = {
            name: read(text, memberships[name].storage) if name in memberships else text
            for name, text in state.memberships.items()
        }
        # The rows are as of now: a source that is restored to an earlier moment lacks what they show.
        state = replace(
            state,
            memberships={**now, **before},
            handoff=slot.consistent_point,
            copied={**state.copied, **{name: plan.ledger.rows[name] for name in plan.complete}},
        )
        self.say(f"handoff at {format_lsn(state.handoff)}, copying {len(plan.tables)} tables")
        publisher.commit(state, _records(plan.tables, slot.consistent_point, state.epoch))
        state = self._copy(publisher, reader, plan, state, slot)
        lacking = [name for name in names if name not in state.copied and name not in plan.put_off]
        return state if self.stopping() or lacking else self._done(publisher, plan, slot, state)

    def _done(self, publisher: Any, plan: "_Plan", slot: CreatedSlot, state: CaptureState) -> CaptureState:
        """Everything is copied: the ledger is removed, and the stream begins."""
        for key in plan.ledger.record_keys():
            publisher.send_beside_state(key, None)
        if slot.consistent_point > state.end_lsn:
            # This record is older than what was copied last, so a newer one must follow, even if nobody writes.
            emit_heartbeat(self.sql)
        state = replace(state, phase=SnapshotPhase.DONE, first_snapshot="")
        publisher.commit(state, covering=list(self.pipeline.topics().values()))
        return state

    def _plan(
        self,
        reader: SnapshotReader,
        shapes: Mapping[TableName, Table],
        memberships: Mapping[TableName, Membership],
        state: CaptureState,
        slot: CreatedSlot,
        first: FirstSnapshot | None,
    ) -> "_Plan":
        """What is to be copied now. ``first`` is the first snapshot, if this is a later one."""
        pipeline, settings = self.pipeline, self.pipeline.snapshot
        topics = pipeline.topics()
        texts = {
            name: shape_text(table, memberships[name], state.topics[topics[name]].topic_id)
            for name, table in shapes.items()
        }
        run = CopyRun(pipeline.slot, state.epoch, state.commit_lsn, slot.consistent_point, texts)
        recorded = read_copied_ranges(pipeline.kafka.client(), pipeline.name, pipeline.slot)
        ledger = CopyLedger(run, recorded)
        tables: dict[TableName, Table] = {}
        put_off: set[TableName] = set()
        by_keys: dict[bool, list[Relation]] = {True: [], False: []}
        for name, table in shapes.items():
            if name in state.copied:
                continue
            relations = reader.relations(table)
            if first is not None and not table.key:
                is_unchanged = state.memberships.get(name) == memberships[name].to_text()
                why = why_not_resumable(table, relations, is_unchanged=is_unchanged, first=first)
                if why:
                    self.say(f"{name}: its copy can't go on, since {why}; the stream begins, then it is copied whole")
                    put_off.add(name)
                    continue
            tables[name] = table
            by_keys[bool(table.key)] += relations
        reader.rest()
        published = {name: self.publish(table) for name, table in tables.items()}
        intervals = ledger.intervals()
        # An update of a row that moved to a copied range may leave out a large value that was never copied.
        newer = [name for name, of in published.items() if first is not None and first.text and of.toast is not None]
        relations = [*by_keys[True], *by_keys[False]]
        most = range_bytes(sum(relation.size for relation in relations), workers=settings.workers)
        at_once_max = min(pipeline.batch.bytes, pipeline.copy_batch.bytes)
        missing = [
            *parts(by_keys[True], most, intervals, newer=newer),
            *parts(by_keys[False], min(most, at_once_max), intervals),
        ]
        ledger.begin(relations, missing)
        return _Plan(
            ledger=ledger,
            tables=published,
            memberships=memberships,
            parts=missing,
            put_off=put_off,
            estimated={name: reader.estimated_rows(table) for name, table in tables.items()},
            first=first,
        )

    def _copy(
        self,
        publisher: Any,
        reader: SnapshotReader,
        plan: "_Plan",
        state: CaptureState,
        slot: CreatedSlot,
    ) -> CaptureState:
        """The committed state after the parts were copied, by workers if there is enough work for them."""
        pipeline, settings = self.pipeline, self.pipeline.snapshot
        if not settings.workers or len(plan.parts) == 1 or sum(part.size for part in plan.parts) <= RANGE_BYTES_MIN:
            return OneByOne(
                ledger=plan.ledger,
                first=plan.first,
                reader=reader,
                hold=lambda part: reader.hold(part, plan.memberships[part.table], pipeline.publication, self.sql),
                publisher=publisher,
                tables=plan.tables,
                estimated=plan.estimated,
                state=state,
                size=pipeline.copy_batch,
                rate=RowRate(settings.rows_per_s, time.monotonic),
                stopping=self._is_to_end,
                report=self.copied,
            ).copy(plan.parts)
        count = min(settings.workers, len(plan.parts))
        job = Job(
            pipeline=pipeline,
            run=plan.ledger.run,
            snapshot_name=slot.snapshot_name,
            commit_time_ms=state.commit_time_ms,
            database=self.sql.info.dbname,
            version=version("lockstep"),
            tables={name: published.table for name, published in plan.tables.items()},
            filters=reader.filters,
            memberships=plan.memberships,
            first=plan.first,
            rows_per_s=settings.rows_per_s / count,
            limits=self.limits,
        )
        self.say(f"{count} workers copy {len(plan.parts)} ranges of {len(plan.tables)} tables")
        with CopyWorkers(job, count, self._is_to_end, self.say) as workers:
            return copy_side_by_side(
                workers,
                plan.parts,
                ledger=plan.ledger,
                publisher=publisher,
                estimated=plan.estimated,
                state=state,
                report=self.copied,
            )

    def _is_to_end(self) -> bool:
        return self.stopping() or self.pausing()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one start copies. ``put_off`` are tables whose interrupted copy can't continue."""

    ledger: CopyLedger
    tables: Mapping[TableName, PublishedTable]
    memberships: Mapping[TableName, Membership]
    parts: Sequence[Part]
    put_off: Collection[TableName]
    estimated: Mapping[TableName, int]
    first: FirstSnapshot | None

    @property
    def complete(self) -> list[TableName]:
        """The tables that lack nothing any more."""
        return [name for name in self.tables if self.ledger.is_complete(name)]


def _records(tables: Mapping[TableName, PublishedTable], at: Lsn, epoch: int) -> list[SchemaRecord]:
    """The shapes of the rows that are about to be copied. Tables that were copied before an interruption have their
    shape of that time. The stream shows how a later one arose."""
    return [SchemaRecord(published.table, at, from_epoch=epoch) for published in tables.values()]
