"""Whether a sink answers, which sinks get append-only tables, and whether histories are sure to have all versions."""

from cdc.kafka.topic_admin import TopicAdmin
from cdc.postgres.preflight.finding import Finding, Severity
from lockstep.config import Config
from sinks.registry import history_tables, open_sink


def check_sink(config: Config, *, name: str) -> list[Finding]:
    """Whether the sink's server answers, and what it holds. Raises LockstepError when it doesn't answer or refuses."""
    opened = open_sink(name, config.sinks[name], 1)
    try:
        live = opened.generations.live()
    finally:
        opened.sink.close()
    what = "answers; empty so far" if live is None else f"answers; generation {live} is live"
    return [Finding(Severity.OK, f"sink {name}", what)]


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
