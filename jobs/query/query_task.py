"""The tasks of a query: what they need to know of the log and the destination."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.kafka.topic_admin import TopicAdmin, view_topic_plans
from cdc.kafka.topic_names import PROGRESS, control_topic, view_topic
from cdc.kafka.topic_policy import check_kept
from cdc.model.table import TableName
from jobs.executor.task_input import StepsInput, Task, ViewInput, ViewTopicInput
from jobs.generations.view_state import state_directory
from jobs.offsets import Offsets
from jobs.query.log_facts import LogFacts
from jobs.query.sink_plan import SinkPlan
from jobs.query.view_plan import PlannedView
from jobs.spark.source import portable_client
from sinks.registry import history_tables
from views.plan import RowPlan
from views.shard import shards


@dataclass(frozen=True)
class Destination:
    """The destination as this query found it."""

    fence: int
    """The claim of the job."""
    server: str | None = None
    """The server that has the progress; see ``OpenedSink.server``."""
    identities: Mapping[TableName, str] = field(default_factory=dict)
    """The identities of its tables."""
    reached: Offsets = field(default_factory=dict)
    """The next offsets in its progress: all below them is applied."""


def query_task(
    plan: SinkPlan,
    log: LogFacts,
    computed: Mapping[TableName, RowPlan],
    view: PlannedView | None,
    destination: Destination,
) -> Task:
    """The task of a query's batches. Creates the topic of a view that has one, and raises what that raises."""
    steps = None
    if plan.applies_steps:
        steps = StepsInput(control_topic(plan.pipeline, PROGRESS), plan.pipeline, destination.reached)
    return Task(
        sink=plan.name,
        settings=plan.settings,
        generation=plan.generation,
        fence=destination.fence,
        tables=log.table_of,
        shapes=log.tables,
        window_bytes=plan.limits.window_bytes,
        histories=log.histories,
        known_ends=log.known_ends,
        computed=computed,
        versions=history_tables(plan.settings, [name for name, table in log.tables.items() if table.key]),
        compaction_lag_ms=log.compaction_lag_ms,
        retry_s=plan.spark.retry_s,
        run=uuid.uuid4().hex,
        client=portable_client(plan.kafka),
        open=plan.open,
        view=None if view is None else _view_input(plan, log, view, destination.reached),
        steps=steps,
        server=destination.server,
        identities=destination.identities,
    )


def _view_input(plan: SinkPlan, log: LogFacts, view: PlannedView, reached: Offsets) -> ViewInput:
    settings = plan.settings.view
    assert settings is not None
    return ViewInput(
        view.plan,
        view.table,
        str(state_directory(plan.spark, pipeline=plan.pipeline, sink=plan.name, generation=plan.generation)),
        control_topic(plan.pipeline, PROGRESS),
        plan.pipeline,
        reached=reached,
        log=repr(sorted((topic, facts.topic_id, facts.partitions) for topic, facts in log.topics.items())),
        trimmed=plan.trimmed,
        result_topic=_result_topic(plan),
        shards=() if view.sharding is None else tuple(shards(view.sharding, settings.tasks)),
    )


def _result_topic(plan: SinkPlan) -> ViewTopicInput | None:
    """The topic of the view's rows, created if missing; None if none is configured."""
    if not plan.settings.topic:
        return None
    topic = view_topic(plan.pipeline, plan.name, plan.generation)
    cluster = TopicAdmin(plan.kafka.client())
    topics = view_topic_plans(plan.pipeline, topic, plan.kafka.topics)
    cluster.create(cluster.missing(topics))
    for each in topics:
        check_kept(cluster, each, plan.kafka.bootstrap_servers)
    return ViewTopicInput(plan.pipeline, plan.name, plan.generation, topic, plan.kafka.topics.max_message_bytes)
