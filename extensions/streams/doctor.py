"""Checks that stream queries can run, by asking Spark as their jobs do at the start, and that their topics exist."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from cdc.kafka.settings import OAUTHBEARER, KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, dead_letter_plan
from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, Severity, error, ok, warning
from cdc.webhook import WebhookSettings
from extensions.streams.configured import queries_of, streams_of
from extensions.streams.jobs.java_tokens import ALLOWED_URLS
from extensions.streams.queries import stream_query_plan
from extensions.streams.settings import row_webhook
from extensions.streams.spark_sql import SparkSql
from jobs.generations.record import Phase, list_generations
from jobs.settings import SparkSettings
from lockstep.config import Config
from lockstep.doctor.encryption import WHY
from lockstep.doctor.guarded import guarded, was_reached
from lockstep.doctor.webhooks import webhook_encryption, webhook_findings
from lockstep.doctor.written_topics import JOB_STOPS, written_topics
from lockstep.extension import Reached

_SIDE_RIGHTS: Final = ("Describe", "DescribeConfigs", "Read", "Write")


def check_streams(reached: Reached, config: Config) -> Iterator[Finding]:
    """All findings of streams and queries. A store that can't be reached is a finding too."""
    read: dict[str, list[str]] = {}
    queries, streams = queries_of(config), streams_of(config)
    with ExitStack() as closing:
        sql = SparkSql(config.spark, closing)
        for name, settings in queries.items():
            check = partial(check_stream_query, name=name, sql=sql, read=read)
            way = f"check the address of the sink that [stream_queries.{name}] names, and that its server runs"
            subject = f"stream query {name}"
            found = guarded(subject, check, config, way=way)
            yield from found
            if settings.webhook is not None:
                yield from row_webhook_findings(name, settings.webhook)
            if was_reached(subject, found) and reached.kafka:
                yield from guarded(subject, partial(check_stream_query_topics, name=name), config)
    yield from unread_streams(streams, queries, read)
    yield from state_findings(config.spark, queries)
    if streams and reached.kafka:
        yield from guarded("streams", check_stream_topics, config)
    yield from token_findings(config.kafka, config.spark, queries)


def token_findings(kafka: KafkaSettings, spark: SparkSettings, queries: Collection[str]) -> list[Finding]:
    """Executors on other machines read with Java's Kafka client, which needs permission to fetch tokens there. Pure."""
    if kafka.sasl_mechanism != OAUTHBEARER or spark.is_local:
        return []
    return [
        warning(
            f"stream query {name}",
            "its executors read by Java's client of Kafka, which gets tokens only from addresses that its JVM allows",
            "else its job would wait for Kafka for ever",
            f"set spark.executor.extraJavaOptions in spark-defaults.conf to -D{ALLOWED_URLS}= and the address of"
            " sasl.oauthbearer.token.endpoint.url",
        )
        for name in queries
    ]


def check_stream_query(config: Config, *, name: str, sql: SparkSql, read: dict[str, list[str]]) -> list[Finding]:
    """Whether Spark accepts the query and its store answers. Raises LockstepError when the store doesn't. If all is
    well, ``read`` gets the streams that the query reads.
    """
    subject, plan = f"stream query {name}", stream_query_plan(config, name)
    opened = plan.opened(1)
    try:
        plan.builds(opened)
    except LockstepError as foreign:
        return [error(subject, foreign.message, JOB_STOPS, foreign.hint or "")]
    finally:
        opened.sink.close()
    problems, streams = sql.examine(plan)
    if not problems:
        read[name] = streams
    remedy = f"mend [stream_queries.{name}]; docs/stream-queries.md says what a query may be"
    return [error(subject, problem, JOB_STOPS, remedy) for problem in problems] or [
        ok(subject, "its store answers, and Spark takes the query")
    ]


def check_stream_query_topics(config: Config, *, name: str) -> list[Finding]:
    """Whether a query's job may write or create its topics. Raises LockstepError if the store or Kafka is away."""
    plan, cluster = stream_query_plan(config, name), TopicAdmin(config.kafka.client())
    subject, side = f"stream query {name}", plan.side_topic
    written = partial(written_topics, cluster, subject, bootstrap_servers=config.kafka.bootstrap_servers)
    findings = written({side.name: side}, named=(), rights=_SIDE_RIGHTS)
    if not plan.query.has_topic:
        return findings
    opened = plan.opened(1)
    try:
        numbers = [each.number for each in list_generations(opened) if each.phase is not Phase.RETIRED] or [1]
    finally:
        opened.sink.close()
    plans = {topic.name: topic for number in numbers if (topic := plan.result_topic(number)) is not None}
    findings += written(plans, named=plans)
    if plan.query.webhook is not None:  # rows that the webhook refuses are stored there
        letters = dead_letter_plan(config.pipeline.name, config.kafka.topics)
        plans, kind = {letters.name: letters}, "the dead-letter topic"
        findings += written(plans, named=(), rights=_SIDE_RIGHTS, kind=kind)
    return findings


def row_webhook_findings(query: str, settings: WebhookSettings) -> list[Finding]:
    """What prevents rows from being posted, and whether others can read them on the way."""
    subject, webhook = f"stream query {query}", row_webhook(query, settings)
    why = "its rows wait on their topic, and aren't posted"
    return [*webhook_findings(subject, webhook, why=why), *webhook_encryption(subject, webhook, why=WHY)]


def state_findings(spark: SparkSettings, queries: Collection[str]) -> list[Finding]:
    """A warning if each machine of a cluster would store the state of stream queries on its own disk. Pure."""
    scheme, separator, _ = spark.checkpoint_directory.partition(":")
    if not queries or spark.is_local or (separator and scheme != "file"):
        return []
    return [
        Finding(
            Severity.WARNING,
            "stream queries",
            f"spark.checkpoint_directory is the path {spark.checkpoint_directory!r}, and this Spark is a cluster",
            "executors write there what stream queries keep, and it is in pieces where they don't share that path",
            "set spark.checkpoint_directory to a URL as s3a:// or hdfs://, unless the path is mounted everywhere",
        )
    ]


def unread_streams(streams: Collection[str], queries: Collection[str], read: Mapping[str, list[str]]) -> list[Finding]:
    """Streams that no query reads, if it is known what every query reads. Pure."""
    if not set(queries) <= read.keys():
        return []
    used = {stream for names in read.values() for stream in names}
    return [
        Finding(
            Severity.WARNING,
            f"stream {name}",
            "no stream query reads it",
            "its topic isn't read, and nothing comes of its events",
            f"remove [streams.{name}], or name it in a query's from",
        )
        for name in streams
        if name not in used
    ]


def check_stream_topics(config: Config) -> list[Finding]:
    """Whether the topics of streams exist. Raises Unavailable when Kafka doesn't answer."""
    topics = {stream.topic: name for name, stream in streams_of(config).items()}
    counts = TopicAdmin(config.kafka.client()).partition_counts(topics, must_see=True)
    return [
        ok(f"stream {name}", f"topic {topic} has {counts[topic]} partitions")
        if topic in counts
        else error(
            f"stream {name}",
            f"topic {topic} doesn't exist",
            "queries over it wait for it",
            f"create it, or mend streams.{name}.topic",
        )
        for topic, name in topics.items()
    ]
