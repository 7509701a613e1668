"""``lockstep doctor``: everything that can be known to fail before it does. Reads only."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from rich.console import Group
from rich.text import Text

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.newest_records import newest_records
from cdc.kafka.topic_admin import COMMIT_MARKER_LOSS, TopicAdmin, control_topic_plans, table_topic_plan
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.postgres.connection import connect
from cdc.postgres.preflight import check_source
from cdc.postgres.preflight.endpoint import endpoint_findings, refusal
from cdc.postgres.preflight.finding import Finding, Severity
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.slot import find_slot
from lockstep.config import Config
from lockstep.doctor.kafka import (
    SlotFacts,
    foreign_record_findings,
    own_states,
    position_findings,
    shared_slot_findings,
    states_of_others,
)
from migrations.source import publication_sql
from sinks.registry import history_tables, open_sink

_SIGNS = {Severity.OK: ("ok", "green"), Severity.WARNING: ("warning", "yellow"), Severity.ERROR: ("error", "red")}


def examine(config: Config) -> list[Finding]:
    """All findings of all parts; a part that can't be reached is a finding too."""
    source = _guarded("source", _source, config)
    kafka = _guarded("Kafka", _kafka, config)
    findings = [*source, *kafka]
    if _was_reached("source", source) and _was_reached("Kafka", kafka):
        findings += _guarded("position", _position, config)
    for name in config.sinks:
        findings += _guarded(f"sink {name}", _sink_check(name), config)
    if _was_reached("Kafka", kafka):
        findings += _guarded("histories", _histories, config)
    return findings


def is_healthy(findings: Sequence[Finding]) -> bool:
    """True when nothing would fail."""
    return all(finding.severity is not Severity.ERROR for finding in findings)


def _was_reached(subject: str, findings: Sequence[Finding]) -> bool:
    return not any(found.subject == subject and found.severity is Severity.ERROR for found in findings)


def _guarded(subject: str, check: Callable[[Config], list[Finding]], config: Config) -> list[Finding]:
    try:
        return check(config)
    except (LockstepError, psycopg.Error) as error:
        hint = error.hint or "" if isinstance(error, LockstepError) else ""
        message = error.message if isinstance(error, LockstepError) else str(error).strip()
        return [Finding(Severity.ERROR, subject, message, "nothing works without it", hint)]


def _source(config: Config) -> list[Finding]:
    try:
        connection = connect(config.source, application="lockstep doctor")
    except LockstepError as refused:
        return [refusal(refused.message, config.source, subject="source")]
    with connection:
        connection.execute("set default_transaction_read_only = on")
        findings = check_source(
            connection,
            tables=config.source.published_names,
            publication=config.publication,
            slot=config.slot,
            create_publication=publication_sql(config.publication, config.source.published_names),
            keys=config.source.keys,
            append_only=config.source.append_only,
        )
        return findings + endpoint_findings(connection, config.source)


def _position(config: Config) -> list[Finding]:
    """Whether slot and state fit together. The slot is looked at first: a running capture only moves it up to its state."""
    with connect(config.source, application="lockstep doctor") as connection:
        connection.execute("set default_transaction_read_only = on")
        slot = find_slot(connection, config.slot)
        slots = connection.execute(
            "select slot_name from pg_replication_slots where slot_name <> %s and database = current_database()",
            (config.slot,),
        ).fetchall()
        database = connection.info.dbname
    try:
        with ReplicationConnection(config.source) as replication:
            identity = replication.identify_system()
    except LockstepError:
        return []  # a finding of the source already
    facts = SlotFacts(config.slot, slot, frozenset(row[0] for row in slots), identity, database, config.publication)
    client = config.kafka.client()
    own = config.pipeline.name
    suffix = control_topic("", STATE)
    topics = [topic for topic in TopicAdmin(client).partition_counts() if topic.endswith(suffix)]
    ours = control_topic(own, STATE)
    states = own_states(read_compacted(client, ours)) if ours in topics else {}
    others = {
        topic.removesuffix(suffix): states_of_others(read_compacted(client, topic)) for topic in topics if topic != ours
    }
    return position_findings(facts, states) + shared_slot_findings(facts, own, others)


def _kafka(config: Config) -> list[Finding]:
    cluster = TopicAdmin(config.kafka.client())
    plans = [
        *control_topic_plans(config.pipeline.name, config.kafka.topics),
        *(
            table_topic_plan(topic, config.kafka.topics, append_only=name in config.source.append_only)
            for name, topic in config.topics().items()
        ),
    ]
    missing = cluster.missing(plans)
    findings = [Finding(Severity.OK, "Kafka", f"answers at {config.kafka.bootstrap_servers}")]
    findings += _brokers(cluster)
    if missing:
        findings.append(Finding(Severity.OK, "topics", f"{len(missing)} will be created by capture"))
    for difference in cluster.differences(plans):
        fatal = "cleanup.policy" in difference or " partitions, " in difference
        findings.append(
            Finding(
                Severity.ERROR if fatal else Severity.WARNING,
                "topics",
                difference,
                "events are keyed and compacted; other settings lose or move keys"
                if fatal
                else "Lockstep never changes a topic that exists",
                "alter the topic with kafka-configs.sh, or change [kafka.topics]"
                if not fatal
                else "use another pipeline.name, or give the topic back to whoever made it",
            )
        )
    return findings + foreign_record_findings(newest_records(config.kafka.client(), list(config.topics().values())))


def _brokers(cluster: TopicAdmin) -> list[Finding]:
    why = f"{COMMIT_MARKER_LOSS}; capture notices and stops, it doesn't go on with a gap"
    try:
        if not cluster.loses_commit_markers():
            return []
    except Unavailable as error:
        what = f"their version can't be seen: {error.message}"
        return [Finding(Severity.WARNING, "brokers", what, why, "grant the user DescribeConfigs on the cluster")]
    return [
        Finding(
            Severity.WARNING,
            "brokers",
            "are of version 4.1 or later",
            why,
            "run Kafka 4.0.x, or replicate every topic and __transaction_state to three brokers that never stop together",
        )
    ]


def _sink_check(name: str) -> Callable[[Config], list[Finding]]:
    def check(config: Config) -> list[Finding]:
        opened = open_sink(name, config.sinks[name], 1)
        try:
            live = opened.generations.live()
        finally:
            opened.sink.close()
        what = "answers; empty so far" if live is None else f"answers; generation {live} is live"
        return [Finding(Severity.OK, f"sink {name}", what)]

    return check


def _histories(config: Config) -> list[Finding]:
    """Whether a sink that keeps every version is sure to read every version."""
    kept = {
        name: history_tables(
            settings, map(TableName.parse, settings.tables) if settings.tables else config.source.keyed_names
        )
        for name, settings in config.sinks.items()
    }
    if not any(kept.values()):
        return []
    cluster = TopicAdmin(config.kafka.client())
    existing = cluster.partition_counts()
    findings = []
    for name, tables in kept.items():
        topics = {config.topics()[table] for table in tables}
        lags = [int(cluster.config(topic)["min.compaction.lag.ms"]) for topic in sorted(topics & existing.keys())]
        if topics - existing.keys():
            lags.append(config.kafka.topics.min_compaction_lag_ms)
        if lags and min(lags) == 0:
            findings.append(
                Finding(
                    Severity.WARNING,
                    f"sink {name}",
                    "keeps every version of rows, and its topics may be compacted at once",
                    "versions that come while the job is away can be gone before it reads them: its history then says that it is"
                    " complete from a later point only",
                    "set kafka.topics.min_compaction_lag_ms above the longest time that the job may be away; topics that exist get it by"
                    " kafka-configs.sh --alter --add-config min.compaction.lag.ms=...",
                )
            )
    return findings


def findings_text(findings: Sequence[Finding]) -> Group:
    """The findings for people: what, why, what to run."""
    lines: list[Text] = []
    for finding in findings:
        word, colour = _SIGNS[finding.severity]
        lines.append(Text.assemble((f"{word:8}", colour), f"{finding.subject}: {finding.what}"))
        if finding.why:
            lines.append(Text(f"         why: {finding.why}", style="dim"))
        if finding.fix:
            first, *more = finding.fix.splitlines()
            lines.append(Text(f"         run: {first}"))
            lines += [Text(f"              {line}") for line in more]
    return Group(*lines)


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "severity": finding.severity.value,
            "subject": finding.subject,
            "what": finding.what,
            "why": finding.why,
            "fix": finding.fix,
        }
        for finding in findings
    ]
