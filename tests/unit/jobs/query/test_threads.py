"""What a job shows of itself while no query runs."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError, PositionMismatch, Unavailable
from jobs.query.resume_check import TopicFacts
from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import EarlyEnd, ended_early, leased
from sinks.memory import MemoryRecords, MemoryStore, open_memory
from tests.builders import table
from tests.databases import until


def test_a_job_without_a_query_shows_itself_pauses_on_demand_and_ends_when_it_is_asked() -> None:
    store = MemoryStore()
    opened = open_memory(store, 1)
    opened.sink.prepare([table()])
    nothing = cast("Any", None)
    plan = SinkPlan("s", nothing, 1, "p", nothing, (), nothing, once=False, open=lambda *_: open_memory(store, 1))
    stop = threading.Event()

    def heartbeat() -> dict[str, Any]:
        jobs = json.loads(opened.records.load("g1.heartbeat") or '{"jobs": {}}')["jobs"]
        return dict(next(iter(jobs.values()), {}))

    with leased(plan, stop) as gate:
        assert gate.enter()
        until(lambda: heartbeat().get("beats"))
        gate.leave()
        opened.records.save("g1.pause_request", "a switch")
        until(lambda: heartbeat()["paused_for"] == "a switch")
        threading.Timer(0.1, stop.set).start()
        assert not gate.enter(), "it waits, and is told to end"


class _BrokenRecords(MemoryRecords):
    """Fails as only a bug of ours does, once a job has looked."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._looks = 0

    def load(self, name: str) -> str | None:
        if not name.endswith("pause_request"):
            return None
        self._looks += 1
        if self._looks > 1:
            raise RuntimeError("a bug")
        return "a switch"


def test_a_job_without_a_query_fails_when_nobody_could_end_its_pause() -> None:
    store = MemoryStore()
    nothing = cast("Any", None)
    opened = replace(open_memory(store, 1), records=_BrokenRecords(store))
    plan = SinkPlan("s", nothing, 1, "p", nothing, (), nothing, once=False, open=lambda *_: opened)
    ends: list[object] = []

    def work() -> None:
        try:
            with leased(plan, threading.Event()) as gate:
                ends.append(gate.enter())
        except RuntimeError as error:
            ends.append(str(error))

    threading.Thread(target=work, daemon=True).start()
    until(lambda: ends == [False, "a bug"])


class _Answers:
    """Brokers that answer one after the other of these to a question about topics, and the last one from then on."""

    def __init__(self, *answers: Exception | dict[str, tuple[str, int]]) -> None:
        self._answers = list(answers)
        self.questions = 0

    def identities(self, _: Sequence[str]) -> dict[str, tuple[str, int]]:
        self.questions += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end_offsets(self, _: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        raise Unavailable("no broker answers")


Watch = Callable[[_Answers], Any]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr("jobs.query.threads._SCHEMA_LOOK_S", 0.01)
    nothing = cast("Any", None)
    plan = SinkPlan("s", nothing, 1, "p", KafkaSettings(bootstrap_servers="nowhere:1"), (), nothing, once=False)

    def watching(cluster: _Answers) -> Any:
        topics = {"p.public.t": TopicFacts("a", 1, 0)}
        return ended_early(plan, cast("Any", cluster), {}, topics, threading.Event())

    return watching


def test_a_recreated_topic_ends_a_running_query_for_good(watch: Watch) -> None:
    early: EarlyEnd
    with watch(_Answers({"p.public.t": ("a", 1)}, {"p.public.t": ("b", 1)})) as early:
        assert early.ending.wait(30)
    assert isinstance(early.failure, PositionMismatch)


@pytest.mark.parametrize("error", [Unavailable("no broker answers"), LockstepError("a broker refuses")])
def test_a_query_goes_on_while_the_brokers_do_not_say_what_topics_they_have(watch: Watch, error: LockstepError) -> None:
    cluster = _Answers(error)
    with watch(cluster) as early:
        until(lambda: cluster.questions > 2)
        assert not early.ending.is_set()
    assert early.failure is None


def test_a_query_does_not_go_on_when_a_bug_keeps_it_from_looking_at_its_topics(watch: Watch) -> None:
    with watch(_Answers(RuntimeError("a bug"))) as early:
        assert early.ending.wait(30)
    assert str(early.failure) == "a bug"
