"""The tables that a configuration's patterns stand for, and the captured tables' shapes at the source."""

import contextlib
from dataclasses import replace
from typing import Any

import psycopg

from cdc.kafka.control_topics import read_state, read_tables
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import SCHEMA, STATE, control_topic
from cdc.model.errors import ConfigurationError
from cdc.model.table import Table, TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect
from cdc.protocol.control_records import CaptureState, selection_of
from cdc.stream.table_selection import is_first_start, recorded_tables, select_tables
from jobs.query.captured_tables import Captured


def parse_table(text: str) -> TableName:
    """The table that a command names. Raises ConfigurationError for a text that is no table's name."""
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def recorded_state(pipeline: Pipeline) -> CaptureState | None:
    """What capture has recorded; None before its first start. Raises Unavailable."""
    client = pipeline.kafka.client()
    if not TopicAdmin(client).exists(control_topic(pipeline.name, STATE)):
        return None
    return read_state(client, pipeline.name, pipeline.slot)


def recorded_shapes(pipeline: Pipeline) -> dict[TableName, Table]:
    """The newest shape of every table of which anything was ever published. Raises Unavailable."""
    client = pipeline.kafka.client()
    if not TopicAdmin(client).exists(control_topic(pipeline.name, SCHEMA)):
        return {}
    return read_tables(client, pipeline.name)


def resolved_pipeline(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the tables that are captured.

    Kafka knows them once capture has begun, so readers of topics don't need the source. Before that, the source is
    asked which tables capture would take. Raises Unavailable, LockstepError for what a server refuses, and
    ConfigurationError for a pattern that matches nothing.
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


def followed_pipeline(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the tables that are captured now. Capture may run with another configuration. Raises as
    ``resolved_pipeline``."""
    state = recorded_state(pipeline)
    if state is None or is_first_start(state) or state.captured is None:
        return resolved_pipeline(pipeline)
    return replace(pipeline, source=pipeline.source.only(state.captured))


def captured_now(pipeline: Pipeline) -> Captured:
    """Which tables are captured now, by Kafka, whatever this process's own settings say.

    Capture may have been started with another configuration since. Before capture has begun, they are the tables that
    this process found at its start. Raises Unavailable, and LockstepError for a state of another version.
    """
    source, state = pipeline.source, recorded_state(pipeline)
    if state is None or is_first_start(state):
        return Captured(source.keyed_names, source.append_only_names)
    captured, append_only = recorded_tables(state), set(state.append_only)
    return Captured(
        [name for name in captured if name not in append_only],
        state.append_only,
        selection_of(state.captured),
        join_singly=not state.is_first_copy,
    )


def captured_shapes(connection: psycopg.Connection[Any], pipeline: Pipeline) -> dict[TableName, Table]:
    """The captured tables as they are at the source. Tables that don't exist are left out."""
    is_published = connection.execute(
        "select 1 from pg_publication where pubname = %s", (pipeline.publication,)
    ).fetchone()
    publication = pipeline.publication if is_published else None
    return load_tables(connection, pipeline.source.table_names, publication, pipeline.source.keys)
