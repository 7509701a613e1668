"""The topics of a pipeline: created if missing, and compared with those in the state."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.kafka.record_limits import RecordLimit
from cdc.kafka.topic_admin import (
    PARTITIONS,
    Difference,
    TopicAdmin,
    TopicPlan,
    control_topic_plans,
    message_topic_plans,
    smaller_limits,
    table_topic_plan,
    without_rights,
)
from cdc.kafka.topic_names import SCHEMA, STATE, control_topic, like_metrics, table_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import ConfigurationError, LockstepError, PositionMismatch, Unavailable
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.protocol.control_records import CaptureState, TopicIdentity

_NAMED_MAX = 10

_RIGHTS: Final = ("Describe", "Read", "Write", "DescribeConfigs")
"""What capture needs on the topic of each table."""


def create_missing_topics(pipeline: Pipeline, say: Callable[[str], None]) -> dict[str, RecordLimit]:
    """Create missing control topics and topics of messages and tables; existing topics stay unchanged.

    Returns the topics that accept smaller records than the settings say, and reports them. Raises LockstepError for a
    topic with another cleanup policy, a control topic with several partitions, and a table's topic on which a right is
    missing. Raises Unavailable if the brokers don't answer.
    """
    admin = TopicAdmin(pipeline.kafka.client())
    _require_rights(pipeline, admin)
    settings, append_only = pipeline.kafka.topics, pipeline.source.append_only
    control = control_topic_plans(pipeline.name, settings)
    plans = [
        *control,
        *(message_topic_plans(pipeline.name, settings) if pipeline.source.messages else []),
        *(
            table_topic_plan(topic, settings, append_only=name in append_only)
            for name, topic in pipeline.topics().items()
        ),
    ]
    missing = admin.missing(plans)
    if missing:
        more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
        say(f"creating topics: {', '.join(plan.name for plan in missing[:_NAMED_MAX])}{more}")
        admin.create(missing)
    differences = admin.differences(plans)
    wrong = [str(difference) for difference in differences if difference.setting == "cleanup.policy"]
    if wrong:
        raise LockstepError(
            "\n".join(wrong), hint="a topic of a table must be compacted; was it made by something else?"
        )
    _require_one_partition(control, differences)
    if pipeline.source.outbox_name is not None:
        differences += admin.differences(admin.outbox_plans(pipeline.name, settings))
    limits = smaller_limits(differences)
    for topic, limit in list(limits.items())[:_NAMED_MAX]:
        say(
            f"warning: topic {topic} takes records of {limit} at most, less than kafka.topics.max_message_bytes says:"
            " `lockstep doctor` has the command that changes it"
        )
    if len(limits) > _NAMED_MAX:
        say(f"warning: {len(limits) - _NAMED_MAX} more topics take smaller records than that")
    return limits


def _require_one_partition(plans: Sequence[TopicPlan], differences: Sequence[Difference]) -> None:
    """Readers of these topics read only the first partition, so a record in another one would be lost to them."""
    names = {plan.name for plan in plans}
    split = [str(each) for each in differences if each.setting == PARTITIONS and each.topic in names]
    if split:
        raise LockstepError(
            "\n".join(split),
            hint="its readers read the first one alone. If it is __progress, or capture has never published, delete the"
            " topic and start again, which creates it; else start a pipeline of another name (pipeline.name)",
        )


def _require_rights(pipeline: Pipeline, admin: TopicAdmin) -> None:
    """There is one stream: one table that can't be published stops all, or its changes would be skipped."""
    names = {topic: name for name, topic in pipeline.topics().items()}
    for topic, lacking in admin.lacking_rights(names, _RIGHTS).items():
        rights = ", ".join(lacking)
        raise LockstepError(
            f"table {names[topic]} can't be published without the right {rights} on topic {topic}. Capture publishes"
            " nothing until it has it, so that no change of the table is passed over",
            hint=f"{without_rights(lacking)}. The slot keeps the WAL until then."
            f" `lockstep tables remove '{names[topic]}'` says how capture goes on without the table",
        )


def require_empty_topics(pipeline: Pipeline, state: CaptureState | None) -> None:
    """Raises PositionMismatch for tables' topics that hold events but aren't in the state, and Unavailable. Such events
    may belong to rows that are gone, and may have greater tags than any copy."""
    known_topics = state.topics if state is not None else {}
    unknown = [topic for topic in pipeline.topics().values() if topic not in known_topics]
    if not unknown:
        return
    topics = _that_hold_events(pipeline, unknown)
    if topics and state is None:
        raise PositionMismatch(
            f"Kafka holds no state of slot {pipeline.slot}, but these topics hold events already: {', '.join(topics)}."
            " Rows that are gone by now would stay on them",
            hint="the topic of the state was lost: delete the topics and start again, and rebuild the sinks"
            " (lockstep rebuild SINK --switch); or start a pipeline of another name",
        )
    if topics:
        raise PositionMismatch(
            f"slot {pipeline.slot} has published nothing to these topics, but they hold events already:"
            f" {', '.join(topics)}. Rows that are gone by now would stay on them",
            hint="delete these topics and start again, which creates them and copies the tables; then rebuild the"
            " sinks that read them (lockstep rebuild SINK --switch)",
        )


def _that_hold_events(pipeline: Pipeline, topics: Sequence[str]) -> list[str]:
    admin = TopicAdmin(pipeline.kafka.client())
    identities = admin.identities(topics)
    partitions = [(topic, p) for topic, identity in identities.items() for p in range(identity.partitions)]
    begins, ends = admin.begin_offsets(partitions), admin.end_offsets(partitions)
    written = sorted({topic for topic, partition in partitions if begins[topic, partition] < ends[topic, partition]})
    # Offsets alone don't show an event, since an aborted transaction takes some too. Its markers go to a topic by name,
    # so they reach even a topic that was recreated while the transaction was open.
    reader = TopicReader(pipeline.kafka.client())
    return [topic for topic in written if reader.has_records(topic)]


def why_no_topic(pipeline: Pipeline, state: CaptureState, names: Sequence[TableName]) -> dict[TableName, str]:
    """Why tables that aren't captured yet can't have their topics, and what to do; empty if they can. Raises
    Unavailable."""
    if not names:
        return {}
    admin = TopicAdmin(pipeline.kafka.client())
    existing = admin.all_partition_counts()
    alike = {like_metrics(topic): topic for topic in existing}
    reasons: dict[TableName, str] = {}
    unknown: dict[str, TableName] = {}
    missing: dict[str, TableName] = {}
    for name in names:
        try:
            topic = table_topic(pipeline.name, name)
        except ConfigurationError as error:
            reasons[name] = str(error)
            continue
        if topic in existing and topic not in state.topics:
            unknown[topic] = name
        elif topic not in existing and (other := alike.setdefault(like_metrics(topic), topic)) != topic:
            reasons[name] = (
                f"its topic {topic} can't be beside {other}: to Kafka '.' and '_' are the same in a name\n"
                "rename the table, or capture it with a pipeline of another name"
            )
        elif topic not in existing:
            missing[topic] = name
    append_only = pipeline.source.append_only
    # Without the right to describe a topic, we don't see it in the list either.
    for topic, lacking in admin.lacking_rights([*unknown, *missing], _RIGHTS).items():
        name = (unknown if topic in unknown else missing).pop(topic)
        reasons[name] = f"the right {', '.join(lacking)} on its topic {topic} lacks\n{without_rights(lacking)}"
    wanted = [
        table_topic_plan(topic, pipeline.kafka.topics, append_only=name in append_only)
        for topic, name in missing.items()
    ]
    for topic, refused in admin.why_not_created(wanted).items():
        reasons[missing[topic]] = f"{refused.message}\n{refused.hint or ''}".strip()
    if unknown:
        plans = [
            table_topic_plan(topic, pipeline.kafka.topics, append_only=name in append_only)
            for topic, name in unknown.items()
        ]
        wrong = {each.topic: each for each in admin.differences(plans) if each.setting == "cleanup.policy"}
        holding = _that_hold_events(pipeline, list(unknown))
        for topic, name in unknown.items():
            if topic in wrong:
                reasons[name] = f"{wrong[topic]}\ndelete the topic, if nobody else needs it"
            elif topic in holding:
                reasons[name] = (
                    f"slot {pipeline.slot} has published nothing to topic {topic}, but it holds events already\n"
                    "delete the topic, if nobody else needs it: rows that are gone by now would stay on it"
                )
    return reasons


def order_secret(pipeline: Pipeline) -> bytes:
    """What orders to capture are signed with: a random id that Kafka shows to those who may describe the pipeline's
    topics. Raises Unavailable, and LockstepError if the topic doesn't exist."""
    topic = control_topic(pipeline.name, STATE)
    return TopicAdmin(pipeline.kafka.client()).topic_ids([topic])[topic].encode()


def topic_identities(pipeline: Pipeline) -> dict[str, TopicIdentity]:
    """The topics that rows and shapes go to now. Raises Unavailable, also if one is gone by now."""
    return TopicAdmin(pipeline.kafka.client()).identities(_recorded_topics(pipeline))


def _recorded_topics(pipeline: Pipeline) -> list[str]:
    return [*pipeline.topics().values(), control_topic(pipeline.name, SCHEMA)]


def holding_events(pipeline: Pipeline) -> Callable[[str], bool]:
    """A function that says whether a topic holds anything committed. Raises as ``TopicReader.has_records``."""
    return TopicReader(pipeline.kafka.client()).has_records


def adopt_topics(
    state: CaptureState,
    now: Mapping[str, TopicIdentity],
    pipeline: Pipeline,
    say: Callable[[str], None],
    has_events: Callable[[str], bool],
) -> CaptureState:
    """The state with the topics as they are ``now``: a table whose topic was lost is to be copied.

    ``has_events`` says whether a topic holds events. It is called for a topic that was recreated with another number of
    partitions and, if shapes were lost, for topics of tables that wait for a copy. Raises PositionMismatch for a topic
    with another number of partitions, and if shapes of remaining events were lost, since those can't be read.
    """
    recreated = []
    for topic, identity in now.items():
        before = state.topics.get(topic, identity)
        is_same = identity.topic_id == before.topic_id
        # The client uses the old number until it learns the new one. What it sent to a recreated topic meanwhile is in
        # partitions where no later event of its key comes.
        if identity.partitions != before.partitions and (is_same or has_events(topic)):
            raise _other_partitions(topic, identity, before)
        if not is_same:
            recreated.append(topic)
    lost = [name for name, topic in pipeline.topics().items() if topic in recreated]
    for name in lost:
        say(f"warning: topic {pipeline.topics()[name]} was recreated: copying {name} again")
    adopted = replace(state, topics={**state.topics, **now}).never_copied(lost)
    if control_topic(pipeline.name, SCHEMA) in recreated:
        written = [name for name, topic in pipeline.topics().items() if topic in state.topics and name not in lost]
        _require_no_events(adopted, written, pipeline, has_events)
    return adopted


def require_shapes(
    state: CaptureState, recorded: Collection[TableName], pipeline: Pipeline, has_events: Callable[[str], bool]
) -> None:
    """Raises PositionMismatch for tables whose topics hold events and whose shapes aren't ``recorded``."""
    _require_no_events(state, pipeline.topics().keys() - set(recorded), pipeline, has_events)


def _require_no_events(
    state: CaptureState, names: Collection[TableName], pipeline: Pipeline, has_events: Callable[[str], bool]
) -> None:
    """A table that waits for a copy may have older events, for instance after a recovery."""
    topics = sorted(
        topic
        for name, topic in pipeline.topics().items()
        if name in names and (name in state.memberships or has_events(topic))
    )
    if topics:
        raise PositionMismatch(
            f"topic {control_topic(pipeline.name, SCHEMA)} has lost the shapes of events that are still on"
            f" {', '.join(topics)}: those events can't be read any more",
            hint=f"delete {'these topics' if len(topics) > 1 else 'this topic'} too and start capture again, which"
            " creates what is missing, publishes the shapes and copies the tables; then rebuild the sinks"
            " (lockstep rebuild SINK --switch)",
        )


def _other_partitions(topic: str, now: TopicIdentity, before: TopicIdentity) -> PositionMismatch:
    return PositionMismatch(
        f"topic {topic} has {now.partitions} partitions, {before.partitions} when capture published to it: keys would"
        " move between them, and their order would be lost",
        hint="delete the topic and start capture again, which creates it and copies the table;"
        " then rebuild the sinks that read it (lockstep rebuild SINK --switch)",
    )


class TopicWatch:
    def __init__(self, pipeline: Pipeline, while_waiting: Callable[[], None]) -> None:
        self._topics = _recorded_topics(pipeline)
        self._admin = TopicAdmin(pipeline.kafka.client())
        self._while_waiting = while_waiting

    def inspect(self, state: CaptureState) -> CaptureState:
        """Returns the state unchanged. Raises Unavailable if a topic differs: a restart handles that."""
        for topic, identity in self._admin.identities(self._topics, while_waiting=self._while_waiting).items():
            if identity != state.topics.get(topic):
                raise Unavailable(f"topic {topic} was deleted or recreated since capture published to it")
        return state
