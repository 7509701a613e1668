"""The first copy of all tables: slot, handoff, every row as the slot's snapshot shows it, and a ledger in the state.

The state names the slot before the slot is made, so that whatever was interrupted is known to be ours.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import psycopg

from cdc.capture.published_table import PublishedTable
from cdc.model.errors import PositionMismatch
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ
from cdc.pipeline import Pipeline
from cdc.postgres.replication import CreatedSlot, ReplicationConnection, SystemIdentity
from cdc.postgres.slot import drop_slot, find_slot, temporary_slot_name
from cdc.protocol.control_records import CaptureState, SchemaRecord, SnapshotPhase
from cdc.stream.source_checks import not_published, require_slot
from cdc.stream.topics import require_empty_topics, topic_identities
from snapshot.copy import CopyProgress, copy_tables
from snapshot.preparation import create_missing_publication, require_ready, waiting_for_slot
from snapshot.ranges import parts
from snapshot.table_reader import SnapshotReader
from snapshot.worker import Job
from snapshot.workers import CopyWorkers, copy_side_by_side

FIRST_EPOCH = 0


class InitialSnapshot:
    """Takes it over one connection; ``publish`` says how a table's rows are encoded and where they go."""

    def __init__(
        self,
        pipeline: Pipeline,
        sql: psycopg.Connection[Any],
        *,
        owner: str,
        publish: Callable[[Table], PublishedTable],
        say: Callable[[str], None],
        copied: Callable[[CopyProgress], None],
        stopping: Callable[[], bool],
        create_publication: str,
    ) -> None:
        """``create_publication`` is the SQL that makes the publication, for where there is none."""
        self._create_publication = create_publication
        self._pipeline = pipeline
        self._sql = sql
        self._owner = owner
        self._publish = publish
        self._say = say
        self._copied = copied
        self._stopping = stopping

    def take(
        self,
        publisher: Any,
        state: CaptureState | None,
        identity: SystemIdentity,
    ) -> CaptureState:
        """Begin, or continue an earlier start; COPYING in the state says that it was told to stop.

        Raises Stopped, and PositionMismatch where there is no state but a slot or events: nothing was done then.
        """
        pipeline, sql = self._pipeline, self._sql
        require_ready(pipeline, sql, create_publication=self._create_publication)
        create_missing_publication(pipeline, sql, self._create_publication, self._say)
        if state is None:
            if find_slot(sql, pipeline.slot) is not None:
                raise PositionMismatch(
                    f"slot {pipeline.slot} exists, but Kafka holds no state for it: it isn't known what was published",
                    hint=f"if nobody else needs the slot: select pg_drop_replication_slot('{pipeline.slot}');"
                    " else set source.slot to another name",
                )
            require_empty_topics(pipeline, None)
            state = CaptureState(
                slot=pipeline.slot,
                owner=self._owner,
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
            )
            publisher.commit(state)
        waiting = waiting_for_slot(sql, self._stopping, self._say)
        with ReplicationConnection(pipeline.source) as holder:
            if state.phase is SnapshotPhase.CREATING:
                if find_slot(sql, pipeline.slot) is not None:
                    drop_slot(sql, pipeline.slot)  # made by a start that was interrupted before its first row
                self._say(f"creating replication slot {pipeline.slot}")
                slot = holder.create_slot(pipeline.slot, temporary=False, while_waiting=waiting)
            else:
                require_slot(sql, state)
                self._say("the snapshot was interrupted: copying the tables that are missing")
                own_name = temporary_slot_name(pipeline.slot)
                slot = holder.create_slot(own_name, temporary=True, while_waiting=waiting)
            lock_timeout_ms = pipeline.snapshot.lock_timeout_ms
            with SnapshotReader(pipeline.source, slot.snapshot_name, lock_timeout_ms=lock_timeout_ms) as reader:
                names = pipeline.source.table_names
                shapes = reader.tables(names, pipeline.publication, pipeline.source.keys)
                memberships = reader.memberships(pipeline.publication, names)
                missing = [name for name in names if name not in shapes or name not in memberships]
                if missing:
                    raise not_published(pipeline, sql, missing)
                reader.lock_unchanged(memberships, pipeline.publication, sql)
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
                # What an interrupted copy recorded stays: if a table differs from it now, rows may have gone without an
                # event. The stream copies it once more then, and deletes them.
                now = {name: memberships[name].to_text() for name in names}
                # Its rows are as of now: a source that is put back to before this lacks what they show.
                state = replace(state, memberships={**now, **state.memberships}, handoff=slot.consistent_point)
                self._say(f"handoff at {format_lsn(state.handoff)}, copying {len(shapes)} tables")
                publisher.commit(state, _records(shapes, state, slot.consistent_point))
                state = self._copy_side_by_side(publisher, reader, shapes, state, slot)
                if self._stopping():
                    return state
                return copy_tables(
                    reader=reader,
                    publisher=publisher,
                    tables={name: self._publish(table) for name, table in shapes.items()},
                    state=state,
                    consistent_point=slot.consistent_point,
                    settings=pipeline.capture,
                    stopping=self._stopping,
                    report=self._copied,
                )

    def _copy_side_by_side(
        self,
        publisher: Any,
        reader: SnapshotReader,
        shapes: Mapping[TableName, Table],
        state: CaptureState,
        slot: CreatedSlot,
    ) -> CaptureState:
        """The committed state after workers have copied what they may, where there is enough of it to begin them.

        They commit rows before the state says so. Rows of an append-only table would come twice, after an interruption.
        """
        settings = self._pipeline.snapshot
        tables = {name: table for name, table in shapes.items() if table.key and name not in state.copied}
        relations = [relation for table in tables.values() for relation in reader.relations(table)]
        if not settings.workers or sum(relation.size for relation in relations) <= settings.range_bytes:
            return state
        job = Job(
            pipeline=self._pipeline,
            snapshot_name=slot.snapshot_name,
            consistent_point=slot.consistent_point,
            epoch=state.epoch,
            commit_time_ms=state.commit_time_ms,
            database=self._sql.info.dbname,
            version=version("lockstep"),
            tables=tables,
            filters=reader.filters,
        )
        ranges = parts(relations, settings.range_bytes)
        count = min(settings.workers, len(ranges))
        self._say(f"{count} workers copy {len(ranges)} ranges of {len(tables)} tables")
        with CopyWorkers(job, count, self._stopping) as workers:
            return copy_side_by_side(
                workers,
                ranges,
                publisher=publisher,
                estimated={name: reader.estimated_rows(table) for name, table in tables.items()},
                state=state,
                report=self._copied,
            )


def _records(shapes: Mapping[TableName, Table], state: CaptureState, at: Lsn) -> list[SchemaRecord]:
    """The shapes of the rows that are going to be copied.

    Rows that were copied before an interruption have the shape of then. The stream says how a later one came about.
    """
    return [
        SchemaRecord(table, at, from_epoch=state.epoch) for name, table in shapes.items() if name not in state.copied
    ]
