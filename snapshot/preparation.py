"""What precedes a slot's creation: the source must be ready, and the slot waits for writing transactions."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg

from cdc.capture.shape_change import key_is_gone
from cdc.model.errors import LockstepError, UnsupportedChange
from cdc.model.finding import Severity
from cdc.model.printable import toml_key
from cdc.model.table import Table
from cdc.pipeline_settings import Pipeline
from cdc.postgres.preflight import check_source
from cdc.postgres.unended_transactions import told, unended_transactions

_REPORT_BLOCKERS_AFTER_S: Final = 5.0


class Stopped(Exception):
    """Asked to stop while waiting for PostgreSQL."""


def require_ready(
    pipeline: Pipeline, sql: psycopg.Connection[Any], *, create_publication: str, slot_counts: bool = True
) -> None:
    """Raises LockstepError with everything in the source that isn't ready. Changes nothing. ``create_publication`` is
    the SQL for the publication. ``slot_counts`` is False if the present slot will be dropped."""
    findings = check_source(
        sql,
        tables=pipeline.source.published_names,
        publication=pipeline.publication,
        slot=pipeline.slot,
        create_publication=create_publication,
        keys=pipeline.source.keys,
        append_only=pipeline.source.append_only,
    )
    errors = [
        finding
        for finding in findings
        if finding.severity is Severity.ERROR and (slot_counts or finding.subject != f"slot {pipeline.slot}")
    ]
    if errors:
        raise LockstepError(
            "the source isn't ready:\n"
            + "\n".join(f"  {finding.subject} {finding.what}: {finding.why}\n    {finding.fix}" for finding in errors),
            hint="`lockstep doctor` shows all findings",
        )


def create_missing_publication(
    pipeline: Pipeline, sql: psycopg.Connection[Any], create_publication: str, say: Callable[[str], None]
) -> None:
    """Create a missing publication. Raises LockstepError if our role may not."""
    exists = sql.execute("select 1 from pg_publication where pubname = %s", (pipeline.publication,)).fetchone()
    if exists is None:
        say(f"creating the publication: {create_publication}")
        try:
            sql.execute(create_publication.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise LockstepError(
                f"our role may not create publication {pipeline.publication}",
                hint=f"let the tables' owner run: {create_publication}",
            ) from error


def waiting_for_slot(
    sql: psycopg.Connection[Any], stopping: Callable[[], bool], say: Callable[[str], None]
) -> Callable[[float], None]:
    """Reports now and then which transactions a new slot waits for; otherwise an idle session looks like a hang. The
    returned function gets the seconds so far, and raises Stopped if asked to stop."""
    next_report_s = _REPORT_BLOCKERS_AFTER_S

    def waiting(seconds: float) -> None:
        nonlocal next_report_s
        if stopping():
            raise Stopped
        if seconds >= next_report_s:
            next_report_s *= 2
            say(f"the slot waits for writing transactions to end: {told(unended_transactions(sql))}")

    return waiting


def require_keys(pipeline: Pipeline, shapes: Iterable[Table]) -> None:
    """Raise UnsupportedChange for a table without the kind of key it is captured with, or whose key isn't published.
    Preflight checks before the snapshot, but not at each start of capture. In a compacted topic, rows without a key
    would all share one, and rows of an append-only table would get other keys than the existing ones."""
    append_only = pipeline.source.append_only
    for table in shapes:
        is_append_only = table.name in append_only
        if not table.key and not is_append_only:
            raise key_is_gone(table.name)
        if table.key and is_append_only:
            raise UnsupportedChange(
                f"{table.name} is configured as append_only, and it has a primary key by now",
                hint="drop its key again, then start again: nothing was skipped. Or, to go on with the key, take"
                f" append_only out of [source.options.{toml_key(str(table.name))}]",
            )
        columns = {column.name for column in table.columns}
        unsent = [name for name in table.key if name not in columns]
        if unsent:
            raise UnsupportedChange(
                f"publication {pipeline.publication} leaves out key columns of {table.name}: {', '.join(unsent)}",
                hint="`lockstep doctor` has the statement that adds them to the table's column list; then start again:"
                " nothing was skipped",
            )
