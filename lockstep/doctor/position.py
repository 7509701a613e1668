"""Whether capture can continue: the slot in the source against the positions that Kafka holds."""

from dataclasses import dataclass
from typing import Final

from cdc.kafka.control_topics import read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, error, ok
from cdc.model.lsn import format_lsn
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationConnection, SystemIdentity
from cdc.postgres.slot import Slot, find_slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.stream.source_checks import RECOVER, system_differences
from lockstep.config import Config
from migrations.source import publication_sql

_AFTER_A_GAP: Final = (
    "copies of the tables bring their rows up to date; from in between, earlier states of rows, rows of append-only"
    " tables and of the outbox, and messages are missing"
)


@dataclass(frozen=True, slots=True)
class SlotFacts:
    name: str
    slot: Slot | None
    identity: SystemIdentity
    publication: str


def check_position(config: Config) -> list[Finding]:
    """Whether slot and state fit together. Raises LockstepError if Kafka or the source doesn't answer."""
    # The slot comes first: a running capture moves it up to its state, never beyond.
    with connect(config.source, application="lockstep doctor") as connection:
        connection.execute("set default_transaction_read_only = on")
        slot = find_slot(connection, config.slot)
        published = connection.execute(
            "select 1 from pg_publication where pubname = %s", (config.publication,)
        ).fetchone()
        version = connection.info.server_version
    client = config.kafka.client()
    own = config.pipeline.name
    is_listed = TopicAdmin(client).partition_counts([control_topic(own, STATE)], must_see=True)
    state = read_state(client, own, config.slot) if is_listed else None
    try:
        # After the state: the WAL only grows, and a running capture goes on publishing.
        with ReplicationConnection(config.source) as replication:
            identity = replication.identify_system()
    except LockstepError:
        return []  # The source's checks report it.
    findings = position_findings(SlotFacts(config.slot, slot, identity, config.publication), state)
    if published is None and state is not None and state.publication == config.publication:
        findings += dropped_publication_findings(config, state, version)
    return findings


def position_findings(facts: SlotFacts, state: CaptureState | None) -> list[Finding]:
    """Whether capture can continue from the pipeline's state in Kafka."""
    subject = f"slot {facts.name}"
    drop = f"select pg_drop_replication_slot('{facts.name}');"
    if state is None:
        if facts.slot is None:
            return []
        return [
            error(
                subject,
                "exists, but Kafka holds no state of this pipeline for it",
                "it isn't known what was published, and who else reads it",
                f"{drop}  -- if nobody else needs it; else give the pipeline another name",
            )
        ]
    differences = system_differences(state, facts.identity, facts.publication)
    if differences:
        return [
            error(
                "source",
                f"isn't the database that capture published from: {'; '.join(differences)}",
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
                "changes after that can't be read any more",
                RECOVER,
            )
        ]
    confirmed = None if facts.slot is None or is_being_made else facts.slot.confirmed
    if confirmed is not None and state.end_lsn < confirmed:
        return [
            error(
                subject,
                f"is at {format_lsn(confirmed)}, but only {format_lsn(state.end_lsn)} was published",
                "the changes in between are lost to it: another client read or moved it, or Kafka lost a transaction",
                RECOVER,
            )
        ]
    what = "is being created" if is_being_made else f"published up to {format_lsn(state.end_lsn)}"
    return [ok(subject, what), *(ok("gap", str(gap), _AFTER_A_GAP) for gap in state.gaps)]


def dropped_publication_findings(config: Config, state: CaptureState, version: int) -> list[Finding]:
    """The publication is gone, though capture has begun with it. ``version`` is the server's."""
    if state.phase in (SnapshotPhase.CREATING, SnapshotPhase.RECOVERING):
        return []  # the process that makes the slot makes the publication too
    create = publication_sql(config.publication, config.source.published_names, version=version)
    return [
        error(
            publication_subject(config.publication),
            "is gone: it was dropped after capture began with it",
            "capture stops where the WAL has a change, and nothing is skipped; PostgreSQL 17 and earlier can't decode"
            " what was committed while it was gone",
            f"{create}\n-- then start capture; where it stops at the same place again, run `lockstep recover`",
        )
    ]


def publication_subject(name: str) -> str:
    return f"publication {name}"
