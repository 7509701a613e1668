"""What ``lockstep doctor`` reads in Kafka: whether positions fit the source, and whether others write to our topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc.kafka.newest_records import NewestRecord
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.tag import Tag
from cdc.postgres.preflight.finding import Finding, error, ok, warning
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.slot import Slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.envelope import TAG_HEADER, parse_value

_NEW_PIPELINE = "start a pipeline of another name (pipeline.name), which takes a new snapshot"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The slot that is configured, and what there is of it in the source. ``others`` are the source's other slots."""

    name: str
    slot: Slot | None
    others: frozenset[str]
    identity: SystemIdentity
    database: str
    publication: str


def position_findings(facts: SlotFacts, states: Mapping[str, CaptureState]) -> list[Finding]:
    """Whether capture can go on where the pipeline's states, by slot, say that it stands."""
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
    differences = [
        f"{what} was {was}, is {now}"
        for what, was, now in (
            ("system identifier", state.system_id, facts.identity.system_id),
            ("timeline", state.timeline, facts.identity.timeline),
            ("database", state.database, facts.database),
            ("publication", state.publication, facts.publication),
        )
        if was != now
    ]
    if differences:
        return [
            error(
                "source",
                f"isn't the one that was published from: {'; '.join(differences)}",
                "after a restore or a promotion published changes may not exist any more",
                _NEW_PIPELINE,
            )
        ]
    if facts.slot is None and state.phase is not SnapshotPhase.CREATING:
        return [
            error(
                subject,
                f"is gone; {format_lsn(state.end_lsn)} was published last",
                "changes after that can't be read any more",
                _NEW_PIPELINE,
            )
        ]
    if facts.slot is not None and facts.slot.confirmed is not None and state.end_lsn < facts.slot.confirmed:
        return [
            error(
                subject,
                f"stands at {format_lsn(facts.slot.confirmed)}, but only {format_lsn(state.end_lsn)} was published",
                "what lies between is lost to this slot: somebody else read or moved it, or Kafka lost a transaction",
                _NEW_PIPELINE,
            )
        ]
    what = "is being made" if state.phase is SnapshotPhase.CREATING else f"published up to {format_lsn(state.end_lsn)}"
    return [ok(subject, what)]


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


def foreign_record_findings(records: Sequence[NewestRecord]) -> list[Finding]:
    """Records that aren't events of ours: somebody else writes to the topic."""
    foreign = {record.topic: record for record in records if not _is_event(record)}
    return [
        error(
            f"topic {topic}",
            f"holds a record that isn't an event (partition {record.partition}, offset {record.offset})",
            "somebody else writes to it; every sink stops there, and on a compacted topic a foreign key never goes away",
            "find out who writes to it and stop that; then use another pipeline.name, whose topics are new",
        )
        for topic, record in sorted(foreign.items())
    ]


def _is_event(record: NewestRecord) -> bool:
    try:
        if record.value is None:
            Tag.parse((record.headers.get(TAG_HEADER) or b"").decode())
        else:
            Tag.parse(parse_value(record.value).tag)
    except (LockstepError, ValueError, TypeError, AttributeError):
        return False
    return record.key is not None


def own_states(records: Mapping[bytes, bytes]) -> dict[str, CaptureState]:
    """Our state topic's records by slot. Raises LockstepError where another version wrote one: it isn't as if there were none."""
    return {slot.decode(): CaptureState.from_bytes(value) for slot, value in records.items()}


def states_of_others(records: Mapping[bytes, bytes]) -> dict[str, CaptureState]:
    """Another pipeline's; those that another version wrote are left to that version."""
    states = {}
    for slot, value in records.items():
        try:
            states[slot.decode()] = CaptureState.from_bytes(value)
        except LockstepError:
            continue
    return states
