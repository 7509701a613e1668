"""Which tables the patterns of ``source.tables`` select, given the source's catalogue and the capture's state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.model.errors import ConfigurationError
from cdc.model.finding import Finding, Severity, error
from cdc.model.printable import toml_text
from cdc.model.table import Table, TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.preflight.catalogue_facts import Relation, load_relations
from cdc.postgres.preflight.privileges import readable, row_security
from cdc.postgres.preflight.publication import Publication, entry_findings, load_publication
from cdc.postgres.preflight.tables import table_findings
from cdc.postgres.settings import SourceSettings
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.membership import Recorded
from cdc.stream.topics import why_no_topic

# A warehouse may be in the captured database: capturing what Lockstep writes there would never end.
_TABLES: Final = """
select n.nspname, c.relname, c.oid::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
    and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'lockstep')
    and not (n.nspname ~ '_g[0-9]+$' and exists (
        select from pg_attribute a where a.attrelid = c.oid and a.attname = '_tag' and not a.attisdropped))
order by n.nspname, c.relname
"""


class SelectionChanged(Exception):
    """Tables that match can be captured from now on, or others no longer can: a new session continues with them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """``taken_in`` are captured. ``waiting`` match but aren't, each with the reason and what to do about it. ``idle``
    are the patterns that match no table."""

    taken_in: tuple[TableName, ...]
    waiting: Mapping[TableName, str]
    idle: tuple[str, ...]

    def require_any(self, source: SourceSettings) -> None:
        """Raises ConfigurationError for a pattern that matches nothing: before the first start it is a mistake."""
        if self.idle:
            raise ConfigurationError(
                f"no table matches {', '.join(map(repr, self.idle))} of source.tables",
                hint=f"correct source.tables{' or source.exclude_tables' if source.exclude_tables else ''}: names are"
                " case-sensitive. Views, foreign, unlogged and temporary tables never match, and partitions belong to"
                " their root",
            )


def select_tables(
    sql: psycopg.Connection[Any], pipeline: Pipeline, state: CaptureState | None, shapes: Mapping[TableName, Table]
) -> Selection:
    """The tables that a capture that resumes from ``state`` captures. ``shapes`` are the tables' shapes in Kafka.

    Before anything is published, these are all tables that match. Later, a table stays once anything of it was
    published, even if it is gone, has left the publication or was renamed: ``TableWatch`` handles it. Another table
    joins once it is published and can be captured. Until then it waits, even if it had joined and its copy hadn't
    begun: nothing was promised about it.

    Raises Unavailable if Kafka doesn't list its topics, and as psycopg.
    """
    source = pipeline.source
    named = set(source.named)
    found = _matching(sql, source)
    if is_first_start(state):
        return Selection(tuple(found), {}, _idle(source, [*found, *named]))
    assert state is not None
    kept = [
        name
        for name in recorded_tables(state)
        if name not in named and source.matches(name) and _was_published(name, state, shapes)
    ]
    captured = {*kept, *named}
    ours = {oid for name in captured for oid in _known_oids(name, state, shapes)}
    new = [name for name, oid in found.items() if name not in captured and oid not in ours]
    joined, waiting = _judged(sql, pipeline, state, new)
    return Selection(tuple(sorted([*kept, *joined])), waiting, _idle(source, [*found, *captured]))


def can_join(sql: psycopg.Connection[Any], pipeline: Pipeline, state: CaptureState, name: TableName) -> bool:
    """Whether a table that matches and isn't captured can be. Raises as ``select_tables``. The publication is checked
    last: for that, PostgreSQL waits for locks of all published tables."""
    relations = load_relations(sql, [name])
    if _error_in(_findings(pipeline.source, relations[name]) if name in relations else []) is not None:
        return False
    joined, _ = _judged(sql, pipeline, state, [name])
    return bool(joined)


def _was_published(name: TableName, state: CaptureState, shapes: Mapping[TableName, Table]) -> bool:
    """Whether a table's topic may hold anything. A copy begins with the table's shape."""
    return name in state.memberships or name in shapes or (name in state.copying and state.copying[name].has_begun)


def _known_oids(name: TableName, state: CaptureState, shapes: Mapping[TableName, Table]) -> list[int]:
    """The recorded oids of a captured table, which may have another name by now. The newest record counts. A copy that
    begins again has only the shape."""
    copy = state.copying.get(name)
    for text in (copy.membership if copy is not None else "", state.memberships.get(name, "")):
        recorded = Recorded.from_text(text)
        if recorded is not None:
            return [recorded.oid]
    return [shapes[name].oid] if name in shapes else []


def why_left(name: TableName, selection: Selection) -> str:
    """Why a table with nothing on its topic isn't captured any more."""
    reason = selection.waiting.get(name)
    return "there is no table of its name any more" if reason is None else f"it waits: {reason}"


def is_first_start(state: CaptureState | None) -> bool:
    return state is None or state.phase is SnapshotPhase.CREATING


def recorded_tables(state: CaptureState) -> Sequence[TableName]:
    """The tables that the process of this state captures."""
    return sorted({*state.memberships, *state.copying}) if state.captured is None else state.captured


def _matching(sql: psycopg.Connection[Any], source: SourceSettings) -> dict[TableName, int]:
    """The existing tables that match and aren't named as well, with their oids."""
    named = set(source.named)
    rows = sql.execute(_TABLES).fetchall()
    found = {TableName(schema, table): oid for schema, table, oid in rows}
    return {name: oid for name, oid in found.items() if name not in named and source.matches(name)}


def _idle(source: SourceSettings, names: Sequence[TableName]) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in source.patterns if not any(map(pattern.matches, names)))


def _judged(
    sql: psycopg.Connection[Any], pipeline: Pipeline, state: CaptureState, names: Sequence[TableName]
) -> tuple[list[TableName], dict[TableName, str]]:
    """Those of these tables that can be captured, and why others can't. A table dropped meanwhile is in neither."""
    if not names:
        return [], {}
    relations = load_relations(sql, names)
    publication = load_publication(sql, pipeline.publication, relations)
    there = [name for name in names if name in relations]
    wrong = {name: _error_of(sql, pipeline, relations[name], publication) for name in there}
    reasons = {name: _reason(name, finding) for name, finding in wrong.items() if finding is not None}
    topics = why_no_topic(pipeline, state, [name for name in there if name not in reasons])
    reasons |= {name: _with_way_out(name, reason) for name, reason in topics.items()}
    return [name for name in there if name not in reasons], reasons


def _error_of(
    sql: psycopg.Connection[Any], pipeline: Pipeline, relation: Relation, publication: Publication
) -> Finding | None:
    """The first finding that would stop capture if it took this table in."""
    name, source = relation.name, pipeline.source
    findings = _findings(source, relation)
    if not publication.exists:
        findings.append(
            error(publication.subject, "doesn't exist", "nothing is sent", "`lockstep doctor` says how it is created")
        )
    findings += entry_findings(
        publication, relation, configured_key=source.keys.get(name), version=sql.info.server_version
    )
    user = sql.info.user
    findings += readable([relation], {name: publication.published(relation)}, user=user)
    findings += row_security(relation, user=user)
    return _error_in(findings)


def _findings(source: SourceSettings, relation: Relation) -> list[Finding]:
    """What is wrong with the table itself, however it is published."""
    name = relation.name
    return table_findings([name], {name: relation}, keys=source.keys, append_only=source.append_only, similar={})


def _error_in(findings: Sequence[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.severity is Severity.ERROR), None)


def _reason(name: TableName, finding: Finding) -> str:
    """A finding as a reason to wait, and what to do on the lines below."""
    is_of_table = finding.subject == f"table {name}"
    subject = finding.subject if not is_of_table else "it" if finding.what.startswith(_PREDICATES) else ""
    return _with_way_out(name, f"{subject} {finding.what}\n{finding.fix}".strip())


_PREDICATES: Final = ("has ", "is ", "belongs ")
"""Beginnings of findings whose subject is the table. Other findings are whole sentences."""


def _with_way_out(name: TableName, reason: str) -> str:
    return f"{reason}\nor leave it out: exclude_tables = [{toml_text(str(name))}]"
