"""What must hold for the source before more is read: the same WAL, our slot, the tables in the publication."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from cdc.model.errors import LockstepError, PositionMismatch
from cdc.model.lsn import format_lsn
from cdc.model.printable import toml_text
from cdc.model.table import TableName, sql_identifier
from cdc.pipeline_settings import Pipeline
from cdc.postgres.preflight.server import standby_findings
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.slot import find_slot
from cdc.protocol.control_records import CaptureState

RECOVER: Final = "`lockstep recover` lists what is missing, and copies the tables again under the same pipeline"


def system_differences(state: CaptureState, identity: SystemIdentity, publication: str) -> list[str]:
    """How this server differs from the one whose WAL the state describes, as phrases; empty if it doesn't. A promoted
    standby counts as the same if it had everything that was published before it diverged. A copy of the server's files
    from an earlier moment has the same identity, but its WAL ends before what was published."""
    differences = [
        f"{what} was {was}, is {is_}"
        for what, was, is_ in (
            ("system identifier", state.system_id, identity.system_id),
            ("database", state.database, identity.database),
            ("publication", state.publication, publication),
        )
        if was != is_
    ]
    published = state.published_lsn
    if state.system_id == identity.system_id and state.timeline != identity.timeline:
        left_at = identity.left_at.get(state.timeline)
        if left_at is None:
            differences.append(f"timeline was {state.timeline}, is {identity.timeline}")
        elif left_at < published:
            differences.append(
                f"it left timeline {state.timeline} at {format_lsn(left_at)}, but it was published up to"
                f" {format_lsn(published)}"
            )
    if state.system_id == identity.system_id and identity.wal_end < published:
        differences.append(
            f"its WAL ends at {format_lsn(identity.wal_end)}, but it was published up to {format_lsn(published)}"
        )
    return differences


def check_system(state: CaptureState, identity: SystemIdentity, pipeline: Pipeline) -> CaptureState:
    """The state with the present timeline. Raises PositionMismatch with all differences if it is another database."""
    differences = system_differences(state, identity, pipeline.publication)
    if differences:
        raise PositionMismatch(
            "the source isn't the database that capture published from:\n"
            + "\n".join(f"  {line}" for line in differences),
            hint="is source.dsn right? If it is: after a restore or a promotion published changes may not exist any"
            f" more. {RECOVER}",
        )
    return replace(state, timeline=identity.timeline)


def require_primary(sql: psycopg.Connection[Any]) -> None:
    """Raises LockstepError on a standby: it lacks the slot and accepts no messages, but the slot isn't lost."""
    for finding in standby_findings(sql):
        raise LockstepError(f"{finding.what}: {finding.why}", hint=finding.fix)


def require_slot(sql: psycopg.Connection[Any], state: CaptureState) -> None:
    """Raises PositionMismatch unless the slot still holds all that follows the state."""
    slot = find_slot(sql, state.slot)
    if slot is None or slot.wal_status == "lost" or slot.plugin != "pgoutput" or slot.database != state.database:
        what = "is gone" if slot is None else "is lost" if slot.wal_status == "lost" else "isn't the one we made"
        raise PositionMismatch(
            f"slot {state.slot} {what}: changes after {format_lsn(state.end_lsn)} can't be read any more",
            hint=RECOVER,
        )


def not_published(pipeline: Pipeline, sql: psycopg.Connection[Any], names: Sequence[TableName]) -> LockstepError:
    """The error that these tables aren't in the publication, with the SQL that publishes them."""
    publication = sql_identifier(pipeline.publication)
    found = sql.execute(
        "select t.place, p.puballtables, c.relkind = 'p' and not p.pubviaroot, c.relpersistence = 'u'"
        " from pg_publication p cross join unnest(%s::text[], %s::text[]) with ordinality as t(schema, name, place)"
        " left join (pg_class c join pg_namespace n on n.oid = c.relnamespace)"
        " on n.nspname = t.schema and c.relname = t.name"
        " where p.pubname = %s order by t.place",
        ([name.schema for name in names], [name.name for name in names], pipeline.publication),
    ).fetchall()
    if not found:
        tables = ", ".join(name.sql for name in pipeline.source.published_names)
        statements = [f"create publication {publication} for table {tables} with (publish_via_partition_root = true)"]
    else:
        facts = [(name, *row[1:]) for name, row in zip(names, found, strict=True)]
        added = [name.sql for name, all_tables, as_leaves, _ in facts if not all_tables and not as_leaves]
        statements = [f"alter table {name.sql} set logged" for name, _, _, unlogged in facts if unlogged]
        if any(as_leaves for _, _, as_leaves, _ in facts):
            statements.append(f"alter publication {publication} set (publish_via_partition_root = true)")
        if added:
            statements.append(f"alter publication {publication} add table {', '.join(added)}")
    return LockstepError(
        f"{', '.join(map(str, names))}: not in publication {pipeline.publication}, or not there at all",
        hint="; ".join([*statements, *_ways_out(pipeline, names)]),
    )


def _ways_out(pipeline: Pipeline, names: Sequence[TableName]) -> list[str]:
    """How to go on without these tables: a pattern can't be removed for one of them."""
    named = set(pipeline.source.named)
    matched = [toml_text(str(name)) for name in names if name not in named and name != pipeline.source.outbox_name]
    ways = ["or take it out of source.tables"] if len(matched) < len(names) else []
    return [*ways, *([f"or leave it out: exclude_tables = [{', '.join(matched)}]"] if matched else [])]
