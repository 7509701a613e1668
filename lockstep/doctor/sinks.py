"""Whether a sink answers and takes its settings, who gets append-only tables, and whether histories are complete."""

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin, view_topic_plans
from cdc.kafka.topic_names import view_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.finding import Finding, Severity, error, warning
from cdc.model.table import Table, TableName
from cdc.postgres.connection import connect
from jobs.generations.record import Phase, check_owner, list_generations
from jobs.query.row_plan import unevaluated
from jobs.query.view_plan import planned_view
from lockstep.captured_tables import captured_shapes
from lockstep.config import Config
from lockstep.doctor.written_topics import JOB_STOPS, written_topics
from sinks.registry import (
    SinkSettings,
    check_new_generation,
    definition,
    history_tables,
    kind_of,
    open_sink,
    problems_at_work,
    setting_problems,
    unfit_tables,
    with_definition,
)
from views.failures import Refused

_RIGHT_TO_TRY: Final = (
    "where its role lacks the right indices:admin/index_template/simulate, give it that; jobs don't need it"
)
_HELD: Final = "its job holds this table, and goes on without it"
_RIGHT_TO_SEE: Final = "where its role lacks the right cluster:monitor/tasks/lists, give it that"


def check_sink(config: Config, *, name: str, shapes: Mapping[TableName, Table]) -> list[Finding]:
    """Whether the sink's server answers, what it holds, and whether the settings fit the source's tables.

    ``shapes`` are the captured tables as they are; empty if the source wasn't reached. Raises LockstepError if the
    server doesn't answer or refuses.
    """
    settings = config.sinks[name]
    opened = open_sink(name, settings, 1)
    try:
        live = opened.generations.live()
        generations = list_generations(opened)
    finally:
        opened.sink.close()
    try:
        for each in generations:
            if each.record is not None:
                check_owner(name, each.number, each.record, config.pipeline.name)
    except LockstepError as foreign:
        return [error(f"sink {name}", foreign.message, JOB_STOPS, foreign.hint or "")]
    built = next((each.record for each in generations if each.number == live), None)
    what = "answers; empty so far" if live is None else f"answers; generation {live} is live"
    findings = [Finding(Severity.OK, f"sink {name}", what)]
    if opened.identities is None:
        what = "can't distinguish its tables from others of their names"
        why = "its job goes on after a table was removed there, and the earlier rows stay missing"
        findings.append(warning(f"sink {name}", what, why, f"after that, run `lockstep rebuild {name} --switch`"))
    unseen = kind_of(settings).why_late_writes_are_unseen(name, settings)
    if unseen:
        what = f"whether its server still has a write in hand of a job that was replaced can't be seen: {unseen}"
        findings.append(warning(f"view {name}", what, "it could bring a row back that is gone", _RIGHT_TO_SEE))
    # A generation's settings were accepted: a column that is gone since isn't a typing error.
    used = settings if built is None else with_definition(settings, built.definition)
    tables = _of_sink(config, settings, shapes) if shapes else []
    if tables and settings.view is not None:
        try:
            tables = [planned_view(settings.view, shapes).table]
        except Refused as refused:
            return findings + _refusals(name, refused, why=JOB_STOPS if built is None else _rebuild_stops(name))
    findings += _unfit_findings(name, used, tables)
    if tables and definition(used) != definition(settings):
        findings += _unfit_findings(name, settings, tables, why=_rebuild_stops(name))
        findings += _setting_findings(name, settings, tables, why=_rebuild_stops(name))
    elif tables and built is None:
        findings += _setting_findings(name, settings, tables, why=JOB_STOPS)
    if tables and built is not None:
        # These are evaluated from now on too, over the tables as they are now.
        findings += _expression_findings(name, used, tables)
        findings += [
            warning(f"sink {name}", problem, "its job leaves that out", f"mend it in {section_of(name, settings)}")
            for problem in problems_at_work(used, tables)
        ]
    return findings


def _rebuild_stops(name: str) -> str:
    return f"`lockstep rebuild {name}` would stop there"


def section_of(name: str, settings: SinkSettings) -> str:
    """Where its settings are in the file; a view takes over what its own section doesn't say."""
    return f"[sinks.{name}]" if settings.view is None else f"[views.{name}] or [sinks.{settings.lender}]"


def check_view_topics(config: Config, *, name: str) -> list[Finding]:
    """Whether a view's job may write the topics of its generations, or create the missing ones. Raises LockstepError if
    its store or Kafka doesn't answer."""
    opened = open_sink(name, config.sinks[name], 1)
    try:
        numbers = [each.number for each in list_generations(opened) if each.phase is not Phase.RETIRED] or [1]
    finally:
        opened.sink.close()
    pipeline, cluster = config.pipeline.name, TopicAdmin(config.kafka.client())
    topics = [view_topic(pipeline, name, number) for number in numbers]
    plans = {plan.name: plan for topic in topics for plan in view_topic_plans(pipeline, topic, config.kafka.topics)}
    servers = config.kafka.bootstrap_servers
    return written_topics(cluster, f"view {name}", plans, named=topics, bootstrap_servers=servers)


def _refusals(name: str, refused: Refused, *, why: str) -> list[Finding]:
    return [
        error(f"view {name}", f"{refusal.clause}: {refusal.reason}", why, refusal.remedy)
        for refusal in refused.refusals
    ]


def source_shapes(config: Config) -> dict[TableName, Table]:
    """The captured tables as they are at the source, without those that don't exist. Raises LockstepError."""
    with connect(config.source, application="lockstep doctor") as connection:
        connection.execute("set default_transaction_read_only = on")
        return captured_shapes(connection, config.as_pipeline())


def _of_sink(config: Config, settings: SinkSettings, shapes: Mapping[TableName, Table]) -> list[Table]:
    return [shapes[name] for name in config.sink_tables(settings) if name in shapes]


def _setting_findings(name: str, settings: SinkSettings, tables: Sequence[Table], *, why: str) -> list[Finding]:
    """Settings of a new generation that don't fit. ``why`` says what would stop."""
    subject = f"sink {name}"
    problems = setting_problems(settings, tables)
    if problems:
        return [error(subject, problem, why, f"mend it in {section_of(name, settings)}") for problem in problems]
    findings = _expression_findings(name, settings, tables, why=why)
    unfit = unfit_tables(name, settings, tables)
    try:
        unknown = check_new_generation(name, settings, [table for table in tables if table.name not in unfit])
    except Unavailable:
        raise
    except LockstepError as refused:
        return [*findings, error(subject, refused.message, why, refused.hint or f"mend {section_of(name, settings)}")]
    if unknown:
        what = "whether its server takes new tables with these settings wasn't tried"
        findings.append(warning(subject, f"{what}: {unknown}", f"where it doesn't, {why}", _RIGHT_TO_TRY))
    return findings


def _unfit_findings(
    name: str, settings: SinkSettings, tables: Sequence[Table], *, why: str | None = None
) -> list[Finding]:
    """Tables that the sink can't hold. ``why`` says what would stop; None: what its job does then."""
    unfit = unfit_tables(name, settings, tables)
    goes_on = settings.view is None and len(unfit) < len(tables)
    why = why or (_HELD if goes_on else JOB_STOPS)
    return [error(f"sink {name}", refused.message, why, refused.hint or "") for refused in unfit.values()]


def _expression_findings(
    name: str, settings: SinkSettings, tables: Sequence[Table], *, why: str | None = None
) -> list[Finding]:
    """Computed columns and conditions that can't be evaluated. ``why`` says what would stop; None: as its job does."""
    errors = unevaluated(settings.expressions(), {table.name: table for table in tables})
    goes_on = settings.view is None and not settings.consistent and len(errors) < len(tables)
    why = why or (_HELD if goes_on else JOB_STOPS)
    way = f"mend computed and where in {section_of(name, settings)}"
    return [error(f"sink {name}", refused.message, why, way) for refused in errors.values()]


def uncaptured_findings(config: Config) -> list[Finding]:
    findings = []
    for name, settings in config.sinks.items():
        uncaptured = config.uncaptured_tables(settings)
        if uncaptured:
            subject = f"sink {name}" if settings.view is None else f"view {name}"
            findings.append(
                warning(
                    subject,
                    f"names tables that aren't captured: {', '.join(map(str, uncaptured))}",
                    "it goes on without them, and takes them up once they are captured"
                    if settings.view is None
                    else "it waits until they are captured",
                    "create the table, mend what source.tables lacks for it, or correct the name",
                )
            )
    return findings


def append_only_findings(config: Config) -> list[Finding]:
    """The sinks that get each table without a key, so that nothing captured goes missing silently."""
    findings = []
    for table in config.source.append_only_names if config.sinks else ():
        having = list(config.sinks_of(table))
        others = {
            name: settings for name, settings in config.sinks.items() if name not in having and settings.view is None
        }
        could = [name for name, settings in others.items() if settings.TAKES_APPEND_ONLY]
        can_not = [name for name in others if name not in could]
        reading = [name for name, view in config.sinks.items() if view.view is not None and str(table) in view.tables]
        sentences = [f"its events go to {', '.join(having)}" if having else "no sink gets its events"]
        if reading:
            sentences.append(
                f"the view{'s' * (len(reading) > 1)} {', '.join(reading)} read{'s' * (len(reading) == 1)} it"
            )
        if could:
            sentences.append(f"{', '.join(could)} would take them: name it in tables there")
        if can_not:
            sentences.append(f"{', '.join(can_not)} can't")
        findings.append(Finding(Severity.OK, f"append-only {table}", "; ".join(sentences)))
    return findings


def check_histories(config: Config) -> list[Finding]:
    """Whether a sink that keeps every version is sure to read every version."""
    kept_tables = {
        name: history_tables(settings, set(config.sink_tables(settings)) - config.source.append_only)
        for name, settings in config.sinks.items()
    }
    if not any(kept_tables.values()):
        return []
    cluster = TopicAdmin(config.kafka.client())
    existing = cluster.partition_counts(
        {topic for tables in kept_tables.values() for topic in config.topics_of(tables)}
    )
    findings = []
    for name, tables in kept_tables.items():
        topics = set(config.topics_of(tables))
        configs = cluster.configs(sorted(topics & existing.keys()))
        lags = [int(config["min.compaction.lag.ms"]) for config in configs.values()]
        if topics - existing.keys():
            lags.append(config.kafka.topics.min_compaction_lag_ms)
        if lags and min(lags) == 0:
            findings.append(
                Finding(
                    Severity.WARNING,
                    f"sink {name}",
                    "keeps every version of a row, and its topics may be compacted at once",
                    "while the job is away, versions can be compacted before it reads them: its history then is whole"
                    " from a later point only",
                    "set kafka.topics.min_compaction_lag_ms above the longest time that the job may be away; existing"
                    " topics get it by kafka-configs.sh --alter --add-config min.compaction.lag.ms=..., and above 7"
                    " days max.compaction.lag.ms with the same value",
                )
            )
    return findings
