"""What the log says of a sink's tables before its job reads them: their shapes and topics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin, partitions_of, without_rights
from cdc.kafka.topic_names import SCHEMA, control_topic, table_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.executor.shape_history import TableHistory, histories, newest_shapes
from jobs.offsets import Offsets
from jobs.query.resume_check import FOR_EVER_MS, TopicFacts
from jobs.query.sink_plan import SinkPlan
from sinks.contract import TopicPartition


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The log as it was when the job looked."""

    tables: Mapping[TableName, Table]
    """The newest shapes."""
    records: Sequence[SchemaRecord]
    """All shapes that these tables had, in the order of the topic."""
    topics: Mapping[str, TopicFacts]
    """By topic."""
    table_of: Mapping[str, TableName]
    """Topic -> table."""
    known_ends: Offsets = field(default_factory=dict)
    """Below these offsets ``records`` has every event's shape. After that a table may get an earlier shape again."""
    uncopied: Sequence[TableName] = ()
    """Tables of the sink that aren't in the log yet, since their copy hasn't begun. The other fields leave them out."""

    @property
    def histories(self) -> dict[TableName, TableHistory]:
        """The histories of the tables that had other shapes before."""
        return histories(self.records)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic, number) for topic, facts in self.topics.items() for number in range(facts.partitions)]

    @property
    def topic_ids(self) -> dict[str, str]:
        return {topic: facts.topic_id for topic, facts in self.topics.items()}

    @property
    def compaction_lag_ms(self) -> int:
        """How long, at least, every topic retains each version."""
        return min((facts.compaction_lag_ms for facts in self.topics.values()), default=0)


_RIGHTS: Final = ("Describe", "Read", "DescribeConfigs")
"""The rights that a job needs on each table's topic."""


def unreadable(plan: SinkPlan, cluster: TopicAdmin) -> dict[TableName, LockstepError]:
    """The tables whose topics the job may not read, each with the missing rights. Raises Unavailable."""
    names = {table_topic(plan.pipeline, name): name for name in plan.tables}
    return {
        names[topic]: LockstepError(
            f"topic {topic} can't be read without the right {', '.join(rights)}",
            hint=without_rights(rights),
        )
        for topic, rights in cluster.lacking_rights(names, _RIGHTS).items()
    }


def without_topic(plan: SinkPlan, cluster: TopicAdmin, tables: Iterable[TableName]) -> dict[TableName, LockstepError]:
    """Those of these tables whose topic doesn't exist. Raises Unavailable."""
    names = {table_topic(plan.pipeline, name): name for name in tables}
    existing = cluster.partition_counts(names, must_see=True)
    return {
        name: LockstepError(
            f"topic {topic} doesn't exist any more",
            hint="capture makes it anew and copies the table again, while it captures it; then"
            f" lockstep rebuild {plan.name} --switch, or lockstep take-out {plan.name} {name}",
        )
        for topic, name in names.items()
        if topic not in existing
    }


def read_log_facts(plan: SinkPlan, cluster: TopicAdmin, *, join_singly: bool = False) -> LogFacts:
    """Look at the log. Raises Unavailable while capture hasn't published a table; with ``once``, LockstepError. With
    ``join_singly``, tables may be uncopied as long as others are there."""
    names = {table_topic(plan.pipeline, name): name for name in plan.tables}
    # Before the shapes: an event is never committed before its shape.
    counts = cluster.partition_counts(names, must_see=True)
    known_ends = cluster.committed_ends(partitions_of([topic for topic in names if topic in counts], counts))
    tables, records = _read_tables(plan, cluster, join_singly=join_singly)
    table_of = {topic: name for topic, name in names.items() if name in tables}
    uncopied = [name for name in plan.tables if name not in tables]
    return LogFacts(tables, records, _topic_facts(plan, cluster, list(table_of)), table_of, known_ends, uncopied)


def have_shapes_changed(plan: SinkPlan, known: Sequence[SchemaRecord]) -> bool:
    """Whether the log's shapes of the tables differ from those that were ``known`` when the sink was prepared. All
    shapes count: a column may come and go in one transaction, and the newest shape is then the old one again. Raises
    Unavailable also while a transaction that writes shapes may still be open for some brokers."""
    client, topic = plan.kafka.client(), control_topic(plan.pipeline, SCHEMA)
    cluster = TopicAdmin(client)
    ends, committed = cluster.end_offsets([(topic, 0)]), cluster.committed_ends([(topic, 0)])
    if _of_tables(plan, read_schema_records(client, plan.pipeline)) != list(known):
        return True
    if committed != ends:
        raise Unavailable(f"topic {topic} has a transaction that isn't committed yet")
    return False


def _read_tables(
    plan: SinkPlan, cluster: TopicAdmin, *, join_singly: bool
) -> tuple[dict[TableName, Table], list[SchemaRecord]]:
    """This sink's tables, and all shapes that they had, in order."""
    records = []
    if cluster.exists(control_topic(plan.pipeline, SCHEMA)):
        records = read_schema_records(plan.kafka.client(), plan.pipeline)
    newest = newest_shapes(records)
    missing = [name for name in plan.tables if name not in newest]
    if missing and not (join_singly and len(missing) < len(plan.tables)):
        raise _not_yet(plan, f"table {missing[0]} isn't in the log of pipeline {plan.pipeline!r}")
    return {name: newest[name] for name in plan.tables if name in newest}, _of_tables(plan, records)


def _of_tables(plan: SinkPlan, records: Iterable[SchemaRecord]) -> list[SchemaRecord]:
    return [record for record in records if record.table.name in plan.tables]


def _topic_facts(plan: SinkPlan, cluster: TopicAdmin, topics: Sequence[str]) -> dict[str, TopicFacts]:
    counts = cluster.partition_counts(topics, must_see=True)
    missing = [topic for topic in topics if topic not in counts]
    if missing:
        raise _not_yet(plan, f"topic {missing[0]} doesn't exist")
    ids = cluster.topic_ids(topics)
    configs = cluster.configs(topics)
    return {topic: _facts_of(ids[topic], counts[topic], configs[topic]) for topic in topics}


def _facts_of(topic_id: str, partitions: int, config: Mapping[str, str]) -> TopicFacts:
    is_compacted = "compact" in config["cleanup.policy"]
    return TopicFacts(
        topic_id,
        partitions,
        int(config["delete.retention.ms"]) if is_compacted else FOR_EVER_MS,
        int(config["min.compaction.lag.ms"]) if is_compacted else FOR_EVER_MS,
    )


def _not_yet(plan: SinkPlan, message: str) -> LockstepError:
    hint = "start capture: it creates the topics and publishes the tables' shapes before the first row"
    return LockstepError(message, hint=hint) if plan.once else Unavailable(message, hint=hint)
