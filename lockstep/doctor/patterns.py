"""Which tables the patterns of ``source.tables`` take in, and which match and aren't captured."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.finding import Finding, error, ok, warning
from cdc.model.printable import toml_text
from cdc.model.table import Table, TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect
from cdc.protocol.control_records import CaptureState
from cdc.stream.table_selection import Selection, is_first_start, recorded_tables, select_tables
from lockstep.captured_tables import recorded_shapes, recorded_state
from lockstep.config import Config

_SUBJECT: Final = "source.tables"
_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class ChosenTables:
    """The configuration with the captured tables. ``waiting`` are matching tables to be checked as well.
    ``silent_kafka`` is set if Kafka didn't answer, so that nobody waits for it again."""

    config: Config
    waiting: tuple[TableName, ...]
    findings: tuple[Finding, ...]
    silent_kafka: Unavailable | None = None


def choose_tables(config: Config) -> ChosenTables:
    """The tables to check. Never raises for a server: a silent Kafka or source is a finding of its own.

    If Kafka doesn't say what capture has recorded, nobody knows what the patterns take in: all matching tables are
    checked. If the source doesn't answer, the recorded tables are used instead.
    """
    source, pipeline = config.source, config.as_pipeline()
    if source.is_resolved:
        return ChosenTables(config, (), ())
    try:
        state, shapes = recorded_state(pipeline), recorded_shapes(pipeline)
    except LockstepError as refused:
        why = "capture records that in Kafka, which doesn't answer"
        unknown = _unknown(config, why, _selected(pipeline, None, {}))
        return replace(unknown, silent_kafka=refused) if isinstance(refused, Unavailable) else unknown
    selection = _selected(pipeline, state, shapes)
    if selection is None:
        if state is None or is_first_start(state):
            return _unknown(config, "before capture begins only the source knows, which doesn't answer", None)
        selection = Selection(tuple(recorded_tables(state)), {}, ())
    findings = [*_of_patterns(config, selection), *_idle(selection, is_first_start(state))]
    chosen = config.capturing(source.resolved(selection.taken_in))
    return ChosenTables(chosen, tuple(selection.waiting), tuple(findings))


def _selected(pipeline: Pipeline, state: CaptureState | None, shapes: Mapping[TableName, Table]) -> Selection | None:
    """None if a server doesn't answer."""
    try:
        with contextlib.closing(connect(pipeline.source, application="lockstep doctor")) as sql:
            sql.execute("set default_transaction_read_only = on")
            return select_tables(sql, pipeline, state, shapes)
    except (LockstepError, psycopg.Error):
        return None


def _unknown(config: Config, why: str, matching: Selection | None) -> ChosenTables:
    """What to check while nobody knows what is captured: all matching tables, as far as they are known."""
    tables = () if matching is None else matching.taken_in
    looked_at = f"; looked at here: all that match, {_listed(tables)}" if tables else ""
    findings = [
        warning(
            _SUBJECT,
            f"the tables that {pattern.text!r} takes in aren't known",
            f"{why}{looked_at}",
            "mend what keeps the server from answering, then run `lockstep doctor` again",
        )
        for pattern in config.source.patterns
    ]
    return ChosenTables(config.model_copy(update={"source": config.source.resolved(tables)}), (), tuple(findings))


def _of_patterns(config: Config, selection: Selection) -> list[Finding]:
    findings = []
    for pattern in config.source.patterns:
        taken = [name for name in selection.taken_in if pattern.matches(name)]
        if taken:
            findings.append(ok(_SUBJECT, f"{pattern.text!r} takes in {len(taken)}: {_listed(taken)}"))
    if selection.waiting:
        out = ", ".join(toml_text(str(name)) for name in selection.waiting)
        findings.append(
            error(
                _SUBJECT,
                f"matching tables aren't captured: {_listed(list(selection.waiting))}",
                "their rows don't reach Kafka",
                "the findings about them say what they lack; mend that, and capture takes them in by itself; or leave"
                f" them out: exclude_tables = [{out}]",
            )
        )
    return findings


def _idle(selection: Selection, is_first: bool) -> list[Finding]:
    found = error if is_first else warning
    return [
        found(
            _SUBJECT,
            f"no table matches {pattern!r}",
            "capture doesn't begin like that" if is_first else "nothing is captured by it",
            "correct it: names are case-sensitive; views, foreign, unlogged and temporary tables never match",
        )
        for pattern in selection.idle
    ]


def _listed(names: Sequence[TableName]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{', '.join(map(str, names[:_NAMED_MAX]))}{more}"
