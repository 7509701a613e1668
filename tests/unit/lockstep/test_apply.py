"""What a new start of a sink reads again and leaves out."""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.apply import Move, read_from
from tests.configurations import configured


def test_records_before_and_after_what_is_applied_are_counted_apart() -> None:
    applied = {("t", 0): 10, ("t", 1): 10, ("t", 2): 10}
    start = {("t", 0): 4, ("t", 1): 13, ("t", 2): 10, ("t", 3): 5}
    assert Move.between(applied, start) == Move(again=6, left_out=8)


def test_a_start_at_what_is_applied_changes_nothing() -> None:
    assert Move.between({("t", 0): 10}, {("t", 0): 10}) == Move(again=0, left_out=0)


def test_a_consistent_sink_is_not_sent_to_another_place_of_the_log(tmp_path: Path) -> None:
    config = configured(tmp_path, '[sinks.dwh]\ntype = "warehouse"\nurl = "postgresql://w"\nconsistent = true\n')
    with pytest.raises(ConfigurationError, match="from its last step") as raised:
        read_from(config, "dwh", lsn=0, time_ms=None, agreed=lambda _: True, say=lambda _: None)
    assert "lockstep rebuild dwh --switch" in (raised.value.hint or "")
