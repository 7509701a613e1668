"""Whether a sink answers and takes its settings, who gets append-only tables, and whether histories are complete."""

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect
from cdc.postgres.preflight.finding import Finding, Severity, error, warning
from jobs.generations.record import list_generations
from lockstep.config import Config
from sinks.registry import (
    SinkSettings,
    check_new_generation,
    definition,
    history_tables,
    open_sink,
    setting_problems,
    with_definition,
)

_RIGHT_TO_TRY: Final = (
    "where its role lacks the right indices:admin/index_template/simulate, give it that; jobs don't need it"
)


def check_sink(config: Config, *, name: str, shapes: Mapping[TableName, Table]) -> list[Finding]:
    """Whether the sink's server answers, what it holds, and whether the settings fit the source's tables.

    ``shapes`` are the captured tables as they are; empty where the source wasn't reached. Raises LockstepError when the
    server doesn't answer or refuses.
    """
    settings = config.sinks[name]
    opened = open_sink(name, settings, 1)
    try:
        live = opened.generations.live()
        built = next((each.record for each in list_generations(opened) if each.number == live), None)
    finally:
        opened.sink.close()
    what = "answers; empty so far" if live is None else f"answers; generation {live} is live"
    findings = [Finding(Severity.OK, f"sink {name}", what)]
    # What a generation was built with has been taken: a column that is gone since isn't a slip of the pen.
    is_new = built is None or definition(with_definition(settings, built.definition)) != definition(settings)
    if shapes and is_new:
        findings += _setting_findings(name, settings, _of_sink(config, settings, shapes), is_built=built is not None)
    return findings


def source_shapes(config: Config) -> dict[TableName, Table]:
    """The captured tables as they are at the source; those that don't exist aren't in it. Raises LockstepError."""
    with connect(config.source, application="lockstep doctor") as connection:
        connection.execute("set default_transaction_read_only = on")
        is_published = connection.execute(
            "select 1 from pg_publication where pubname = %s", (config.publication,)
        ).fetchone()
        publication = config.publication if is_published else None
        return load_tables(connection, config.source.table_names, publication, config.source.keys)


def _of_sink(config: Config, settings: SinkSettings, shapes: Mapping[TableName, Table]) -> list[Table]:
    return [shapes[name] for name in config.sink_tables(settings) if name in shapes]


def _setting_findings(name: str, settings: SinkSettings, tables: Sequence[Table], *, is_built: bool) -> list[Finding]:
    """Settings that don't fit. ``is_built``: only a rebuild would use them."""
    subject = f"sink {name}"
    why = f"`lockstep rebuild {name}` would stop there" if is_built else "its job would stop there"
    problems = setting_problems(settings, tables)
    if problems:
        return [error(subject, problem, why, f"mend it in [sinks.{name}]") for problem in problems]
    try:
        unknown = check_new_generation(name, settings, tables)
    except Unavailable:
        raise
    except LockstepError as refused:
        return [error(subject, refused.message, why, refused.hint or f"mend [sinks.{name}]")]
    if unknown:
        what = "whether its server takes new tables with these settings wasn't tried"
        return [warning(subject, f"{what}: {unknown}", f"where it doesn't, {why}", _RIGHT_TO_TRY)]
    return []


def append_only_findings(config: Config) -> list[Finding]:
    """Which sinks get the tables without a key: nothing that is captured is missing anywhere without a word."""
    findings = []
    for table in config.source.append_only_names if config.sinks else ():
        having = [name for name, settings in config.sinks.items() if table in config.sink_tables(settings)]
        others = {name: settings for name, settings in config.sinks.items() if name not in having}
        could = [name for name, settings in others.items() if settings.TAKES_APPEND_ONLY]
        can_not = [name for name in others if name not in could]
        sentences = [f"its events go to {', '.join(having)}" if having else "no sink gets its events"]
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
    existing = cluster.partition_counts()
    findings = []
    for name, tables in kept_tables.items():
        topics = {config.topics()[table] for table in tables}
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
                    " topics get it by kafka-configs.sh --alter --add-config min.compaction.lag.ms=...",
                )
            )
    return findings
