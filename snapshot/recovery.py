"""Recovers from a restore, a promotion that lost something, or a lost slot: a new slot, and every table copied.

The state records it before anything is done, so an interrupted recovery continues at the next start. The tables are
copied in the middle of the stream, like tables that join. So keys that the source no longer has are deleted, and sinks
never lack a row that exists. A new epoch makes everything that follows newer than what was published before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from cdc.kafka.control_topics import read_schema_records
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import VERSION_EPOCHS
from cdc.model.timeouts import SLOT_LET_GO_S
from cdc.pipeline_settings import Pipeline
from cdc.postgres.replication import ReplicationConnection, SystemIdentity
from cdc.postgres.slot import Slot, drop_slot, end_other_reader, find_slot, require_own_slot, source_time_ms
from cdc.protocol.control_records import CaptureState, SchemaRecord, SnapshotPhase
from cdc.stream.source_checks import system_differences
from snapshot.request import parsed_tables
from snapshot.table_reader import SnapshotReader

RECOVERIES_MAX: Final = VERSION_EPOCHS - 1
"""How often one pipeline can be recovered: an OpenSearch version has room for so many epochs."""


def what_is_missing(
    state: CaptureState, identity: SystemIdentity, slot: Slot | None, publication: str
) -> Sequence[str]:
    """What prevents capture from continuing, and what of it is lost for good, as sentences. Empty: nothing."""
    published = format_lsn(state.published_lsn)
    differences = system_differences(state, identity, publication)
    if differences:
        return (
            *(f"the source isn't the database that capture published from: {difference}" for difference in differences),
            "copies of the tables undo published changes that the source no longer has",
            "rows of append-only tables and messages that were published stay; those that weren't are missing",
        )
    if state.phase in (SnapshotPhase.CREATING, SnapshotPhase.RECOVERING):
        return () if state.open_gap is None else (str(state.open_gap),)
    what = _lost_slot(state, slot)
    if not what:
        return ()
    return (
        f"{what}: changes from {published} to {format_lsn(identity.wal_end)} can't be read any more",
        "copies of the tables bring the rows up to date; their states in between are missing",
        "rows of append-only tables, of the outbox, and messages from in between are missing",
    )


def reason_of_gap(state: CaptureState, identity: SystemIdentity, slot: Slot | None, publication: str) -> str:
    """The reason of the gap that a recovery now would leave. It always leaves one, since it replaces the slot."""
    if system_differences(state, identity, publication):
        return "the source wasn't the database that capture published from"
    return _lost_slot(state, slot) or f"slot {state.slot} was in order, and `lockstep recover` has replaced it"


def is_lost(slot: Slot | None) -> bool:
    """Whether no stream can resume from this slot."""
    return slot is None or slot.wal_status == "lost"


def _lost_slot(state: CaptureState, slot: Slot | None) -> str:
    """What is wrong with the slot, in words; empty if it holds all that follows the state."""
    if slot is None:
        return f"slot {state.slot} is gone"
    if slot.wal_status == "lost":
        return f"slot {state.slot} is lost"
    if slot.confirmed is not None and slot.confirmed > state.end_lsn:
        return f"slot {state.slot} was moved to {format_lsn(slot.confirmed)}"
    return ""


def create_slot_again(
    pipeline: Pipeline,
    sql: psycopg.Connection[Any],
    publisher: Any,
    state: CaptureState,
    *,
    while_waiting: Callable[[float], None],
    say: Callable[[str], None],
) -> CaptureState:
    """The committed state from which a RECOVERING one streams. Older processes are fenced by now. Raises LockstepError
    for a slot of this name that isn't ours, and Unavailable."""
    drop_own_slot(sql, state.slot, say)
    with ReplicationConnection(pipeline.source) as connection:
        say(f"creating replication slot {state.slot}")
        slot = connection.create_slot(state.slot, temporary=False, while_waiting=while_waiting)
        state = state.handed_over(slot.consistent_point, now_ms=source_time_ms(sql))
        records: Sequence[SchemaRecord] = ()
        if state.unfamiliar:
            with SnapshotReader(pipeline.source, slot.snapshot_name) as reader:
                state, records = _recognized(pipeline, reader, state, say)
        publisher.commit(state, records, covering=list(pipeline.topics().values()))
    return state


def _recognized(
    pipeline: Pipeline, reader: SnapshotReader, state: CaptureState, say: Callable[[str], None]
) -> tuple[CaptureState, Sequence[SchemaRecord]]:
    """The state with the uncopied tables as they are on this server, and the records of their shapes. Tables are
    identified by name, since an old oid may be any table's here. One with other columns must be copied."""
    names = list(state.unfamiliar)
    recorded = {
        record.table.name: record.table for record in read_schema_records(pipeline.kafka.client(), pipeline.name)
    }
    shapes = reader.tables(names, pipeline.publication, pipeline.source.keys)
    found = reader.memberships(pipeline.publication, names)
    records = []
    for name in names:
        before, shape = recorded.get(name), shapes.get(name)
        if name in found and before is not None and shape is not None and _is_alike(before, shape):
            state = replace(state, memberships={**state.memberships, name: found[name].to_text()})
            shape = replace(shape, epoch=state.epoch)
            records.append(SchemaRecord(shape, state.handoff, from_epoch=state.epoch))
        else:
            say(f"{name} has other columns than before, or isn't published: it is copied, too")
            state = state.never_copied([name])
    return state, records


def _is_alike(table: Table, other: Table) -> bool:
    """Whether rows of both have the same columns. Oids and numbers aren't compared: they differ between servers."""
    columns, others = (
        [(column.name, column.type_name, column.value_type, column.is_array) for column in each.columns]
        for each in (table, other)
    )
    return columns == others and table.key == other.key


def drop_own_slot(sql: psycopg.Connection[Any], name: str, say: Callable[[str], None]) -> None:
    """Drop the slot, if it exists. An older reader, which is fenced by now, is ended first. Raises LockstepError for a
    slot that isn't ours, and psycopg's ObjectInUse if the reader doesn't release it in time."""
    deadline = time.monotonic() + SLOT_LET_GO_S
    while (slot := find_slot(sql, name)) is not None:
        require_own_slot(slot, sql.info.dbname)
        if slot.active_pid is not None:
            say(f"slot {name} is still read by pid {slot.active_pid}, which is fenced: ending it")
            end_other_reader(sql, slot)
        try:
            drop_slot(sql, name)
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def tables_to_copy(pipeline: Pipeline, chosen: Sequence[str]) -> list[TableName]:
    """The tables of a recovery: the chosen ones, else all with a key. The copy of an append-only table replaces all
    events on its topic, so it must be chosen. Raises ConfigurationError with every name that isn't captured."""
    names = parsed_tables(chosen, pipeline.source.table_names, "captured")
    return names or list(pipeline.source.keyed_names)
