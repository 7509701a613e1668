"""The plans of configured stream queries."""

from extensions.streams.configured import queries_of, streams_of
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.rebuild import begin_again
from jobs.settings import SparkSettings
from lockstep.config import Config


def stream_query_plan(
    config: Config, name: str, *, spark: SparkSettings | None = None, once: bool = False
) -> StreamQueryPlan:
    """The plan of this stream query's job. Raises ConfigurationError when there is no query of this name."""
    queries = queries_of(config)
    if name not in queries:
        raise config.not_among(queries, [name], "stream query", "stream queries")
    section = queries[name]
    return StreamQueryPlan(
        name,
        section.query,
        section.sink,
        streams_of(config),
        config.pipeline.name,
        config.kafka,
        spark or config.spark,
        once,
    )


def stream_query_plans(config: Config) -> list[StreamQueryPlan]:
    return [stream_query_plan(config, name) for name in queries_of(config)]


def rebuild_stream_query(config: Config, name: str) -> int:
    """Begin to build a query's result again. Returns the build's number. Raises as ``begin_again``."""
    return begin_again(stream_query_plan(config, name))
