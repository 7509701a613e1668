"""``lockstep recover``: says what capture has lost, takes over, and orders a new slot and copies."""

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.kafka.control_topics import read_state, read_tables
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.replication import APPLICATION, ReplicationConnection, SystemIdentity
from cdc.postgres.slot import Slot, announce_capture, find_slot, require_own_slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.stream.source_checks import require_primary, system_differences
from cdc.stream.topics import adopt_topics, create_missing_topics, holding_events, require_shapes, topic_identities
from lockstep.capture.publisher import capture_publisher
from migrations.source import publication_sql
from snapshot.preparation import Stopped, create_missing_publication, require_ready, waiting_for_slot
from snapshot.recovery import (
    RECOVERIES_MAX,
    create_slot_again,
    is_lost,
    reason_of_gap,
    tables_to_copy,
    what_is_missing,
)
from snapshot.worker import fence_workers


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery will do. ``missing`` says what is lost, a sentence each; empty if nothing is."""

    missing: Sequence[str]
    tables: Sequence[TableName]
    left_out: Sequence[TableName]

    def __str__(self) -> str:
        lines = [*self.missing]
        if not lines:
            lines += (
                "nothing is seen that keeps capture from going on: `lockstep capture` continues where it ended",
                "only capture can compare the WAL with what it published. If it stopped because they differ, copies of"
                " the tables undo published changes that the source no longer has; published rows of append-only"
                " tables and published messages stay",
                "a new slot leaves out changes that aren't published by then: rows of append-only tables, of the"
                " outbox, and messages are missing for good",
            )
        lines.append(
            f"recover makes a new slot, and has capture copy these tables again: {', '.join(map(str, self.tables))}"
        )
        if self.left_out:
            lines.append(f"not copied, so possibly not right from then on: {', '.join(map(str, self.left_out))}")
        return "\n".join(lines)


def recover(
    pipeline: Pipeline,
    chosen: Sequence[str],
    *,
    agreed: Callable[[Recovery], bool],
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> CaptureState | None:
    """Recover if ``agreed`` says so. Returns the state from which capture goes on, else None.

    A running capture is fenced, and ends. An interrupted recovery goes on when capture is started. Raises LockstepError
    if nothing was ever captured, if the source isn't ready, or if somebody else has recovered it meanwhile, and
    ConfigurationError for names.
    """
    tables = tables_to_copy(pipeline, chosen)
    client = pipeline.kafka.client()
    try:
        with contextlib.closing(connect(pipeline.source, application=APPLICATION)) as sql:
            sql.execute(LOCK_TIMEOUT)
            require_primary(sql)
            # The slot comes first, and the end of the WAL last: a running capture moves on meanwhile.
            slot = find_slot(sql, pipeline.slot)
            if slot is not None:
                require_own_slot(slot, sql.info.dbname)
            state = require_state(read_state(client, pipeline.name, pipeline.slot), pipeline)
            publication = publication_sql(
                pipeline.publication, pipeline.source.published_names, version=sql.info.server_version
            )
            require_ready(pipeline, sql, create_publication=publication, slot_counts=False)
            missing = what_is_missing(state, _identify(pipeline), slot, pipeline.publication)
            left_out = [name for name in pipeline.source.table_names if name not in tables]
            if not agreed(Recovery(missing, tables, left_out)):
                return None
            _require_not_recovered_since(state, read_state(client, pipeline.name, pipeline.slot), pipeline)
            create_missing_publication(pipeline, sql, publication, say)
            return _recover(pipeline, sql, tables, asked=state, stopping=stopping, say=say)
    except psycopg.Error as error:
        raise connection_error(error) from error
    except Stopped:
        raise LockstepError(
            "stopped before there was a new slot", hint="`lockstep capture` goes on with it when it is started"
        ) from None


def _recover(
    pipeline: Pipeline,
    sql: psycopg.Connection[Any],
    tables: Sequence[TableName],
    *,
    asked: CaptureState,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> CaptureState:
    announce_capture(sql, pipeline.slot)  # else a standby would take over while this waits for the slot
    create_missing_topics(pipeline, say)
    with contextlib.closing(capture_publisher(pipeline)) as publisher:
        publisher.start()  # nobody else publishes from here on
        if asked.phase is not SnapshotPhase.DONE:  # workers of a first copy commit without that publisher
            fence_workers(pipeline, while_waiting=lambda: None)
        state = require_state(read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot), pipeline)
        _require_not_recovered_since(asked, state, pipeline)
        # Otherwise copies would be published over events that nobody can read, without any report.
        holds_events = holding_events(pipeline)
        state = adopt_topics(state, topic_identities(pipeline), pipeline, say, holds_events)
        require_shapes(state, read_tables(pipeline.kafka.client(), pipeline.name).keys(), pipeline, holds_events)
        identity = _identify(pipeline)
        # The slot may have been lost while somebody thought about the question.
        slot = find_slot(sql, pipeline.slot)
        reason = reason_of_gap(state, identity, slot, pipeline.publication)
        state = state.with_gap(reason, now_ms=time.time_ns() // 1_000_000).recovering(
            tables,
            owner=uuid.uuid4().hex,
            publication=pipeline.publication,
            database=identity.database,
            system_id=identity.system_id,
            timeline=identity.timeline,
            put_back=_possibly_put_back(state, identity, slot, pipeline),
        )
        publisher.commit(state, covering=list(pipeline.topics().values()))
        state = create_slot_again(
            pipeline, sql, publisher, state, while_waiting=waiting_for_slot(sql, stopping, say), say=say
        )
    say(f"the new slot begins at {format_lsn(state.end_lsn)}")
    return state


def _possibly_put_back(
    state: CaptureState, identity: SystemIdentity, slot: Slot | None, pipeline: Pipeline
) -> Sequence[TableName]:
    """The tables in which a column's number may have belonged to another column, in events that a sink has applied.

    If nothing else needs a recovery, the last transaction may have shown that the source was put back and written to
    since.
    """
    is_put_back = system_differences(state, identity, pipeline.publication) or not is_lost(slot)
    return pipeline.source.table_names if is_put_back else ()


def _require_not_recovered_since(asked: CaptureState, state: CaptureState | None, pipeline: Pipeline) -> None:
    """Raise LockstepError if another recovery has meanwhile gone past the gap that the question was about."""
    was_ordered, is_ordered = (each is not None and each.phase is SnapshotPhase.RECOVERING for each in (asked, state))
    if state is not None and (state.epoch != asked.epoch or (was_ordered and not is_ordered)):
        raise LockstepError(
            f"pipeline {pipeline.name} was recovered by another `lockstep recover` meanwhile",
            hint="start capture (lockstep run, or lockstep capture); `lockstep doctor` says whether anything is amiss",
        )


def _identify(pipeline: Pipeline) -> SystemIdentity:
    with ReplicationConnection(pipeline.source) as connection:
        return connection.identify_system()


def require_state(state: CaptureState | None, pipeline: Pipeline) -> CaptureState:
    if state is None:
        raise LockstepError(
            f"Kafka holds no state of slot {pipeline.slot}: nothing was ever captured under this name",
            hint="`lockstep capture` takes the first snapshot",
        )
    if state.epoch >= RECOVERIES_MAX:
        raise LockstepError(
            f"pipeline {pipeline.name} was recovered {state.epoch} times, the most that its tags can count",
            hint="start a pipeline of another name (pipeline.name), which takes a new snapshot",
        )
    return state
