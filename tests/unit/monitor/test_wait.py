"""Waiting until sinks have applied an LSN."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError, Unavailable
from monitor.lag import LagReport, SinkFacts, Stage
from monitor.wait import wait_for_lsn


def _stage(name: str, lsn: int | None) -> Stage:
    return Stage(f"applied: {name}", lsn, 0, 0.0, 0, SinkFacts(name, 1, True, lsn or 0, 0, 0, 0))


def _lag(*stages: Stage, **changes: object) -> LagReport:
    return LagReport(stages, True, 0, **{"rejected": {}, **changes})  # type: ignore[arg-type]


def _wait(*reports: LagReport, sinks: tuple[str, ...] = ("cache",), seconds: float = 5.0) -> bool:
    """Wait for 10; each look finds the next report, and the last one again and again."""
    left = list(reports)

    class Collector:
        def collect(self, *, with_jobs: bool) -> LagReport:
            assert not with_jobs  # a job that was killed costs each look seconds
            return left.pop(0) if len(left) > 1 else left[0]

        def refresh(self, refreshed: Collection[str]) -> None:
            assert refreshed == sinks

    return wait_for_lsn(Collector(), 10, timeout_s=seconds, sinks=sinks, sleep=lambda _: None)


def test_a_sink_that_does_not_answer_is_waited_for() -> None:
    down = _lag(_stage("cache", None), unanswered={"cache": Unavailable("down")})
    assert _wait(down, down, _lag(_stage("cache", 10)))
    with pytest.raises(Unavailable, match=r"^sink cache can't be asked: down"):
        _wait(down, seconds=0)


def test_a_server_that_is_down_to_the_end_is_named() -> None:
    class Silent:
        def collect(self, *, with_jobs: bool) -> LagReport:
            raise Unavailable("Kafka doesn't answer")

        def refresh(self, _: Collection[str]) -> None: ...

    with pytest.raises(Unavailable, match="Kafka doesn't answer"):
        wait_for_lsn(Silent(), 10, timeout_s=0, sinks=("cache",), sleep=lambda _: None)


def test_nobody_waits_for_a_sink_that_needs_a_person() -> None:
    refused = _lag(_stage("cache", None), _stage("house", 10), unanswered={"cache": LockstepError("refused")})
    with pytest.raises(LockstepError, match=r"^sink cache can't be asked: refused"):
        _wait(refused)
    assert _wait(refused, sinks=("house",))


def test_other_sinks_are_not_kept_by_one_that_is_down() -> None:
    down = _lag(_stage("cache", None), _stage("house", 10), unanswered={"cache": Unavailable("down")})
    assert _wait(down, sinks=("house",))


def test_a_sink_without_a_live_generation_is_waited_for() -> None:
    building = replace(_stage("cache", 10), sink=SinkFacts("cache", 1, False, 10, 0, 0, 0))
    assert not _wait(_lag(building), seconds=0)
    assert not _wait(_lag(), seconds=0)
    assert _wait(_lag(), _lag(building), _lag(_stage("cache", 10)))
