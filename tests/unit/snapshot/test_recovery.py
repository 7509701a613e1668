"""What a recovery says is missing, and the state that it writes."""

from dataclasses import replace

import pytest

from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.slot import Slot
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from snapshot.recovery import what_is_missing
from tests.history import HANDOFF, state

IDENTITY = SystemIdentity(state().system_id, 1, Lsn(HANDOFF + 1000), "app")
SLOT = Slot(state().slot, "pgoutput", "app", None, Lsn(HANDOFF), "reserved")


@pytest.mark.parametrize(
    ("slot", "identity", "words"),
    [
        (SLOT, IDENTITY, ""),
        (None, IDENTITY, "is gone: changes from"),
        (replace(SLOT, wal_status="lost"), IDENTITY, "is lost: changes from"),
        (replace(SLOT, confirmed=Lsn(HANDOFF + 8)), IDENTITY, "was moved to"),
        (
            SLOT,
            replace(IDENTITY, wal_end=Lsn(HANDOFF - 8)),
            "isn't the database that capture published from: its WAL ends",
        ),
    ],
)
def test_what_is_missing_is_said(slot: Slot | None, identity: SystemIdentity, words: str) -> None:
    missing = what_is_missing(state(), identity, slot, state().publication)
    assert words in " ".join(missing)
    assert bool(missing) == bool(words)


ORDERS, OTHER = TableName("public", "orders"), TableName("public", "other")
BEFORE = state(copied={ORDERS: 2, OTHER: 1}, memberships={ORDERS: "1 2", OTHER: "3 4"})


def _ordered(system_id: str = BEFORE.system_id) -> CaptureState:
    return BEFORE.recovering(
        [ORDERS],
        owner="o",
        publication=BEFORE.publication,
        database=BEFORE.database,
        system_id=system_id,
        timeline=BEFORE.timeline + 2,
    )


def test_the_new_state_is_newer_than_all_before_and_knows_no_copy_of_the_tables() -> None:
    ordered = _ordered()
    assert CaptureState.from_bytes(ordered.to_bytes(), "the record") == ordered
    assert (ordered.epoch, ordered.phase) == (BEFORE.epoch + 1, SnapshotPhase.RECOVERING)
    assert (ordered.copied, ordered.memberships, list(ordered.unfamiliar)) == ({OTHER: 1}, {OTHER: "3 4"}, [])
    streaming = ordered.handed_over(0x100, now_ms=5)
    assert (streaming.phase, streaming.published_lsn, streaming.end_lsn) == (SnapshotPhase.DONE, 0x100, 0x100)


def test_of_a_server_that_was_put_back_the_tables_that_are_not_copied_are_looked_at_again() -> None:
    """A column may have a number by now that another one had in what was published."""
    ordered = BEFORE.recovering(
        [ORDERS],
        owner="o",
        publication=BEFORE.publication,
        database=BEFORE.database,
        system_id=BEFORE.system_id,
        timeline=BEFORE.timeline,
        put_back=[ORDERS, OTHER],
    )
    assert (ordered.copied, list(ordered.unfamiliar)) == ({OTHER: 1}, [OTHER])
