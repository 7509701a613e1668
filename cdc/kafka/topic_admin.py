"""Requests to the brokers about topics: create them, describe them, find their ends."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from cdc.kafka.client import Refusals, Refused, new_client
from cdc.kafka.record_limits import OF_RECORDS, RecordLimit, record_limit
from cdc.kafka.settings import SEVEN_DAYS_MS, TopicSettings
from cdc.kafka.topic_names import (
    DEAD_LETTERS,
    ERASURES,
    MESSAGES,
    PROGRESS,
    SCHEMA,
    STATE,
    VIEWS,
    control_topic,
    is_outbox_topic,
    shared_outbox_topic,
)
from cdc.model.errors import LockstepError, Unavailable
from cdc.protocol.control_records import TopicIdentity

_Answer = TypeVar("_Answer")

REQUEST_TIMEOUT_S = 15.0
_FIRST_ATTEMPT_S = 2.0
"""How long the first client is waited for, and each further one twice as long: it may be waiting for a dead broker."""

_CONFIGS_AT_ONCE = 100
"""How many topics' settings one request reads: an answer has dozens per topic, and thousands of topics take brokers
long."""

_RECORDS_AT_ONCE = 2_000
"""How many records one request may make the brokers write. They refuse 10,000, which 840 tables need."""

_CLIENT = {
    # With sparse connections, a client reconnects without a pause while a broker is dead: a few such clients keep all
    # cores busy, and delay the connections to the other brokers.
    "enable.sparse.connections": False,
}

_WAIT_SLICE_S = 0.5
_AGAIN_S = 0.1

_PROGRESS_RETENTION_MS = 3 * 24 * 3600 * 1000
_SEGMENT_MS = 24 * 3600 * 1000  # only closed segments are compacted
_CONTROL_SEGMENT_BYTES = 16 * 1024 * 1024
"""Small segments: the state has one record per Kafka transaction, and a start reads what isn't compacted yet."""

CONTROL_RECORD_BYTES: Final = 16 * 1024 * 1024
"""The state covers every table, and a shape every column. The brokers' own limit is 1 MB."""

VIEW_COMPACTION_LAG_MS = 3600 * 1000
"""How long a topic of rows in one order keeps each version of a row at least."""

PARTITIONS: Final = "partitions"

COMMIT_MARKER_LOSS = (
    "Kafka 4.1 to 4.4 forget to end a committed transaction in partitions that have no leader at that moment, as all"
    " have when their only broker is killed and started again: the transaction is then lost in part"
)
_SINCE_4_1 = "group.streams.session.timeout.ms"


_LEADERLESS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)

_UNANSWERED = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    # A request was under way to a broker that the others have given up.
    KafkaError._DESTROY_BROKER,
)


class _NoOffset(Unavailable):
    """A broker has answered, but without an offset."""


_NO_SUCH_OFFSET = -1
"""There is no record of that time or later. librdkafka returns another negative number for a silent leader."""

NOT_ALLOWED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""A right is missing. Retrying changes nothing until somebody grants it."""

WITHOUT_RIGHT: Final = "grant kafka.username the right {}: docs/kafka.md has all that are needed"


def without_rights(rights: Sequence[str]) -> str:
    """What to do if these rights are missing on some of our topics."""
    return WITHOUT_RIGHT.format(f"{', '.join(rights)} on the pipeline's topics")


_REFUSED_CHANGE = (
    *NOT_ALLOWED,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
)

_UNREADABLE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
)


def reason(error: BaseException) -> str:
    """The client's text for an error."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0].str()
    return str(error)


def _has_code(error: Unavailable, codes: Collection[int]) -> bool:
    """Whether a broker or the client gave one of these codes. Never for Refused, where the lack of an answer means
    nothing."""
    cause = error.__cause__
    return not isinstance(error, Refused) and isinstance(cause, KafkaException) and cause.args[0].code() in codes


def _is_of_broker(error: Unavailable) -> bool:
    """Whether a broker answered with this. librdkafka's own errors are below zero, those of a broker above."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() >= 0


def _settle(futures: Mapping[Any, Any], while_waiting: Callable[[], None] | None) -> None:
    """Wait until a request has all its answers. A thread of the client delivers them one after the other. If the caller
    continued with the first one, possibly an error, and ended the process, Python would end under that thread: it
    aborts then, with another exit code."""
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while wait(futures.values(), _WAIT_SLICE_S).not_done and time.monotonic() < deadline:
        if while_waiting is not None:
            while_waiting()


def _right(operation: AclOperation) -> str:
    """As Kafka's tools and the docs name it: ``DescribeConfigs``."""
    return str(operation.name).title().replace("_", "")


def partitions_of(topics: Collection[str], counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(topic, partition) of each of these topics, from ``partition_counts``. Raises Unavailable for a topic that the
    brokers didn't list: it was lost, or they don't know it at this moment. It must not be taken for an empty one."""
    unlisted = sorted(topic for topic in topics if topic not in counts)
    if unlisted:
        raise Unavailable(f"the brokers don't list topic {', '.join(unlisted)}")
    return [(topic, partition) for topic in topics for partition in range(counts[topic])]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it must be."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """An existing topic that differs from its plan: it ``has`` this value of a setting, or number of PARTITIONS."""

    topic: str
    setting: str
    has: str | None
    planned: str

    @property
    def smaller_records(self) -> RecordLimit | None:
        """The topic's limit, if the difference makes it accept smaller records than planned."""
        if self.setting not in OF_RECORDS or self.has is None or int(self.has) >= int(self.planned):
            return None
        return RecordLimit(int(self.has), self.setting)

    def __str__(self) -> str:
        if self.setting == PARTITIONS:
            return f"topic {self.topic} has {self.has} partitions, the configuration says {self.planned}"
        return f"topic {self.topic} has {self.setting}={self.has}, the configuration says {self.planned}"


def smaller_limits(differences: Sequence[Difference]) -> dict[str, RecordLimit]:
    """The limit of each topic that accepts smaller records than planned: the smallest, if several settings do that."""
    limits: dict[str, RecordLimit] = {}
    for difference in differences:
        limit, known = difference.smaller_records, limits.get(difference.topic)
        if limit is not None and (known is None or limit.size < known.size):
            limits[difference.topic] = limit
    return limits


def in_requests(plans: Sequence[TopicPlan]) -> list[list[TopicPlan]]:
    """The plans in order, in parts that brokers accept at once: a topic costs a record per partition and setting."""
    parts: list[list[TopicPlan]] = []
    room = 0
    for plan in plans:
        records = 1 + plan.partitions + len(plan.config)
        if records > room or not parts:
            parts.append([])
            room = _RECORDS_AT_ONCE
        parts[-1].append(plan)
        room -= records
    return parts


def table_topic_plan(name: str, settings: TopicSettings, *, append_only: bool = False) -> TopicPlan:
    """A table's topic: compacted, so that it holds the newest event of every key for ever. The topic of an append-only
    table retains everything, unless the brokers' owner changes that."""
    if append_only:
        return TopicPlan(
            name,
            settings.partitions,
            settings.replication_factor,
            {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "min.insync.replicas": str(settings.min_insync_replicas),
                "max.message.bytes": str(settings.max_message_bytes),
            },
        )
    return TopicPlan(
        name,
        settings.partitions,
        settings.replication_factor,
        {
            "cleanup.policy": "compact",
            "min.insync.replicas": str(settings.min_insync_replicas),
            "delete.retention.ms": str(settings.delete_retention_ms),
            "min.compaction.lag.ms": str(settings.min_compaction_lag_ms),
            "max.compaction.lag.ms": str(max(SEVEN_DAYS_MS, settings.min_compaction_lag_ms)),
            "segment.ms": str(_SEGMENT_MS),
            "max.message.bytes": str(settings.max_message_bytes),
        },
    )


def message_topic_plans(prefix: str, settings: TopicSettings) -> list[TopicPlan]:
    """The topic of logical messages: one partition, so that they stay in order."""
    plan = table_topic_plan(control_topic(prefix, MESSAGES), settings, append_only=True)
    return [replace(plan, partitions=1)]


def erasures_topic_plan(prefix: str, settings: TopicSettings) -> TopicPlan:
    """The topic of the topic settings that ``erase`` has changed temporarily, and when it had topics compacted."""
    return replace(_control_plan(prefix, STATE, settings), name=control_topic(prefix, ERASURES))


def view_topic_plans(prefix: str, topic: str, settings: TopicSettings) -> list[TopicPlan]:
    """The topic of a view's rows, and that of all views' steps. One partition each, so that steps are in one order. A
    reader that takes less than VIEW_COMPACTION_LAG_MS from the beginning to the end misses no row of that end."""
    return [
        ordered_topic_plan(topic, settings),
        replace(_control_plan(prefix, STATE, settings), name=control_topic(prefix, VIEWS)),
    ]


def ordered_topic_plan(topic: str, settings: TopicSettings, *, kept_ms: int = VIEW_COMPACTION_LAG_MS) -> TopicPlan:
    """A compacted topic with one partition, hence one order; it keeps each record at least so long."""
    plan = table_topic_plan(topic, settings)
    lag_ms = max(settings.min_compaction_lag_ms, kept_ms)
    lags = {
        "min.compaction.lag.ms": str(lag_ms),
        "max.compaction.lag.ms": str(max(SEVEN_DAYS_MS, lag_ms)),
    }
    return replace(plan, partitions=1, config={**plan.config, **lags})


def control_topic_plans(prefix: str, settings: TopicSettings) -> list[TopicPlan]:
    """The control topics and the dead-letter topic."""
    common = {
        "min.insync.replicas": str(settings.min_insync_replicas),
        "max.message.bytes": str(max(settings.max_message_bytes, CONTROL_RECORD_BYTES)),
    }
    compacted = common | {
        "cleanup.policy": "compact",
        "segment.bytes": str(_CONTROL_SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.1",
    }
    configs = {
        STATE: compacted,
        SCHEMA: compacted,
        PROGRESS: common
        | {
            "cleanup.policy": "delete",
            "retention.ms": str(_PROGRESS_RETENTION_MS),
            "segment.bytes": str(_CONTROL_SEGMENT_BYTES),
        },
        # One entry per sink and key; the newest rejection of a key is the one that matters.
        DEAD_LETTERS: common | {"cleanup.policy": "compact", "max.message.bytes": str(2 * settings.max_message_bytes)},
    }
    return [
        TopicPlan(control_topic(prefix, name), 1, settings.replication_factor, config)
        for name, config in configs.items()
    ]


def dead_letter_plan(prefix: str, settings: TopicSettings) -> TopicPlan:
    """The dead-letter topic, for creating it where no capture has."""
    return _control_plan(prefix, DEAD_LETTERS, settings)


def _control_plan(prefix: str, name: str, settings: TopicSettings) -> TopicPlan:
    topic = control_topic(prefix, name)
    return next(plan for plan in control_topic_plans(prefix, settings) if plan.name == topic)


class TopicAdmin:
    """An admin client with the few requests that Lockstep makes. Raises as ``new_client``. All methods raise
    Unavailable without an answer, and LockstepError if the brokers' certificate isn't trusted."""

    def __init__(self, client: Mapping[str, str | int]) -> None:
        self._client = {**client, **_CLIENT}
        self._refusals = Refusals()
        self._admin = self._new_admin()
        self._is_connected = False

    def partition_counts(self, topics: Collection[str], *, must_see: bool = False) -> dict[str, int]:
        """Each of these topics -> number of its partitions. A topic with a broker's error is absent.

        No other topic is requested: a cluster may have thousands, and this runs each second. A topic that our user may
        not describe is absent too, as if it didn't exist; with ``must_see``, for callers that rely on the absence, it
        raises LockstepError. Raises Unavailable.
        """
        counts = {}
        for topic, described in self._described(topics).items():
            if not isinstance(described, Unavailable):
                counts[topic] = len(described.partitions)
            elif must_see and _has_code(described, NOT_ALLOWED):
                raise LockstepError(
                    f"it isn't known whether topic {topic} exists: {reason(described.__cause__ or described)}",
                    hint=without_rights(["Describe"]),
                ) from described
        return counts

    def all_partition_counts(self) -> dict[str, int]:
        """``partition_counts`` for every topic that our user may describe. Raises Unavailable."""
        topics = self._metadata().topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def exists(self, topic: str) -> bool:
        """Raises as ``partition_counts`` with ``must_see``."""
        return topic in self.partition_counts([topic], must_see=True)

    def lacking_rights(self, topics: Collection[str], rights: Collection[str]) -> dict[str, list[str]]:
        """Which of these rights our user lacks on each of these topics; topics with all of them are absent. ``rights``
        are named as in the docs: ``Read``, ``DescribeConfigs``. Without the right to describe a topic, nothing else is
        known of it, not even whether it exists. A missing topic lacks nothing."""
        lacking = {}
        for topic, described in self._described(topics, with_rights=True).items():
            if not isinstance(described, Unavailable):
                granted = {_right(operation) for operation in described.authorized_operations or ()}
                if granted and (without := [right for right in rights if right not in granted]):
                    lacking[topic] = without
            elif _has_code(described, NOT_ALLOWED):
                lacking[topic] = ["Describe"]
            elif not _has_code(described, (KafkaError.UNKNOWN_TOPIC_OR_PART,)):
                raise described
        return lacking

    def why_not_created(self, plans: Sequence[TopicPlan]) -> dict[str, LockstepError]:
        """The topics that the brokers would refuse to create, with the reason, asked in the same groups as they would
        be created. Creates nothing."""
        refused = dict[str, LockstepError]()
        for several in in_requests(plans):
            refused |= self._not_created(several, is_trial=True)
        return refused

    def missing(self, plans: Sequence[TopicPlan]) -> list[TopicPlan]:
        existing = self.partition_counts([plan.name for plan in plans], must_see=True)
        return [plan for plan in plans if plan.name not in existing]

    def differences(self, plans: Sequence[TopicPlan]) -> list[Difference]:
        """How existing topics differ from the plans. Replication is left to the brokers' owner."""
        existing = self.partition_counts([plan.name for plan in plans])
        existing_plans = [plan for plan in plans if plan.name in existing]
        differences = [
            Difference(plan.name, PARTITIONS, str(existing[plan.name]), str(plan.partitions))
            for plan in existing_plans
            if existing[plan.name] != plan.partitions
        ]
        configs = self.configs([plan.name for plan in existing_plans])
        for plan in existing_plans:
            actual, planned = configs[plan.name], dict(plan.config)
            limit, wanted = record_limit(actual), record_limit(planned)
            if limit.size < wanted.size:
                planned.setdefault(limit.setting, str(wanted.size))
            differences += [
                Difference(plan.name, name, actual.get(name), value)
                for name, value in planned.items()
                if actual.get(name) != value
            ]
        return differences

    def outbox_plans(self, prefix: str, settings: TopicSettings) -> list[TopicPlan]:
        """The plans of the existing topics of outbox rows, which capture creates with the first row, as far as we may
        see their settings. Raises Unavailable."""
        shared = shared_outbox_topic(prefix)
        topics = [topic for topic in self.all_partition_counts() if is_outbox_topic(prefix, topic) or topic == shared]
        hidden = self.lacking_rights(topics, ["DescribeConfigs"])
        return [table_topic_plan(topic, settings, append_only=True) for topic in sorted({*topics} - hidden.keys())]

    def loses_commit_markers(self) -> bool:
        """Whether the brokers' version can lose a committed transaction (``COMMIT_MARKER_LOSS``). Brokers don't report
        their version to this client, but that version introduced a setting. Raises Unavailable if no broker answers."""
        brokers = self._entries(ResourceType.BROKER, [str(broker) for broker in self._metadata().brokers])
        return any(_SINCE_4_1 in entries for entries in brokers.values())

    def brokers(self) -> int:
        """The number of brokers. Raises Unavailable if none answers."""
        return len(self._metadata().brokers)

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of each of these topics, defaults included."""
        return {
            topic: {name: entry.value for name, entry in entries.items()}
            for topic, entries in self._entries(ResourceType.TOPIC, topics).items()
        }

    def _entries(self, kind: ResourceType, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = {}
        for start in range(0, len(names), _CONFIGS_AT_ONCE):
            resources = [ConfigResource(kind, name) for name in names[start : start + _CONFIGS_AT_ONCE]]
            futures = self._admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
            _settle(futures, None)
            entries |= {resource.name: self._result(future) for resource, future in futures.items()}
        return entries

    def setting(self, topic: str, name: str) -> str | None:
        """A topic's value of a setting. Raises Unavailable, and LockstepError if we may not read it."""
        return self._config_of(topic, f"Kafka doesn't show the settings of topic {topic}").get(name)

    def record_limit(self, topic: str) -> RecordLimit:
        """How large a record the topic accepts. Raises Unavailable, and LockstepError if we may not read it."""
        hidden = f"topic {topic} doesn't take so large a record, and Kafka doesn't show its limit"
        return record_limit(self._config_of(topic, hidden))

    def _config_of(self, topic: str, hidden: str) -> dict[str, str]:
        """A topic's settings. ``hidden`` is the error's message if we may not read them."""
        try:
            return self.configs([topic])[topic]
        except Unavailable as error:
            if not _has_code(error, NOT_ALLOWED):
                raise
            raise LockstepError(hidden, hint=without_rights(["DescribeConfigs"])) from error

    def own_config(self, topic: str, names: Collection[str]) -> dict[str, str | None]:
        """The values of these settings that this topic overrides; None where it has the brokers'."""
        entries = self._entries(ResourceType.TOPIC, [topic])[topic]
        is_own = {name: entries[name].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value for name in names}
        return {name: entries[name].value if is_own[name] else None for name in names}

    def change_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change these settings of a topic; None: back to the brokers'. Raises LockstepError if the brokers refuse."""
        entries = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        (future,) = self._admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S).values()
        try:
            self._result(future)
        except Unavailable as error:
            if not _has_code(error, _REFUSED_CHANGE):
                raise
            raise LockstepError(
                f"settings of topic {topic} can't be changed: {reason(error.__cause__ or error)}",
                hint=WITHOUT_RIGHT.format("AlterConfigs on the topic"),
            ) from error

    def create(self, plans: Sequence[TopicPlan]) -> None:
        """Create topics and wait until the brokers know them. Existing ones stay unchanged. Raises LockstepError if the
        brokers refuse one, Unavailable if they don't answer."""
        if not plans:
            return
        for several in in_requests(plans):
            for refused in self._not_created(several, is_trial=False).values():
                raise refused
        # The controller has them; a broker may learn of them a moment later, and the next request may go to any broker.
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while late := self._late(plans):
            if time.monotonic() > deadline:
                raise Unavailable(f"topic {late[0].name} was created, but the brokers don't know it yet")
            time.sleep(0.05)

    def _not_created(self, plans: Sequence[TopicPlan], *, is_trial: bool) -> dict[str, LockstepError]:
        """Request these topics. Returns the refused ones, with the reason. Raises Unavailable."""
        futures = self._admin.create_topics(
            [NewTopic(plan.name, plan.partitions, plan.replication_factor, config=dict(plan.config)) for plan in plans],
            operation_timeout=REQUEST_TIMEOUT_S,
            request_timeout=REQUEST_TIMEOUT_S,
            validate_only=is_trial,
        )
        _settle(futures, None)
        refused: dict[str, LockstepError] = {}
        for topic, future in futures.items():
            try:
                future.result(REQUEST_TIMEOUT_S)
            except TimeoutError as error:
                raise Unavailable(f"topic {topic} wasn't created in {REQUEST_TIMEOUT_S:.0f} s") from error
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if error.args[0].retriable() or error.args[0].code() in _UNANSWERED:
                    raise Unavailable(f"topic {topic} can't be created: {reason(error)}") from error
                refused[topic] = LockstepError(
                    f"topic {topic} can't be created: {reason(error)}", hint=_way_to_create(error.args[0].code())
                )
                refused[topic].__cause__ = error
        return refused

    def remove(self, topics: Sequence[str]) -> None:
        """Delete those of these topics that exist. Raises Unavailable, and LockstepError if it isn't allowed."""
        if not topics:
            return
        for topic, future in self._admin.delete_topics(list(topics), operation_timeout=REQUEST_TIMEOUT_S).items():
            try:
                self._result(future)
            except Unavailable as error:
                if _has_code(error, (KafkaError.UNKNOWN_TOPIC_OR_PART,)):
                    continue
                if _has_code(error, _REFUSED_CHANGE):
                    raise LockstepError(
                        f"topic {topic} can't be deleted: {reason(error.__cause__ or error)}",
                        hint="it takes the right Delete on the topic: docs/kafka.md has all rights",
                    ) from error
                raise

    def _late(self, plans: Sequence[TopicPlan]) -> list[TopicPlan]:
        """Those of these topics that some broker doesn't list yet. Raises Unavailable if one doesn't answer."""
        late = []
        brokers = self._metadata().brokers.values()
        try:
            for broker in brokers:
                host = str(broker.host)
                address = f"[{host}]:{broker.port}" if ":" in host else f"{host}:{broker.port}"
                of_one = {"bootstrap.servers": address, "enable.sparse.connections": True}
                admin = new_client(AdminClient, self._client | of_one)
                topics = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
                known = {name for name, topic in topics.items() if topic.error is None}
                late += [plan for plan in plans if plan.name not in known]
        except KafkaException as error:
            raise Unavailable(f"Kafka doesn't answer: {reason(error)}") from error
        return late

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Kafka's id of each topic; another id means that the topic was recreated."""
        return {topic: topic_id for topic, (topic_id, _) in self.identities(topics).items()}

    def identities(
        self, topics: Sequence[str], *, while_waiting: Callable[[], None] | None = None
    ) -> dict[str, TopicIdentity]:
        """Id and number of partitions of each of these topics; no other topic is requested."""
        identities = {}
        for topic, described in self._described(topics, while_waiting=while_waiting).items():
            if isinstance(described, Unavailable):
                raise described
            identities[topic] = TopicIdentity(str(described.topic_id), len(described.partitions))
        return identities

    def _described(
        self,
        topics: Collection[str],
        *,
        with_rights: bool = False,
        while_waiting: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """The brokers' answer about each of these topics, or their refusal. Raises Unavailable without an answer."""
        wanted = list(dict.fromkeys(topics))
        ask = partial(self._describe, wanted, with_rights, while_waiting)
        return self._patiently(ask, while_waiting=while_waiting) if wanted else {}

    def _describe(
        self, topics: list[str], with_rights: bool, while_waiting: Callable[[], None] | None, timeout_s: float
    ) -> dict[str, Any]:
        futures = self._admin.describe_topics(
            TopicCollection(topics), include_authorized_operations=with_rights, request_timeout=timeout_s
        )
        _settle(futures, while_waiting)
        described: dict[str, Any] = {}
        for topic, future in futures.items():
            try:
                described[topic] = self._result(future, while_waiting)
            except Unavailable as error:
                if not _is_of_broker(error):
                    raise
                described[topic] = error
        return described

    def _patiently(
        self,
        ask: Callable[[float], _Answer],
        *,
        passing: Collection[int] = _UNANSWERED,
        while_waiting: Callable[[], None] | None = None,
    ) -> _Answer:
        """The answer to ``ask``, which gets the seconds to wait. After one of the ``passing`` errors another client
        asks, and waits longer: the first one may be waiting for a dead broker. Raises what ``ask`` raises, and Refused
        at once."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        attempt_s = _FIRST_ATTEMPT_S
        while True:
            try:
                return ask(attempt_s)
            except Unavailable as error:
                self._replace_client()
                if not (isinstance(error, _NoOffset) or _has_code(error, passing)) or time.monotonic() > deadline:
                    raise
            attempt_s = min(2 * attempt_s, REQUEST_TIMEOUT_S)
            if while_waiting is not None:
                while_waiting()
            time.sleep(_AGAIN_S)

    def require(self, topics: Sequence[str]) -> None:
        """Raises LockstepError for the first of these topics that doesn't exist or that we may not read."""
        for topic, described in self._described(topics).items():
            if not isinstance(described, Unavailable):
                continue
            if not _has_code(described, _UNREADABLE):
                raise described
            raise LockstepError(
                f"topic {topic} can't be read: {reason(described.__cause__ or described)}",
                hint="`lockstep capture` creates it: it has never run under this pipeline.name with this Kafka,"
                " or the topic was deleted"
                if _has_code(described, (KafkaError.UNKNOWN_TOPIC_OR_PART,))
                else "docs/kafka.md has the rights that are needed",
            ) from described

    def end_offsets(
        self, partitions: Sequence[tuple[str, int]], *, while_waiting: Callable[[], None] | None = None
    ) -> dict[tuple[str, int], int]:
        """Where each (topic, partition) ends, open transactions included: an upper bound of all that was sent so far.
        ``while_waiting`` is called now and then while the brokers take their time."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()), while_waiting)

    def committed_ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Where a read-committed reader of each (topic, partition) gets to now: before the first open transaction."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()), isolation=IsolationLevel.READ_COMMITTED)

    def begin_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Where each (topic, partition) begins: 0 unless records were deleted. Compaction doesn't move it."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def offsets_at(self, partitions: Sequence[tuple[str, int]], timestamp_ms: int) -> dict[tuple[str, int], int]:
        """The first record of each (topic, partition) that was written at this time or later, else its committed end.
        Records of an open transaction don't count: starting there would skip more than a reader can get to."""
        # The end is read first: read afterwards, it would be behind records that came in between.
        ends = self.committed_ends(partitions)
        offsets = self._offsets(dict.fromkeys(partitions, OffsetSpec.for_timestamp(timestamp_ms)), may_lack=True)
        return {at: min(offset, ends[at]) if offset >= 0 else ends[at] for at, offset in offsets.items()}

    def _offsets(
        self,
        specs: Mapping[tuple[str, int], OffsetSpec],
        while_waiting: Callable[[], None] | None = None,
        *,
        may_lack: bool = False,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], int]:
        """Ask, and repeat while a partition has no leader: after a topic's creation and while brokers change places.

        Every topic has a beginning and an end, but a broker that has just come back may answer -1 without an error, and
        so does the client for a dead leader. Taken for an end, that would be before all events. With ``may_lack``, -1
        is an answer.
        """

        def ask(timeout_s: float) -> dict[tuple[str, int], int]:
            self._connect([topic for topic, _ in specs], timeout_s, while_waiting)
            futures = self._admin.list_offsets(
                {TopicPartition(topic, partition): spec for (topic, partition), spec in specs.items()},
                isolation_level=isolation,
                request_timeout=timeout_s,
            )
            _settle(futures, while_waiting)
            offsets = {
                (at.topic, at.partition): int(self._result(future, while_waiting).offset)
                for at, future in futures.items()
            }
            for (topic, partition), offset in offsets.items():
                if offset < 0 and not (may_lack and offset == _NO_SUCH_OFFSET):
                    raise _NoOffset(f"Kafka doesn't say where topic {topic}, partition {partition}, begins or ends")
            return offsets

        return self._patiently(ask, passing=_LEADERLESS + _UNANSWERED, while_waiting=while_waiting)

    def _connect(self, topics: Sequence[str], timeout_s: float, while_waiting: Callable[[], None] | None) -> None:
        """Ask for the topics first: a client whose first request is for offsets may wait for its own timers, one to
        three seconds in one case of fifty. Any broker can answer this, and the answer doesn't matter. Raises
        Unavailable if none does."""
        if not self._is_connected:
            self._describe(list(dict.fromkeys(topics)), False, while_waiting, timeout_s)
            self._is_connected = True

    def _replace_client(self) -> None:
        """A client keeps what it once knew of leaders and controller. It may be refused for ever, or wait for a dead
        broker."""
        self._admin = self._new_admin()
        self._is_connected = False

    def _new_admin(self) -> AdminClient:
        return new_client(AdminClient, {**self._client, "error_cb": self._refusals})

    def _metadata(self) -> ClusterMetadata:
        """Topics and brokers. Raises as ``_unanswered``."""
        try:
            return self._admin.list_topics(timeout=_FIRST_ATTEMPT_S)
        except KafkaException as error:
            if self._refused() is not None or error.args[0].code() not in _UNANSWERED:
                raise self._unanswered(error) from error
        try:
            return self._admin.list_topics(timeout=REQUEST_TIMEOUT_S - _FIRST_ATTEMPT_S)
        except KafkaException as error:
            raise self._unanswered(error) from error

    def _refused(self) -> LockstepError | None:
        self._admin.poll(0)
        return self._refusals.error()

    def _unanswered(self, error: KafkaException) -> LockstepError:
        """The error for a request without an answer: the refusal heard since the last one, if any."""
        refused = self._refused()
        self._refusals.forget()
        return refused or Unavailable(f"Kafka doesn't answer: {reason(error)}")

    def _result(self, future: Any, while_waiting: Callable[[], None] | None = None) -> Any:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                return future.result(_WAIT_SLICE_S)
            except TimeoutError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(f"Kafka doesn't answer within {REQUEST_TIMEOUT_S:.0f} s") from error
                if while_waiting is not None:
                    while_waiting()
            except KafkaException as error:
                raise self._unanswered(error) from error


def _way_to_create(code: int) -> str:
    """What helps if the brokers refuse to create a topic with this code."""
    if code == KafkaError.TOPIC_EXCEPTION:
        return (
            "to Kafka '.' and '_' are the same in a name, so the tables a_b.c and a.b_c can't be in one pipeline:"
            " capture one of them with a pipeline of another name"
        )
    if code in NOT_ALLOWED:
        return WITHOUT_RIGHT.format("Create")
    return "check [kafka.topics] in lockstep.toml: replication_factor can't exceed the number of brokers"
