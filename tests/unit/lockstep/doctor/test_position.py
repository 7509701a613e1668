"""Positions against the source. Nothing is connected here."""

from dataclasses import replace

import orjson
import pytest

from cdc.kafka.control_topics import StoredRecord
from cdc.model.errors import ForeignRecord, LockstepError
from cdc.model.finding import Finding, Severity
from cdc.model.lsn import Lsn
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.slot import Slot
from cdc.protocol.control_records import Gap, SnapshotPhase
from lockstep.doctor.position import (
    SlotFacts,
    own_states,
    position_findings,
    shared_slot_findings,
    states_of_others,
    unread_pipeline_findings,
)
from tests.history import state as any_state

STATE = replace(
    any_state(),
    slot="s",
    system_id="77",
    timeline=1,
    database="shop",
    publication="p",
    phase=SnapshotPhase.DONE,
    handoff=1000,
    commit_lsn=1000,
    end_lsn=1000,
)
SLOT = Slot("s", "pgoutput", "shop", None, Lsn(1000), "reserved")
FACTS = SlotFacts("s", SLOT, frozenset({"other"}), SystemIdentity("77", 1, Lsn(2000), "shop"), "p")


def whats(findings: list[Finding]) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.what) for finding in findings]


def test_a_slot_that_is_where_the_state_says_is_fine() -> None:
    assert [finding.severity for finding in position_findings(FACTS, {"s": STATE})] == [Severity.OK]


def test_before_the_first_start_there_is_nothing_to_say() -> None:
    assert position_findings(replace(FACTS, slot=None), {}) == []


def test_a_slot_without_a_state_is_found() -> None:
    (finding,) = position_findings(FACTS, {})
    assert finding.severity is Severity.ERROR
    assert finding.fix.startswith("select pg_drop_replication_slot('s');")


def test_a_gap_is_told_and_is_why_the_slot_is_gone() -> None:
    gap = Gap(1000, 0, 5, "slot s made the server keep 9 GiB of WAL")
    (finding,) = position_findings(replace(FACTS, slot=None), {"s": replace(STATE, gaps=(gap,))})
    assert (finding.severity, finding.why) == (Severity.ERROR, str(gap))
    closed = gap._replace(to_lsn=1000), gap._replace(to_lsn=2000)
    findings = position_findings(FACTS, {"s": replace(STATE, gaps=closed)})
    assert whats(findings)[1:] == [(Severity.OK, str(each)) for each in closed]


def test_a_gap_that_was_announced_is_none_while_the_slot_is_there() -> None:
    announced = replace(STATE, gaps=(Gap(1000, 0, 5, "slot s made the server keep 9 GiB of WAL"),))
    assert [finding.subject for finding in position_findings(FACTS, {"s": announced})] == ["slot s"]


def test_a_state_without_its_slot_is_found() -> None:
    (finding,) = position_findings(replace(FACTS, slot=None), {"s": STATE})
    assert (finding.severity, finding.what.split(";")[0]) == (Severity.ERROR, "is gone")


def test_a_slot_that_is_still_to_be_made_is_fine() -> None:
    creating = replace(STATE, phase=SnapshotPhase.CREATING)
    assert [finding.severity for finding in position_findings(replace(FACTS, slot=None), {"s": creating})] == [
        Severity.OK
    ]


def test_a_slot_that_somebody_moved_on_is_found() -> None:
    moved = replace(FACTS, slot=replace(SLOT, confirmed=Lsn(1008)))
    assert [finding.severity for finding in position_findings(moved, {"s": STATE})] == [Severity.ERROR]


@pytest.mark.parametrize(
    "changed",
    [
        {"identity": SystemIdentity("78", 1, Lsn(2000), "shop")},
        {"identity": SystemIdentity("77", 2, Lsn(2000), "shop")},
        {"identity": SystemIdentity("77", 1, Lsn(2000), "b")},
        {"identity": SystemIdentity("77", 1, Lsn(999), "shop")},
        {"publication": "q"},
    ],
    ids=["system", "timeline", "database", "an earlier moment", "publication"],
)
def test_another_source_than_the_one_published_from_is_found(changed: dict[str, object]) -> None:
    (finding,) = position_findings(replace(FACTS, **changed), {"s": STATE})  # type: ignore[arg-type]
    assert (finding.severity, finding.subject) == (Severity.ERROR, "source")


def test_a_slot_of_an_earlier_configuration_is_pointed_out() -> None:
    (finding,) = position_findings(replace(FACTS, slot=None), {"other": replace(STATE, slot="other")})
    assert (finding.severity, finding.subject) == (Severity.WARNING, "slot other")


def test_a_slot_that_another_pipeline_reads_is_found() -> None:
    (finding,) = shared_slot_findings(FACTS, "mine", {"theirs": {"s": STATE}})
    assert (finding.severity, finding.what) == (Severity.ERROR, "belongs to the pipeline theirs")


def test_a_slot_of_the_same_name_on_another_server_is_fine() -> None:
    assert shared_slot_findings(FACTS, "mine", {"theirs": {"s": replace(STATE, system_id="78")}}) == []


def stored(value: bytes) -> StoredRecord:
    return StoredRecord(value, "the record at offset 3 of topic shop.__state")


OLD = orjson.dumps(orjson.loads(STATE.to_bytes()) | {"format": 0})


def test_that_a_pipeline_cannot_be_looked_at_is_told_with_the_reason() -> None:
    (finding,) = unread_pipeline_findings("s", {"theirs": "the right Read lacks"})
    assert (finding.severity, finding.subject) == (Severity.WARNING, "slot s")
    assert "pipeline theirs reads it too isn't known" in finding.what
    assert finding.what.endswith("the right Read lacks")
    assert finding.fix.endswith("Read on theirs.__state")


def test_a_state_of_another_version_is_left_to_it() -> None:
    assert list(states_of_others({b"s": stored(STATE.to_bytes()), b"t": stored(OLD), b"\xff": stored(b"7")})) == ["s"]


def test_our_own_state_of_another_version_is_not_taken_for_none() -> None:
    # Without a state, the advice would be to drop the slot.
    with pytest.raises(LockstepError, match="another version"):
        own_states({b"s": stored(OLD)}, "s")


def test_what_somebody_else_wrote_beside_our_state_is_left_out() -> None:
    records = {b"s": stored(STATE.to_bytes()), b"\xff": stored(b"hello"), b"t": stored(b'{"format":4}')}
    assert own_states(records, "s") == {"s": STATE}


def test_what_somebody_else_wrote_in_place_of_our_state_is_not_taken_for_none() -> None:
    with pytest.raises(ForeignRecord, match=r"offset 3 of topic shop\.__state"):
        own_states({b"s": stored(b"hello")}, "s")
