"""When a comparison begins: what is due for longest, one at a time, in its window, and not again at a restart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import Unavailable
from lockstep.config import Config
from lockstep.verify_schedule import VerifySchedule
from monitor.lag import LagReport
from monitor.verification import Verification, VerifyOutcome
from tests.configurations import configured
from tests.lag import applied_stage

_HOUR_MS = 3_600_000
_MIDNIGHT_MS = 1_800_057_600_000
"""A midnight of UTC."""


@dataclass
class _Process:
    code: int | None = None
    is_terminated: bool = False

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.is_terminated, self.code = True, -15


@dataclass
class _Started:
    sinks: list[str] = field(default_factory=list)
    processes: list[_Process] = field(default_factory=list)

    def __call__(self, sink: str) -> Any:
        self.sinks.append(sink)
        self.processes.append(_Process())
        return self.processes[-1]


@pytest.fixture
def started() -> _Started:
    return _Started()


def _config(directory: Path, verify: str) -> Config:
    sinks = "".join(f"[sinks.{name}]\ntype = 'redis'\nprefix = '{name}'\n" for name in ("a", "b"))
    return configured(directory, sinks, f"[verify]\n{verify}\n")


def _schedule(directory: Path, started: _Started, verify: str = "every = '6h'") -> VerifySchedule:
    return VerifySchedule(_config(directory, verify), directory / "lockstep.toml", start=started)


def _report(verified_at_h: dict[str, float], **changes: Any) -> LagReport:
    stages = tuple(map(applied_stage, ("a", "b")))
    verified = {
        name: Verification(_at(hours), _at(hours), VerifyOutcome.EQUAL) for name, hours in verified_at_h.items()
    }
    return LagReport(stages, True, 0, {}, verified=verified, **changes)


def _at(hours: float) -> int:
    return int(_MIDNIGHT_MS + hours * _HOUR_MS)


def test_nothing_is_compared_where_nobody_asks_for_it(tmp_path: Path, started: _Started) -> None:
    _schedule(tmp_path, started, "").look(_report({}), now_ms=_at(1000))
    assert started.sinks == []


def test_nothing_is_compared_while_the_source_or_kafka_is_silent(tmp_path: Path, started: _Started) -> None:
    schedule = _schedule(tmp_path, started)
    schedule.look(_report({}, silent_servers={"source": Unavailable("no answer")}), now_ms=_at(7))
    assert started.sinks == []
    schedule.look(_report({}), now_ms=_at(7))
    assert started.sinks == ["a"], "due ever since"


def test_sinks_are_compared_one_after_the_other_and_again_when_due(tmp_path: Path, started: _Started) -> None:
    schedule = _schedule(tmp_path, started)
    schedule.look(_report({"b": 1}), now_ms=_at(7))
    schedule.look(_report({"b": 1}), now_ms=_at(8))
    assert started.sinks == ["a"], "the other one waits for it"
    started.processes[0].code = 0
    schedule.look(_report({"a": 7, "b": 1}), now_ms=_at(9))
    started.processes[1].code = 0
    schedule.look(_report({"a": 7, "b": 9}), now_ms=_at(12.9))
    assert started.sinks == ["a", "b"]
    schedule.look(_report({"a": 7, "b": 9}), now_ms=_at(13))
    assert started.sinks == ["a", "b", "a"]


def test_a_restart_goes_on_at_the_next_due_time(tmp_path: Path, started: _Started) -> None:
    for _ in range(3):
        schedule = _schedule(tmp_path, started)
        schedule.look(_report({"a": 5, "b": 5}), now_ms=_at(10.9))
    assert started.sinks == []


def test_one_that_kept_nothing_is_not_tried_again_at_once(tmp_path: Path, started: _Started) -> None:
    schedule = _schedule(tmp_path, started)
    schedule.look(_report({"b": 1}), now_ms=_at(0))
    started.processes[0].code = 1
    schedule.look(_report({"b": 1}), now_ms=_at(5))
    assert started.sinks == ["a"]
    schedule.look(_report({"b": 1}), now_ms=_at(6))
    assert started.sinks == ["a", "a"]


def test_one_begins_in_its_window_alone_and_the_log_says_once_that_it_waits(
    tmp_path: Path, started: _Started, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    schedule = _schedule(tmp_path, started, "every = '1d'\nbetween = '22:30-06:00'")
    for hours in (6, 12, 22.4):
        schedule.look(_report({}), now_ms=_at(hours))
    assert started.sinks == []
    assert [record.getMessage() for record in caplog.records] == [
        f"a comparison is due and waits sink={name}: it is outside of 22:30-06:00, verify.between" for name in "ab"
    ]
    schedule.look(_report({}), now_ms=_at(22.5))
    assert started.sinks == ["a"]


@pytest.mark.parametrize("changes", [{"unanswered": {"a": Unavailable("down"), "b": Unavailable("down")}}])
def test_a_sink_that_does_not_answer_is_not_compared(tmp_path: Path, started: _Started, changes: Any) -> None:
    _schedule(tmp_path, started).look(_report({}, **changes), now_ms=_at(100))
    assert started.sinks == []


def test_what_runs_is_ended_with_it(tmp_path: Path, started: _Started) -> None:
    schedule = _schedule(tmp_path, started)
    schedule.look(_report({}), now_ms=_at(0))
    schedule.close()
    assert started.processes[0].is_terminated
