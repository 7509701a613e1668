"""``lockstep doctor``: every check of every part, in the order in which they make sense."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

import psycopg

from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, Severity, ok
from cdc.model.table import Table, TableName
from cdc.postgres.connection import connect
from cdc.postgres.ddl_messages import are_sent
from cdc.postgres.preflight import check_source
from cdc.postgres.preflight.endpoint import endpoint_findings, refusal
from cdc.protocol.compiled_code import CompiledCode
from cdc.stream.row_encoding import chosen_row_encoding
from lockstep.config import Config
from lockstep.doctor.directories import directory_findings
from lockstep.doctor.encryption import encryption_findings, source_encryption
from lockstep.doctor.guarded import guarded, unanswered, was_reached
from lockstep.doctor.java import java_findings
from lockstep.doctor.kafka import check_kafka
from lockstep.doctor.message_rights import message_findings
from lockstep.doctor.patterns import choose_tables
from lockstep.doctor.position import check_position, publication_subject
from lockstep.doctor.sinks import (
    append_only_findings,
    check_histories,
    check_sink,
    check_view_topics,
    section_of,
    source_shapes,
    uncaptured_findings,
)
from lockstep.extension import Reached, installed
from migrations.source import ddl_messages_sql, publication_sql
from sinks.sink_kernel import chosen_sink_kernel


def examine(config: Config) -> list[Finding]:
    """All findings of all parts; a part that can't be reached is a finding, too. Changes nothing."""
    chosen = choose_tables(config)
    config = chosen.config
    source = guarded("source", partial(_source, waiting=chosen.waiting), config)
    kafka = (
        guarded("Kafka", check_kafka, config)
        if chosen.silent_kafka is None
        else [unanswered("Kafka", chosen.silent_kafka)]
    )
    has_source, has_kafka = was_reached("source", source), was_reached("Kafka", kafka)
    position = guarded("position", check_position, config) if has_source and has_kafka else []
    publication = publication_subject(config.publication)
    if any(finding.subject == publication for finding in position):
        # It existed once; capture creates it only before its first start.
        source = [finding for finding in source if finding.subject != publication]
    findings = [*chosen.findings, *source, *kafka, *position]
    shapes: dict[TableName, Table] = {}
    if config.sinks and has_source:
        try:
            shapes = source_shapes(config)
        except (LockstepError, psycopg.Error) as raised:
            findings.append(unanswered("source", raised))
    answering: list[str] = []
    for name in config.sinks:
        of_sink, answers = _sink(config, name, shapes, has_kafka=has_kafka)
        findings += of_sink
        if answers:
            answering.append(name)
    reached = Reached(has_kafka, answering)
    for each in installed():
        findings += guarded(each.name, partial(each.doctor, reached), config)
    findings += append_only_findings(config)
    if has_source:  # else it may not be known what is captured
        findings += uncaptured_findings(config)
    if has_kafka:
        findings += guarded("histories", check_histories, config)
    return [*findings, *_of_this_machine(config), *guarded("rows", _rows, config)]


def _sink(
    config: Config, name: str, shapes: Mapping[TableName, Table], *, has_kafka: bool
) -> tuple[list[Finding], bool]:
    """The findings about a sink, and whether its store answers."""
    way = f"check the address in {section_of(name, config.sinks[name])}, and that its server runs"
    findings = guarded(f"sink {name}", partial(check_sink, name=name, shapes=shapes), config, way=way)
    answers = was_reached(f"sink {name}", findings)
    if config.sinks[name].topic and answers and has_kafka:
        findings += guarded(f"view {name}", partial(check_view_topics, name=name), config)
    return findings, answers


def _of_this_machine(config: Config) -> list[Finding]:
    findings: list[Finding] = []
    if config.stores:
        findings += java_findings(os.environ)
    findings += directory_findings(config)
    return [*findings, *encryption_findings(config)]


def is_healthy(findings: Sequence[Finding]) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in findings)


def _source(config: Config, *, waiting: Sequence[TableName]) -> list[Finding]:
    """``waiting`` are tables that match a pattern, and lack something before they can be captured."""
    try:
        connection = connect(config.source, application="lockstep doctor")
    except LockstepError as refused:
        return [refusal(refused.message, config.source, subject="source")]
    with connection:
        connection.execute("set default_transaction_read_only = on")
        findings = check_source(
            connection,
            tables=[*config.source.published_names, *waiting],
            publication=config.publication,
            slot=config.slot,
            create_publication=publication_sql(
                config.publication, config.source.published_names, version=connection.info.server_version
            ),
            keys=config.source.keys,
            append_only=config.source.append_only,
        )
        told = ddl_finding(are_sent(connection), heartbeat_interval_s=config.source.heartbeat_interval_s)
        return [
            *findings,
            told,
            *message_findings(connection),
            *endpoint_findings(connection, config.source),
            *source_encryption(connection),
        ]


def _rows(config: Config) -> list[Finding]:
    encoded = rows_finding(f"rows are encoded by {chosen_row_encoding()}", chosen_row_encoding())
    if not config.sinks:
        return [encoded]
    return [encoded, rows_finding(f"rows are written to sinks by {chosen_sink_kernel()}", chosen_sink_kernel())]


def rows_finding(what: str, code: CompiledCode) -> Finding:
    """Which code takes ordinary rows. Both do the same; one is slower."""
    if code.module is not None:
        return ok("rows", what)
    return Finding(
        Severity.OK,
        "rows",
        what,
        "compiled code takes a tenth of the time for ordinary rows",
        "install a C compiler and Python's headers, then run `make setup`; or leave it as it is",
    )


def ddl_finding(are_sent: bool, *, heartbeat_interval_s: float) -> Finding:
    """Whether the source reports by itself that something was altered, and how to make it."""
    if are_sent:
        return ok("ddl", "an event trigger reports each change of tables, types and publications to capture")
    return Finding(
        Severity.OK,
        "ddl",
        f"capture looks every {heartbeat_interval_s:g} s for changes that the stream doesn't show",
        "with an event trigger, it looks at the place of the stream where something was altered; optional, and a"
        " superuser's: migrations/source/0004_ddl_messages.sql makes one",
        ddl_messages_sql(),
    )
