"""Which tables the patterns of a configuration stand for: as capture has recorded it, else as it would begin."""

import contextlib

from cdc.kafka.control_topics import read_state, read_tables
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import SCHEMA, STATE, control_topic
from cdc.model.table import Table, TableName
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect
from cdc.protocol.control_records import CaptureState
from cdc.stream.table_selection import is_first_start, recorded_tables, select_tables


def recorded_state(pipeline: Pipeline) -> CaptureState | None:
    """What capture has recorded; None where it never began. Raises Unavailable."""
    client = pipeline.kafka.client()
    if control_topic(pipeline.name, STATE) not in TopicAdmin(client).partition_counts():
        return None
    return read_state(client, pipeline.name, pipeline.slot)


def recorded_shapes(pipeline: Pipeline) -> dict[TableName, Table]:
    """The newest shape of every table of which anything was ever published. Raises Unavailable."""
    client = pipeline.kafka.client()
    if control_topic(pipeline.name, SCHEMA) not in TopicAdmin(client).partition_counts():
        return {}
    return read_tables(client, pipeline.name)


def resolved_pipeline(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the tables that are captured.

    Kafka says which they are, so that no reader of topics needs the source. Before capture has begun the source is
    asked which it would take. Raises Unavailable, LockstepError for what a server refuses, and ConfigurationError for
    a pattern that matches nothing.
    """
    source = pipeline.source
    if source.is_resolved:
        return pipeline
    state = recorded_state(pipeline)
    if state is not None and not is_first_start(state):
        return pipeline.capturing(recorded_tables(state))
    with contextlib.closing(connect(source, application="lockstep")) as sql:
        selection = select_tables(sql, pipeline, state, {})
    selection.require_any(source)
    return pipeline.capturing(selection.taken_in)
