"""Positions against the source. Nothing is connected here."""

from dataclasses import replace

import pytest

from cdc.model.finding import Finding, Severity
from cdc.model.lsn import Lsn
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.slot import Slot
from cdc.protocol.control_records import Gap, SnapshotPhase
from lockstep.doctor.position import SlotFacts, position_findings
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
FACTS = SlotFacts("s", SLOT, SystemIdentity("77", 1, Lsn(2000), "shop"), "p")


def whats(findings: list[Finding]) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.what) for finding in findings]


def test_a_slot_without_a_state_is_found() -> None:
    assert position_findings(replace(FACTS, slot=None), None) == [], "before the first start"
    (finding,) = position_findings(FACTS, None)
    assert finding.severity is Severity.ERROR
    assert finding.fix.startswith("select pg_drop_replication_slot('s');")


def test_gaps_are_told() -> None:
    closed = Gap(900, 1000, 5, "slot s is lost"), Gap(1000, 2000, 5, "slot s is gone")
    findings = position_findings(FACTS, replace(STATE, gaps=closed))
    assert whats(findings)[1:] == [(Severity.OK, str(each)) for each in closed]


def test_a_state_without_its_slot_and_a_slot_that_somebody_moved_on_are_found() -> None:
    gone, moved = replace(FACTS, slot=None), replace(FACTS, slot=replace(SLOT, confirmed=Lsn(1008)))
    (finding,) = position_findings(gone, STATE)
    assert (finding.severity, finding.what.split(";")[0]) == (Severity.ERROR, "is gone")
    (finding,) = position_findings(gone, replace(STATE, phase=SnapshotPhase.CREATING))
    assert finding.severity is Severity.OK, "it is still to be made"
    assert [finding.severity for finding in position_findings(moved, STATE)] == [Severity.ERROR]


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
    (finding,) = position_findings(replace(FACTS, **changed), STATE)  # type: ignore[arg-type]
    assert (finding.severity, finding.subject) == (Severity.ERROR, "source")
