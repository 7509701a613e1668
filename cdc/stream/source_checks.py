"""What must hold of the source before more of it is read: the same WAL, our slot, the tables in the publication."""

from collections.abc import Sequence
from typing import Any

import psycopg

from cdc.model.errors import LockstepError, PositionMismatch
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName, quote_identifier
from cdc.pipeline import Pipeline
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.slot import find_slot
from cdc.protocol.control_records import CaptureState


def system_differences(state: CaptureState, identity: SystemIdentity, publication: str) -> list[str]:
    """How this server isn't the one whose WAL the state speaks of, a phrase each; empty when it is.

    A copy of its files, of an earlier moment, has the same identity. Its WAL ends before what was published from it.
    """
    differences = [
        f"{what} was {was}, is {is_}"
        for what, was, is_ in (
            ("system identifier", state.system_id, identity.system_id),
            ("timeline", state.timeline, identity.timeline),
            ("database", state.database, identity.database),
            ("publication", state.publication, publication),
        )
        if was != is_
    ]
    # The beginning of a transaction may be published, and rows of a copy that began again later than the stream.
    published = max(state.end_lsn, state.commit_lsn, state.handoff)
    if state.system_id == identity.system_id and identity.wal_end < published:
        differences.append(
            f"its WAL ends at {format_lsn(identity.wal_end)}, but it was published up to {format_lsn(published)}"
        )
    return differences


def check_system(state: CaptureState, identity: SystemIdentity, pipeline: Pipeline) -> None:
    """The database must be the one whose WAL the state speaks of. Raises PositionMismatch with all differences."""
    differences = system_differences(state, identity, pipeline.publication)
    if differences:
        raise PositionMismatch(
            "the source isn't the one that was published from:\n" + "\n".join(f"  {line}" for line in differences),
            hint="after a restore or a promotion published changes may not exist any more: start a pipeline of another"
            " name, which takes a new snapshot",
        )


def require_slot(sql: psycopg.Connection[Any], state: CaptureState) -> None:
    """The slot must still hold all that follows the state. Raises PositionMismatch."""
    slot = find_slot(sql, state.slot)
    if slot is None or slot.wal_status == "lost" or slot.plugin != "pgoutput" or slot.database != state.database:
        what = "is gone" if slot is None else "is lost" if slot.wal_status == "lost" else "isn't the one we made"
        raise PositionMismatch(
            f"slot {state.slot} {what}: changes after {format_lsn(state.end_lsn)} can't be read any more",
            hint="start a pipeline of another name (pipeline.name), which takes a new snapshot",
        )


def not_published(pipeline: Pipeline, names: Sequence[TableName]) -> LockstepError:
    """The error that these tables aren't in the publication."""
    publication = quote_identifier(pipeline.publication)
    tables = ", ".join(name.sql for name in names)
    return LockstepError(
        f"{', '.join(map(str, names))}: not in publication {pipeline.publication}, or not there at all",
        hint=f"alter publication {publication} add table {tables}; or take it out of source.tables",
    )
