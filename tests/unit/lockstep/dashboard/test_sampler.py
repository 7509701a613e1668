"""lockstep.dashboard.sampler"""

import threading
from pathlib import Path

import pytest

from cdc.model.errors import LockstepError
from lockstep.config import Config
from lockstep.dashboard.documents import Rates, Subject
from lockstep.dashboard.model import PipelineState, Problem
from lockstep.dashboard.sampler import Log, Sampler, changes, with_out_of_sight
from monitor.lag import LagReport
from tests.browser import example
from tests.configurations import configured

SUBJECT = Subject("shop", "1", "db:5432", "shop", "lockstep_shop", 1, {})


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Of a Kafka whose password is in a file that isn't there yet, and that doesn't answer."""
    monkeypatch.setattr("cdc.kafka.topic_admin.REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.delenv("LOCKSTEP_KAFKA_PASSWORD", raising=False)
    login = f"username = 'u'\npassword_file = '{tmp_path / 'password'}'"
    return configured(tmp_path, kafka=f"sasl_mechanism = 'PLAIN'\n{login}")


def state(*problems: tuple[str, str]) -> PipelineState:
    listed = tuple(Problem(where=where, state=word, reason="why") for where, word in problems)
    return PipelineState.model_validate(example.state()).model_copy(update={"problems": listed})


def test_what_cant_begin_to_look_is_told_and_begins_when_it_can(config: Config, tmp_path: Path) -> None:
    sampler, told, again = Sampler(config, SUBJECT, Log()), [], threading.Event()
    failed = threading.Event()

    def watcher(seen: LagReport | LockstepError) -> None:
        told.append(seen)
        if len(told) == 1:
            (tmp_path / "password").write_text("secret")
        if isinstance(seen, LagReport):
            again.set()

    sampler.start(lambda _: None, watcher, failed.set)
    assert again.wait(300), told
    sampler.stop(wait_s=30)
    assert isinstance(told[0], LockstepError)
    assert "password" in told[0].message
    assert not failed.is_set()


def test_rates_are_not_those_of_before_a_look_failed(config: Config) -> None:
    sampler = Sampler(config, SUBJECT, Log())
    sampler.rates = Rates({"shop.public.t": 5.0})
    assert sampler.look_once().topics.events_per_s is None


def test_a_bug_that_ends_the_thread_is_told(config: Config) -> None:
    sampler, failed = Sampler(config, SUBJECT, Log()), threading.Event()

    def bug(_: PipelineState) -> None:
        raise ZeroDivisionError

    sampler.start(bug, lambda _: None, failed.set)
    assert failed.wait(300)
    sampler.stop(wait_s=30)


def test_a_watcher_that_fails_is_in_the_log_once_and_so_is_that_it_works_again(config: Config) -> None:
    log, answers = Log(), iter([LockstepError("the disk is full"), LockstepError("the disk is full"), None, None])

    def watcher(_: LagReport | LockstepError) -> None:
        error = next(answers)
        if error is not None:
            raise error

    sampler, looked = Sampler(config, SUBJECT, log), threading.Semaphore(0)
    sampler.start(lambda _: looked.release(), watcher, lambda: None)
    for _ in range(4):
        assert looked.acquire(timeout=30)
    sampler.stop(wait_s=30)
    assert [entry.message for entry in reversed(log.newest()) if entry.kind == "alert"] == [
        "the reporter of conditions fails: the disk is full",
        "the reporter of conditions works again",
    ]


def _told(*states: PipelineState) -> list[str]:
    """What is told of the last one after those before."""
    known, told = None, list[str]()
    for each in states:
        seen = with_out_of_sight(known, each)
        told = list(changes(known, seen))
        known = seen
    return told


@pytest.mark.parametrize("silent", ["pipeline", "kafka", "cache"])
def test_what_nobody_can_look_at_is_not_well_again(silent: str) -> None:
    stalled, hidden = state(("cache", "stalled"), ("orders in cache", "failed")), state((silent, "unanswered"))
    assert _told(stalled, hidden) == [f"{silent} is unanswered: why"]
    assert _told(stalled, hidden, hidden) == []
    assert _told(stalled, hidden, stalled) == [
        "cache isn't unanswered any more" if silent == "cache" else f"{silent} is well again"
    ]
    assert "cache is well again" in _told(stalled, hidden, state())


def test_a_sink_that_does_not_answer_hides_no_other() -> None:
    before, after = state(("cache", "stalled")), state(("search", "unanswered"))
    assert _told(before, after) == ["search is unanswered: why", "cache is well again"]


def test_a_generation_that_was_not_there_before_is_told() -> None:
    before = state()
    newer = before.sinks[0].model_copy(update={"generation": 4, "live": False})
    after = before.model_copy(update={"sinks": (*before.sinks, newer)})
    assert list(changes(before, after)) == ["generation 4 of search is new here"]
    assert list(changes(None, after)) == []
