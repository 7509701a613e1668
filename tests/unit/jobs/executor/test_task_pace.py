"""jobs.executor.task_pace: a cut again after markers alone, and a batch that waits for a record once it has all."""

from dataclasses import dataclass
from typing import Any, cast

from jobs.executor.result import Result
from jobs.executor.task_pace import MARKERS_S, RECORD_S, LogEnd, NextCut
from jobs.executor.view_log import ViewLog


@dataclass
class Log:
    """What is asked of a ``ViewLog``."""

    cuts: list[Any]
    is_behind: bool = False
    awaits_copy: bool = False

    def cut(self) -> Any:
        return self.cuts.pop() if self.cuts else None


def test_a_position_before_which_nothing_was_new_is_stored_after_a_while() -> None:
    found = NextCut(cast(ViewLog, Log([])), is_long=True)
    found.was_taken(10.0)
    assert not found.is_due(10.0)
    assert found.is_due(10.0 + MARKERS_S + 1)
    assert NextCut(cast(ViewLog, Log([])), is_long=False).is_due(0.0)


def test_a_batch_ends_without_its_record_only_when_nothing_was_behind_for_a_while() -> None:
    log, result = Log([]), Result()
    end = LogEnd(cast(ViewLog, log), result)
    assert not end.is_reached(0.0, is_taken_in=False)
    log.is_behind = True
    assert not end.is_reached(RECORD_S, is_taken_in=True)
    log.is_behind = False
    assert not end.is_reached(RECORD_S + 1, is_taken_in=False)
    assert not result.lacks_record
    assert end.is_reached(2 * RECORD_S + 2, is_taken_in=False)
    assert result.lacks_record
