"""Whether capture can continue: the slot in the source against the positions that Kafka holds."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdc.kafka.control_topics import StoredRecord, read_compacted_of_others, read_compacted_topics
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import ForeignRecord, LockstepError
from cdc.model.finding import Finding, error, ok, warning
from cdc.model.lsn import format_lsn
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationConnection, SystemIdentity
from cdc.postgres.slot import Slot, find_slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.stream.source_checks import RECOVER, system_differences
from lockstep.config import Config
from migrations.source import publication_sql
from snapshot.recovery import is_lost

_AFTER_A_GAP: Final = (
    "copies of the tables bring their rows up to date; what a row was in between, and rows of append-only tables, of"
    " the outbox and messages from in between are missing"
)


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The slot that is configured, as the source has it. ``others`` are the names of the source's other slots."""

    name: str
    slot: Slot | None
    others: frozenset[str]
    identity: SystemIdentity
    publication: str


def check_position(config: Config) -> list[Finding]:
    """Whether slot and state fit together. Raises LockstepError when Kafka or the source doesn't answer."""
    # The slot comes first: a running capture moves it up to its state, never beyond.
    with connect(config.source, application="lockstep doctor") as connection:
        connection.execute("set default_transaction_read_only = on")
        slot = find_slot(connection, config.slot)
        slots = connection.execute(
            "select slot_name from pg_replication_slots where slot_name <> %s and database = current_database()",
            (config.slot,),
        ).fetchall()
        published = connection.execute(
            "select 1 from pg_publication where pubname = %s", (config.publication,)
        ).fetchone()
        version = connection.info.server_version
    client = config.kafka.client()
    own = config.pipeline.name
    suffix = control_topic("", STATE)
    cluster = TopicAdmin(client)
    own_listed = cluster.partition_counts([control_topic(own, STATE)], must_see=True)
    states = own_states(read_compacted_topics(client, list(own_listed)).get(control_topic(own, STATE), {}), config.slot)
    foreign = [topic for topic in cluster.all_partition_counts() if topic.endswith(suffix) and topic not in own_listed]
    records, unread = read_compacted_of_others(client, foreign)
    others = {topic.removesuffix(suffix): states_of_others(values) for topic, values in records.items()}
    try:
        # After the states: the WAL only grows, and a running capture goes on to publish.
        with ReplicationConnection(config.source) as replication:
            identity = replication.identify_system()
    except LockstepError:
        return []  # The source's checks report it.
    facts = SlotFacts(config.slot, slot, frozenset(row[0] for row in slots), identity, config.publication)
    findings = position_findings(facts, states) + shared_slot_findings(facts, own, others)
    findings += unread_pipeline_findings(facts.name, {topic.removesuffix(suffix): why for topic, why in unread.items()})
    state = states.get(config.slot)
    if published is None and state is not None and state.publication == config.publication:
        findings += dropped_publication_findings(config, state, version)
    return findings


def position_findings(facts: SlotFacts, states: Mapping[str, CaptureState]) -> list[Finding]:
    """Whether capture can continue from the states that Kafka holds of the pipeline, by slot."""
    subject = f"slot {facts.name}"
    state = states.get(facts.name)
    drop = f"select pg_drop_replication_slot('{facts.name}');"
    if state is None:
        findings = [
            warning(
                f"slot {other}",
                f"Kafka's state is of this slot, the configuration names {facts.name}",
                "with another slot everything is copied again, and the old one holds WAL back for ever",
                f"set source.slot = \"{other}\", or drop it: select pg_drop_replication_slot('{other}');",
            )
            for other in sorted(facts.others & states.keys())
        ]
        if facts.slot is not None:
            findings.append(
                error(
                    subject,
                    "exists, but Kafka holds no state of this pipeline for it",
                    "it isn't known what was published, and who else reads it",
                    f"{drop}  -- if nobody else needs it; else set source.slot to another name",
                )
            )
        return findings
    differences = system_differences(state, facts.identity, facts.publication)
    if differences:
        return [
            error(
                "source",
                f"isn't the one that was published from: {'; '.join(differences)}",
                "after a restore or a promotion published changes may not exist any more",
                f"correct source.dsn if it leads to another server; else {RECOVER}",
            )
        ]
    is_being_made = state.phase in (SnapshotPhase.CREATING, SnapshotPhase.RECOVERING)
    if facts.slot is None and not is_being_made:
        return [
            error(
                subject,
                f"is gone; {format_lsn(state.end_lsn)} was published last",
                "changes after that can't be read any more" if state.open_gap is None else str(state.open_gap),
                RECOVER,
            )
        ]
    confirmed = None if facts.slot is None or is_being_made else facts.slot.confirmed
    if confirmed is not None and state.end_lsn < confirmed:
        return [
            error(
                subject,
                f"is at {format_lsn(confirmed)}, but only {format_lsn(state.end_lsn)} was published",
                "what lies between is lost to this slot: somebody else read or moved it, or Kafka lost a transaction",
                RECOVER,
            )
        ]
    what = "is being created" if is_being_made else f"published up to {format_lsn(state.end_lsn)}"
    gaps = state.gaps_now(is_slot_lost=is_lost(facts.slot))
    return [ok(subject, what), *(ok("gap", str(gap), _AFTER_A_GAP) for gap in gaps)]


def dropped_publication_findings(config: Config, state: CaptureState, version: int) -> list[Finding]:
    """A publication that isn't there, though capture has begun with it. ``version`` is the server's."""
    if state.phase in (SnapshotPhase.CREATING, SnapshotPhase.RECOVERING):
        return []  # whoever makes the slot makes the publication too
    create = publication_sql(config.publication, config.source.published_names, version=version)
    return [
        error(
            publication_subject(config.publication),
            "is gone, and capture has begun with it: somebody dropped it",
            "capture stops where the WAL has a change, and nothing is skipped; PostgreSQL 17 and earlier can't decode"
            " what was committed while it was gone",
            f"{create}\n-- then start capture; where it stops at the same place again, run `lockstep recover`",
        )
    ]


def publication_subject(name: str) -> str:
    """By which findings about the publication are told apart."""
    return f"publication {name}"


def shared_slot_findings(
    facts: SlotFacts, own: str, pipelines: Mapping[str, Mapping[str, CaptureState]]
) -> list[Finding]:
    """Other pipelines that read the same slot of the same server: each would miss what the other confirms."""
    return [
        error(
            f"slot {facts.name}",
            f"belongs to the pipeline {pipeline}",
            "each of the two would miss what the other confirms",
            f"set source.slot to another name, lockstep_{own} for one",
        )
        for pipeline, states in sorted(pipelines.items())
        if pipeline != own and facts.name in states and states[facts.name].system_id == facts.identity.system_id
    ]


def unread_pipeline_findings(slot: str, unread: Mapping[str, str]) -> list[Finding]:
    """Other pipelines whose state can't be read, each with the reason: they may read the same slot."""
    return [
        warning(
            f"slot {slot}",
            f"whether the pipeline {pipeline} reads it too isn't known: its state can't be read, {why}",
            "each of two pipelines with one slot would miss what the other confirms",
            f"ask its owner for its source.slot, or grant kafka.username Read on {control_topic(pipeline, STATE)}",
        )
        for pipeline, why in sorted(unread.items())
    ]


def own_states(records: Mapping[bytes, StoredRecord], slot: str) -> dict[str, CaptureState]:
    """Our state topic's records by slot; what isn't Lockstep's is left out, but for ``slot``'s own record.

    Raises LockstepError for one that can't be read, by another version for instance: that isn't no state.
    """
    states = {}
    for key, record in records.items():
        try:
            states[key.decode(errors="replace")] = CaptureState.from_bytes(record.value, record.what)
        except ForeignRecord:
            if key == slot.encode():
                raise
    return states


def states_of_others(records: Mapping[bytes, StoredRecord]) -> dict[str, CaptureState]:
    """Another pipeline's records by slot; those that can't be read are left out."""
    states = {}
    for key, record in records.items():
        with contextlib.suppress(LockstepError):
            states[key.decode(errors="replace")] = CaptureState.from_bytes(record.value, record.what)
    return states
