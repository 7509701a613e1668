"""The streams and queries of a whole configuration, and their conflicts with the rest of it. Pure."""

from collections.abc import Iterator
from typing import Final

from cdc.model.table import TableName
from extensions.streams.sections import StreamQueries, StreamQuerySection, Streams
from extensions.streams.settings import StreamSettings, name_problems
from extensions.streams.topic_names import is_stream_query_topic
from lockstep.config import Config

_MEANING: Final = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.session.timeZone")
"""Settings of Spark that would change what a query means."""


def streams_of(config: Config) -> dict[str, StreamSettings]:
    return config.section(Streams).root


def queries_of(config: Config) -> dict[str, StreamQuerySection]:
    return config.section(StreamQueries).root


def problems(config: Config) -> Iterator[str]:
    """Conflicts of streams and queries with each other and with what is captured."""
    streams, queries = streams_of(config), queries_of(config)
    yield from name_problems("streams", list(streams))
    yield from name_problems("stream_queries", list(queries))
    for name, query in queries.items():
        if name in config.sinks:
            section = "views" if config.sinks[name].view else "sinks"
            yield f"stream_queries.{name} and {section}.{name} have one name: give the query another one"
        if query.pattern is not None:
            yield from (f"stream_queries.{name}.pattern.{problem}" for problem in query.pattern.problems(streams))
    taken = [name for name in _MEANING if name in config.spark.conf]
    if taken and queries:
        yield f"spark.conf: {', '.join(taken)}: the results of stream queries would change with it, so it is fixed"
    topics: dict[str, str] = {}
    for name, stream in streams.items():
        other = topics.setdefault(stream.topic, name)
        if other != name:
            yield f"streams.{other} and streams.{name} have one topic: remove one of them"
        if is_stream_query_topic(config.pipeline.name, stream.topic):
            yield (
                f"streams.{name}.topic is written by this pipeline's queries: a query over it could read its own"
                " result without end"
            )
    named = [(f"streams.{name}", stream.rows_of) for name, stream in streams.items()]
    named += [(f"stream_queries.{name}", query.rows_of) for name, query in queries.items()]
    for where, rows_of in named:
        for table in rows_of:
            if not config.source.may_have(TableName.parse(table)):
                yield f"{where}.rows_of names a table that isn't captured: {table}"
