"""What runs beside a query."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, cast

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import DataLost, LockstepError, PositionMismatch, Unavailable
from jobs.query.resume_check import TopicFacts
from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import (
    EarlyEnd,
    QueryState,
    ended_early,
    follow_watermark,
    keep_lease,
    listen_to_log,
    patience_s,
    store_reported,
)
from jobs.query.topic_watch import TopicWatch
from tests.databases import until


class _Answers:
    """Brokers that answer one after the other of these to a question about topics, and the last one from then on."""

    def __init__(self, *answers: Exception | dict[str, tuple[str, int]], retention: str | None = None) -> None:
        self._answers = list(answers)
        self.retention = retention
        self.questions = 0

    def identities(self, _: Sequence[str]) -> dict[str, tuple[str, int]]:
        self.questions += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end_offsets(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if self.retention is None:
            raise Unavailable("no broker answers")
        return dict.fromkeys(asked, 0)

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        settings = {"cleanup.policy": "compact,delete", "retention.ms": self.retention or "", "retention.bytes": "-1"}
        return dict.fromkeys(topics, settings)


Watch = Callable[..., Any]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr("jobs.query.threads.SCHEMA_LOOK_S", 0.01)
    monkeypatch.setattr("jobs.query.threads.ORDERS_LOOK_S", 0.0)
    monkeypatch.setattr("jobs.query.topic_watch.QUIET_S", 0.0)
    nothing = cast("Any", None)
    plan = SinkPlan("s", nothing, 1, "p", KafkaSettings(bootstrap_servers="nowhere:1"), (), nothing, once=False)

    def watching(cluster: _Answers, news: Event | None = None, has_orders: Callable[[], bool] = lambda: False) -> Any:
        topics = TopicWatch("s", {"p.public.t": TopicFacts("a", 1, 0)})
        return ended_early(plan, cast("Any", cluster), {}, topics, news=news or Event(), has_orders=has_orders)

    return watching


def test_a_recreated_topic_ends_a_running_query_for_good(watch: Watch) -> None:
    early: EarlyEnd
    with watch(_Answers({"p.public.t": ("a", 1)}, {"p.public.t": ("b", 1)})) as early:
        assert early.ending.wait(300)
    assert isinstance(early.failure, PositionMismatch)


def test_a_query_does_not_go_on_when_a_bug_keeps_it_from_looking_at_its_topics(watch: Watch) -> None:
    with watch(_Answers(RuntimeError("a bug"))) as early:
        assert early.ending.wait(300)
    assert str(early.failure) == "a bug"


def test_brokers_are_left_in_peace_until_something_is_published(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.query.threads.SchemaWatch.has_moved", lambda _: False)
    monkeypatch.setattr("jobs.query.topic_watch.QUIET_S", 1e9)
    turns = 0

    def has_orders() -> bool:
        nonlocal turns
        turns += 1
        return False

    cluster, news = _Answers({"p.public.t": ("a", 1)}), Event()
    early: EarlyEnd
    with watch(cluster, news, has_orders) as early:
        until(lambda: turns > 10)
        assert cluster.questions == 1
        news.set()
        until(lambda: cluster.questions == 2)
        assert not news.is_set()
    assert early.failure is None


def test_orders_are_looked_for_less_often_than_the_log(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look asks the destination."""
    monkeypatch.setattr("jobs.query.threads.SchemaWatch.has_moved", lambda _: False)
    monkeypatch.setattr("jobs.query.threads.ORDERS_LOOK_S", 1e9)
    looks = 0

    def has_orders() -> bool:
        nonlocal looks
        looks += 1
        return False

    cluster = _Answers({"p.public.t": ("a", 1)}, retention="-1")
    with watch(cluster, has_orders=has_orders):
        until(lambda: cluster.questions > 3)
    assert looks == 1


class _Bell:
    """Rings as often as it is told to, fails as often, and then says that the query has ended."""

    def __init__(self, state: QueryState, *rings: bool | Exception) -> None:
        self._state, self._rings = state, list(rings)
        self.heard: list[bool] = []
        self.closed = 0

    def rings(self, timeout_s: float) -> bool:
        self.heard.append(self._state.batch_done.is_set())
        self._state.batch_done.clear()
        if not self._rings:
            self._state.ended.set()
            return False
        ring = self._rings.pop(0)
        if isinstance(ring, Exception):
            raise ring
        return ring

    def close(self) -> None:
        self.closed += 1


def test_a_bell_makes_everybody_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.query.threads.SILENT_S", 0.0)
    state = QueryState()
    bell = _Bell(state, False, True, Unavailable("no broker answers"), True)
    listen_to_log(state, bell)
    assert bell.heard == [False, False, True, False, True]
    assert state.news.is_set()
    assert state.failure is None
    assert bell.closed == 1


def test_a_bell_that_has_not_rung_is_replaced() -> None:
    state = QueryState()
    bell = _Bell(state, False)
    state.bell_is_deaf.set()
    listen_to_log(state, bell)
    assert bell.closed == 2
    assert not state.bell_is_deaf.is_set()


def test_a_bug_of_the_bell_ends_the_query() -> None:
    state = QueryState()
    listen_to_log(state, _Bell(state, ValueError("a bug")))
    assert str(state.failure) == "a bug"


@pytest.mark.parametrize(
    ("rung", "has_records", "is_deaf"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_a_bell_is_deaf_when_records_come_without_it(
    monkeypatch: pytest.MonkeyPatch, rung: bool, has_records: bool, is_deaf: bool
) -> None:
    monkeypatch.setattr("jobs.query.threads.QUIET_S", 0.01)
    state = QueryState()
    if rung:
        state.batch_done.set()

    state.ended.set()  # it looks once more
    follow_watermark(state, "s", lambda: has_records, lambda _: None)
    assert state.bell_is_deaf.is_set() == is_deaf
    assert state.woken.is_set()


def _raising(error: Exception) -> Callable[[], Any]:
    def store() -> Any:
        raise error

    return store


@pytest.mark.parametrize("error", [DataLost("it was put back"), LockstepError("refused"), ValueError("a bug")])
def test_what_a_destination_lost_ends_a_long_batch(error: Exception) -> None:
    state = QueryState()
    assert store_reported(state, _raising(error)) is None
    assert state.failure is error
    assert state.ended.is_set()


def test_a_batch_is_overdue_when_it_takes_longer_than_its_rows_do() -> None:
    state = QueryState()
    assert not state.is_overdue(1000, reported_at_s=0), "none runs"
    state.under_way, state.planned_rows = (7, 100.0), 3
    assert not state.is_overdue(114, reported_at_s=0)
    assert state.is_overdue(116, reported_at_s=0)
    state.planned_rows = 200_000
    assert not state.is_overdue(200, reported_at_s=0), "as a first load has them"
    assert state.is_overdue(100 + patience_s(200_000), reported_at_s=0), "a server may hang under these as well"


def test_an_overdue_batch_is_told_again_and_again_while_nothing_is_heard() -> None:
    state = QueryState()
    state.under_way = (7, 100.0)
    assert not state.is_overdue(130, reported_at_s=120)
    assert state.is_overdue(135, reported_at_s=120)
    state.heard_at = 125.0  # of the task of a long batch
    assert not state.is_overdue(135, reported_at_s=120)


class _Refusing:
    """A lease whose destination is away. The query ends at its last answer."""

    def __init__(self, state: QueryState, *answers: LockstepError | None) -> None:
        self._state, self._answers = state, list(answers)

    def heartbeat(self) -> None:
        answer = self._answers.pop(0)
        if not self._answers:
            self._state.ended.set()
        if answer is not None:
            raise answer


@pytest.mark.parametrize(
    ("answers", "refusal"), [((Unavailable("it is away"),), "it is away"), ((Unavailable("it is away"), None), None)]
)
def test_a_heartbeat_that_was_refused_at_once_is_no_answer(
    answers: tuple[LockstepError | None, ...], refusal: str | None
) -> None:
    state = QueryState()
    keep_lease(state, cast(Any, _Refusing(state, *answers)))
    assert state.server_answer.refusal == refusal
    assert state.failure is None


def test_what_a_task_has_applied_is_stored_after_a_look_that_nobody_waits_for_without_end() -> None:
    state = QueryState()
    state.look_first()
    assert state.batch_done.is_set()


def test_records_that_were_found_just_now_are_not_looked_for_again() -> None:
    state = QueryState()
    state.learned_at = float("inf")
    state.look_first()
    assert not state.batch_done.is_set()


@pytest.mark.parametrize(("watermark_lsn", "looks"), [(7, True), (8, False)])
def test_a_record_that_was_not_there_yet_is_looked_for_again(watermark_lsn: int, looks: bool) -> None:
    state = QueryState()
    state.has_stored(7)
    state.batch_done.clear()
    state.has_stored(watermark_lsn)
    assert state.batch_done.is_set() is looks
