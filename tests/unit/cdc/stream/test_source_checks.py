"""Which server the state speaks of, and which other one can go on from it."""

import pytest

from cdc.model.lsn import Lsn
from cdc.postgres.replication import SystemIdentity, parse_timeline_history
from cdc.stream.source_checks import system_differences
from tests.history import HANDOFF, state


def _identity(**changes: object) -> SystemIdentity:
    values = {"system_id": state().system_id, "timeline": 1, "wal_end": Lsn(HANDOFF + 1000), "database": "app"}
    return SystemIdentity(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"timeline": 2}, "timeline was 1, is 2"),
        ({"timeline": 3, "left_at": {1: Lsn(HANDOFF), 2: Lsn(HANDOFF + 8)}}, None),
        ({"timeline": 2, "left_at": {1: Lsn(HANDOFF - 8)}}, "it left timeline 1 at"),
        ({"wal_end": Lsn(HANDOFF - 8)}, "its WAL ends at"),
        ({"system_id": "7"}, "system identifier was"),
        ({"database": "other"}, "database was app, is other"),
    ],
    ids=["the same", "another timeline", "promoted", "promoted too early", "put back", "another server", "database"],
)
def test_a_server_can_go_on_when_it_has_all_that_was_published(changes: dict[str, object], words: str | None) -> None:
    differences = system_differences(state(), _identity(**changes), state().publication)
    assert len(differences) == (words is not None)
    assert all(words in difference for difference in differences if words)


def test_a_timelines_history_is_read_with_its_comments() -> None:
    text = "1\t0/3000060\tno recovery target specified\n\n# a comment\n2\t0/5000000\tbefore 2000-01-01\n"
    assert parse_timeline_history(text) == {1: 0x3000060, 2: 0x5000000}
