"""What the lag report says of single sinks, and waiting for them."""

import io
import threading
from collections.abc import Callable
from typing import cast

import pytest
from rich.console import Console

from cdc.model.errors import LockstepError, Unavailable
from monitor.collector import Lag, LagCollector, _Progresses, _Question, lag_table, wait_for_lsn
from monitor.lag import LagReport, SinkFacts, Stage


def _stage(name: str, lsn: int | None) -> Stage:
    return Stage(f"applied: {name}", lsn, 0, 0.0, 0, SinkFacts(name, 1, True, lsn or 0, 0, 0, 0))


def _lag(*stages: Stage, **changes: object) -> Lag:
    return Lag(stages, True, 0, **{"rejected": {}, **changes})  # type: ignore[arg-type]


def _shown(lag: LagReport) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as capture:
        console.print(lag_table(lag))
    return capture.get()


def test_open_rejections_stand_beside_all_there_ever_were() -> None:
    lag = _lag(rejected={"cache": 7, "search": 2, "house": 0}, open_rejections={"cache": 3, "search": 0, "house": 0})
    assert "cache: 3 rejections open, 7 ever" in _shown(lag)
    assert "search: no rejection open, 2 ever" in _shown(lag)
    assert "house" not in _shown(lag)
    assert lag.to_json()["open_rejections"] == {"cache": 3, "search": 0, "house": 0}


def test_a_sink_that_was_built_with_other_settings_says_which() -> None:
    lag = _lag(rebuild_needed={"search": ("fields", "tables")})
    assert "search: rebuild needed, it was built with other fields, tables: lockstep rebuild search" in _shown(lag)
    assert lag.to_json()["rebuild_needed"] == {"search": ["fields", "tables"]}


def test_a_sink_that_cannot_be_asked_says_why_and_what_to_do() -> None:
    lag = _lag(unanswered={"cache": LockstepError("redis refuses the login", hint="check user and password")})
    assert "cache can't be asked: redis refuses the login\ncheck user and password" in _shown(lag)
    assert lag.to_json()["unanswered"] == {"cache": "redis refuses the login"}


def test_where_all_is_well_there_is_nothing_to_say() -> None:
    assert _shown(_lag(_stage("cache", 5))) == _shown(LagReport((_stage("cache", 5),), True, 0, {}))


def _wait(*found: Lag, sinks: tuple[str, ...] = (), seconds: float = 5.0) -> bool:
    """Wait for 10; each look finds the next report, and the last one again and again."""
    left = list(found)

    class Collector:
        def collect(self) -> Lag:
            return left.pop(0) if len(left) > 1 else left[0]

    collector = cast("LagCollector", Collector())
    return wait_for_lsn(collector, 10, timeout_s=seconds, sinks=sinks, sleep=lambda _: None)


def test_a_sink_that_does_not_answer_is_waited_for() -> None:
    down = _lag(_stage("cache", None), unanswered={"cache": Unavailable("down")})
    assert _wait(down, down, _lag(_stage("cache", 10)))
    assert not _wait(down, seconds=0)


def test_nobody_waits_for_a_sink_that_needs_a_person() -> None:
    refused = _lag(_stage("cache", None), _stage("house", 10), unanswered={"cache": LockstepError("refused")})
    with pytest.raises(LockstepError, match="refused"):
        _wait(refused)
    assert _wait(refused, sinks=("house",))


def test_other_sinks_are_not_kept_by_one_that_is_down() -> None:
    down = _lag(_stage("cache", None), _stage("house", 10), unanswered={"cache": Unavailable("down")})
    assert _wait(down, sinks=("house",))


def test_a_question_that_takes_long_is_answered_later() -> None:
    go_on = threading.Event()
    question = _Question(_asking(lambda: go_on.wait(30)))
    assert question.wait(0.01) is None
    go_on.set()
    assert question.wait(30) == []


def test_an_error_is_an_answer_and_a_bug_is_raised() -> None:
    def refused() -> None:
        raise LockstepError("refused")

    def broken() -> None:
        raise KeyError("x")

    assert isinstance(_Question(_asking(refused)).wait(30), LockstepError)
    with pytest.raises(KeyError):
        _Question(_asking(broken)).wait(30)


def _asking(before: Callable[[], object]) -> Callable[[], _Progresses]:
    def ask() -> _Progresses:
        before()
        return []

    return ask
