"""Whether Kafka answers, keeps what it commits, and holds our topics with nobody else's records in them."""

from collections.abc import Sequence

from cdc.kafka.newest_records import NewestRecord, newest_records
from cdc.kafka.topic_admin import COMMIT_MARKER_LOSS, TopicAdmin, control_topic_plans, table_topic_plan
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.tag import Tag
from cdc.postgres.preflight.finding import Finding, Severity, error
from cdc.protocol.envelope import TAG_HEADER, parse_value
from lockstep.config import Config


def check_kafka(config: Config) -> list[Finding]:
    """Brokers, topics, and records that aren't ours. Raises Unavailable when Kafka doesn't answer."""
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
    absent = {plan.name for plan in missing}
    topics = [topic for topic in config.topics().values() if topic not in absent]
    return findings + foreign_record_findings(newest_records(config.kafka.client(), topics))


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
            "run Kafka 4.0, or replicate all topics and __transaction_state to three brokers that never stop together",
        )
    ]


def foreign_record_findings(records: Sequence[NewestRecord]) -> list[Finding]:
    """Records that aren't events of ours: somebody else writes to the topic."""
    foreign = {record.topic: record for record in records if not _is_event(record)}
    return [
        error(
            f"topic {topic}",
            f"holds a record that isn't an event (partition {record.partition}, offset {record.offset})",
            "somebody else writes to it: every sink stops there, and a compacted topic keeps a foreign key for ever",
            "find out who writes to it and stop that; then use another pipeline.name, whose topics are new",
        )
        for topic, record in sorted(foreign.items())
    ]


def _is_event(record: NewestRecord) -> bool:
    try:
        if record.value is None:
            Tag.parse((record.headers.get(TAG_HEADER) or b"").decode())
        else:
            Tag.parse(parse_value(record.value).tag)
    except (LockstepError, ValueError, TypeError, AttributeError):
        return False
    return record.key is not None
