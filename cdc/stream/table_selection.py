"""Which tables the patterns of ``source.tables`` take in, judged by the source's catalogue and the capture's state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName, sql_identifier
from cdc.pipeline import Pipeline
from cdc.postgres.memberships import memberships
from cdc.postgres.preflight.catalogue_facts import load_relations
from cdc.postgres.preflight.finding import Severity
from cdc.postgres.preflight.tables import table_findings
from cdc.postgres.settings import SourceSettings
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.membership import Recorded

# A warehouse may be in the captured database: what Lockstep writes there would come round again without end.
_TABLES: Final = """
select n.nspname, c.relname, c.oid::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
    and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'lockstep')
    and not (n.nspname ~ '_g[0-9]+$' and exists (
        select from pg_attribute a where a.attrelid = c.oid and a.attname = '_tag' and not a.attisdropped))
order by n.nspname, c.relname
"""


class TablesJoined(Exception):
    """Tables match, and can be captured from now on: a new session takes them in."""


@dataclass(frozen=True, slots=True)
class Selection:
    """``taken_in`` are captured. ``waiting`` match and aren't, each with the reason and what to do about it.

    ``idle`` are the patterns that match no table.
    """

    taken_in: tuple[TableName, ...]
    waiting: Mapping[TableName, str]
    idle: tuple[str, ...]

    def require_any(self, source: SourceSettings) -> None:
        """Raises ConfigurationError for a pattern that matches nothing: before the first start it is a slip."""
        if self.idle:
            raise ConfigurationError(
                f"no table matches {', '.join(map(repr, self.idle))} of source.tables",
                hint=f"correct source.tables{' or source.exclude_tables' if source.exclude_tables else ''}: names are"
                " case-sensitive. Views, foreign, unlogged and temporary tables never match, and partitions belong to"
                " their root",
            )


def select_tables(sql: psycopg.Connection[Any], pipeline: Pipeline, state: CaptureState | None) -> Selection:
    """What a capture that goes on from ``state`` takes in.

    Before anything is published these are all tables that match. Later a table that was captured stays, also where it
    is gone, has left the publication or has another name: ``TableWatch`` says what becomes of it. Another one joins
    once it is published and can be captured. Until then it is waiting: nothing was ever promised of it.
    """
    source = pipeline.source
    found = _matching(sql, source)
    if is_first_start(state):
        return Selection(tuple(found), {}, _idle(source, [*found, *source.named]))
    assert state is not None
    kept = [
        name
        for name in recorded_tables(state)
        if name not in source.named and source.matches(name) and (name in state.memberships or name in found)
    ]
    captured = {*kept, *source.named}
    ours = {record.oid for name in captured if (record := Recorded.from_text(state.memberships.get(name, "")))}
    new = [name for name, oid in found.items() if name not in kept and oid not in ours]
    waiting = _why_waiting(sql, pipeline, new)
    joined = [name for name in new if name not in waiting]
    return Selection(tuple(sorted([*kept, *joined])), waiting, _idle(source, [*found, *captured]))


def is_first_start(state: CaptureState | None) -> bool:
    """Whether nothing is published yet."""
    return state is None or state.phase is SnapshotPhase.CREATING


def recorded_tables(state: CaptureState) -> Sequence[TableName]:
    """The tables that the process of this state captures."""
    return state.captured or sorted({*state.memberships, *state.copying})


def _matching(sql: psycopg.Connection[Any], source: SourceSettings) -> dict[TableName, int]:
    """The tables that exist, match, and aren't named as well, with their oids."""
    named = set(source.named)
    rows = sql.execute(_TABLES).fetchall()
    found = {TableName(schema, table): oid for schema, table, oid in rows}
    return {name: oid for name, oid in found.items() if name not in named and source.matches(name)}


def _idle(source: SourceSettings, names: Sequence[TableName]) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in source.patterns if not any(map(pattern.matches, names)))


def _why_waiting(sql: psycopg.Connection[Any], pipeline: Pipeline, names: Sequence[TableName]) -> dict[TableName, str]:
    if not names:
        return {}
    source = pipeline.source
    published = memberships(sql, pipeline.publication, names)
    relations = load_relations(sql, names)
    reasons = {}
    for name in names:
        if name not in relations:
            continue  # dropped in between
        findings = table_findings([name], relations, keys=source.keys, append_only=source.append_only, similar={})
        wrong = next((finding for finding in findings if finding.severity is Severity.ERROR), None)
        if wrong is not None:
            reasons[name] = f"it {wrong.what}; {wrong.fix}"
        elif name not in published:
            publication = sql_identifier(pipeline.publication)
            reasons[name] = (
                f"it isn't in publication {pipeline.publication}; alter publication {publication} add table {name.sql}"
            )
    return reasons
