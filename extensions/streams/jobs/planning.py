"""A stream query's plan for Spark, or why it can't be maintained. It is made from SQL or from a pattern."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.model.table import Table
from extensions.streams.jobs.pattern_frames import planned_pattern
from extensions.streams.jobs.sql_plans import QueryRefused, Sources, planned_sql, result_table
from extensions.streams.settings import StreamQuerySettings, StreamSettings
from jobs.spark.jvm import questions
from jobs.spark.source import clock_frame

_RECORD: Final = {"key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint"}


def planned(
    spark: SparkSession, name: str, query: StreamQuerySettings, sources: Sources
) -> tuple[DataFrame, Table, list[str]]:
    """The query over these streams: its streaming frame, its result as a table, and the streams that it reads.
    ``spark`` must be a session of this query's own: the streams are views in it. The frame runs in a session with
    ``sql_plans.UNCHECKED``. Raises QueryRefused, and Unavailable if the JVM has gone.
    """
    with questions():
        if query.pattern is not None:
            frame, streams, said_in = planned_pattern(query.pattern, sources), sorted(query.pattern.streams), "pattern"
        else:
            assert query.sql is not None
            (frame, streams), said_in = planned_sql(spark, query.sql, sources), "sql"
        return frame, result_table(name, frame, key=query.key_columns, said_in=said_in), streams


def examined(
    spark: SparkSession, name: str, query: StreamQuerySettings, streams: Mapping[str, StreamSettings]
) -> tuple[list[str], list[str]]:
    """The problems of a query, a sentence each; if there are none, the streams that it reads. Needs no Kafka."""
    records = clock_frame(spark).select(
        *[f.lit(None).cast(kind).alias(column) for column, kind in _RECORD.items()],
        f.col("timestamp"),
    )
    try:
        _, _, read = planned(spark, name, query, {each: (records, settings) for each, settings in streams.items()})
    except QueryRefused as refused:
        return list(refused.problems), []
    return [], read
