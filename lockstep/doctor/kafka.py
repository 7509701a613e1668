"""Whether Kafka answers, keeps what it commits, and holds our topics without foreign records."""

from collections.abc import Callable, Mapping, Sequence

from cdc.event_format.decode import LEFT_OUT, op_of, parse_value, tag_of
from cdc.kafka.control_topics import StoredRecord, read_compacted_topics, record_at
from cdc.kafka.newest_records import NewestRecord, newest_records
from cdc.kafka.record_limits import RecordLimit, set_command
from cdc.kafka.settings import TopicSettings
from cdc.kafka.topic_admin import (
    COMMIT_MARKER_LOSS,
    PARTITIONS,
    Difference,
    TopicAdmin,
    control_topic_plans,
    message_topic_plans,
    table_topic_plan,
)
from cdc.kafka.topic_names import PROGRESS, SCHEMA, STATE, control_topic
from cdc.model.errors import ForeignRecord, LockstepError, Unavailable
from cdc.model.finding import Finding, Severity, error, warning
from cdc.model.tag import TAG_HEADER, Tag
from cdc.protocol.control_records import CaptureState, ProgressRecord, SchemaRecord
from cdc.protocol.copy_ledger import CopiedRange, is_range_key
from lockstep.config import Config


def check_kafka(config: Config) -> list[Finding]:
    """Findings about brokers, topics, and foreign records. Raises Unavailable if Kafka doesn't answer."""
    cluster = TopicAdmin(config.kafka.client())
    append_only = config.source.append_only
    plans = [
        *control_topic_plans(config.pipeline.name, config.kafka.topics),
        *(message_topic_plans(config.pipeline.name, config.kafka.topics) if config.source.messages else []),
        *(
            table_topic_plan(topic, config.kafka.topics, append_only=name in append_only)
            for name, topic in config.topics().items()
        ),
    ]
    missing = cluster.missing(plans)
    findings = [Finding(Severity.OK, "Kafka", f"answers at {config.kafka.bootstrap_servers}")]
    findings += _brokers(cluster)
    if missing:
        findings += replication_findings(config.kafka.topics, cluster.brokers())
    if missing:
        findings.append(Finding(Severity.OK, "topics", f"{len(missing)} will be created by capture"))
    for difference in cluster.differences(plans):
        if limit := difference.smaller_records:
            findings.append(_smaller_records(config, difference, limit))
            continue
        fatal = difference.setting in ("cleanup.policy", PARTITIONS)
        findings.append(
            Finding(
                Severity.ERROR if fatal else Severity.WARNING,
                "topics",
                str(difference),
                "events are keyed and compacted; other settings lose or move keys"
                if fatal
                else "Lockstep never changes a topic that exists",
                "alter the topic with kafka-configs.sh, or change [kafka.topics]"
                if not fatal
                else "use another pipeline.name, or give the topic back to its owner",
            )
        )
    if config.source.outbox_name is not None:
        # Of outbox topics only what stops capture: their first row creates them, and others decide on their retention.
        findings += [
            _smaller_records(config, difference, limit)
            for difference in cluster.differences(cluster.outbox_plans(config.pipeline.name, config.kafka.topics))
            if (limit := difference.smaller_records)
        ]
    absent = {plan.name for plan in missing}
    client, name, topics = config.kafka.client(), config.pipeline.name, config.topics().values()
    newest = newest_records(
        client, [topic for topic in (*topics, control_topic(name, PROGRESS)) if topic not in absent]
    )
    compacted = [topic for topic in (control_topic(name, STATE), control_topic(name, SCHEMA)) if topic not in absent]
    return [
        *findings,
        *foreign_record_findings([record for record in newest if record.topic in topics]),
        *foreign_control_record_findings(name, read_compacted_topics(client, compacted), newest),
    ]


def _smaller_records(config: Config, difference: Difference, limit: RecordLimit) -> Finding:
    return warning(
        "topics",
        f"topic {difference.topic} takes records of {limit} at most, the configuration says"
        f" {int(difference.planned):,} bytes",
        "capture stops at the first larger one: it leaves nothing out"
        if config.capture.large_rows == "stop"
        else "capture leaves larger rows out, and every sink rejects them",
        set_command(config.kafka.bootstrap_servers, difference.topic, limit.setting, difference.planned),
    )


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


def replication_findings(topics: TopicSettings, brokers: int) -> list[Finding]:
    """Whether there are enough brokers for the topics that capture will create."""
    if topics.replication_factor <= brokers:
        return []
    return [
        error(
            "topics",
            f"kafka.topics.replication_factor is {topics.replication_factor}, and there"
            f" {'is 1 broker' if brokers == 1 else f'are {brokers} brokers'}",
            "Kafka puts no two copies of a topic on one broker, so that capture couldn't create its topics",
            f"start more brokers, or set replication_factor = {brokers} in [kafka.topics]",
        )
    ]


def foreign_record_findings(records: Sequence[NewestRecord]) -> list[Finding]:
    """Records that aren't our events: another program writes to the topic."""
    foreign = {record.topic: record for record in records if not _is_event(record)}
    return [
        error(
            f"topic {topic}",
            f"holds a record that isn't an event (partition {record.partition}, offset {record.offset})",
            "another program writes to it: every sink stops there, and a compacted topic keeps a foreign key for ever",
            "find out who writes to it and stop that; then use another pipeline.name, whose topics are new",
        )
        for topic, record in sorted(foreign.items())
    ]


def foreign_control_record_findings(
    pipeline: str, compacted: Mapping[str, Mapping[bytes, StoredRecord]], newest: Sequence[NewestRecord]
) -> list[Finding]:
    """Control records that no Lockstep wrote: the first of each topic; of ``__progress``, the newest record only.
    ``compacted`` has all of ``__state`` and ``__schema``, and ``newest`` the newest records of any topics."""
    first: dict[str, str] = {}
    for name, read in ((STATE, CaptureState.from_bytes), (SCHEMA, SchemaRecord.from_bytes)):
        topic = control_topic(pipeline, name)
        for key, record in compacted.get(topic, {}).items():
            reads = CopiedRange.from_bytes if name == STATE and is_range_key(key) else read
            if _is_foreign(reads, record.value, record.what):
                first.setdefault(topic, record.what)
    progress = control_topic(pipeline, PROGRESS)
    for newest_record in newest:
        what = record_at(newest_record.topic, newest_record.offset)
        if newest_record.topic == progress and _is_foreign(ProgressRecord.from_bytes, newest_record.value, what):
            first.setdefault(progress, what)
    return [
        error(
            f"topic {topic}",
            f"holds a record that isn't one of Lockstep's: {what}",
            "its writer can stop capture and every sink, or make them go on from a wrong place",
            "find out who writes to it, and take that right away (docs/kafka.md)",
        )
        for topic, what in first.items()
    ]


def _is_foreign(read: Callable[[bytes | None, str], object], value: bytes | None, what: str) -> bool:
    try:
        read(value, what)
    except ForeignRecord:
        return True
    except LockstepError:
        return False  # Another version's: the reader that needs the record reports it.
    return False


def _is_event(record: NewestRecord) -> bool:
    try:
        if record.value is None:
            Tag.parse((record.headers.get(TAG_HEADER) or b"").decode())
        elif op_of(record.value) == LEFT_OUT:
            Tag.parse(tag_of(record.value).decode())
        else:
            Tag.parse(parse_value(record.value).tag)
    except (LockstepError, ValueError, TypeError, AttributeError):
        return False
    return record.key is not None
