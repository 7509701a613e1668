"""jobs.query.applied: what a task reports before its batch ends."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import DataLost, LockstepError, PositionMismatch, Unavailable
from cdc.model.event import Position
from cdc.protocol.control_records import ProgressRecord
from jobs.executor.driver_line import TaskReport
from jobs.executor.result import Failure, RejectedEvent, Result
from jobs.executor.task_input import StepsInput, Task, ViewInput
from jobs.generations.lease import GenerationLease
from jobs.query.applied import Applied
from jobs.query.progress import ProgressKeeper
from jobs.query.rejections import OpenRejections, Rejections
from jobs.query.threads import QueryState
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_shards import ViewShards
from jobs.query.whole_progress import WholeProgress
from jobs.report import BatchApplied, Report, SinkWaiting
from sinks.contract import Generations
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import table
from tests.generations import Time, prepared_store
from tests.keepers import keeper_of, log_of
from tests.task_records import task

P0 = ("a", 0)


def task_of(*, shards: int = 0, is_consistent: bool = False) -> Task:
    own = task(MemorySink(MemoryStore(), 1))
    if is_consistent:
        return replace(own, steps=StepsInput("progress", "shop"))
    nothing: Any = None
    return replace(own, view=ViewInput(nothing, table(), "", "progress", "shop", shards=(nothing,) * shards))


class Letters:
    """Keeps rejections, or fails to."""

    def __init__(self, error: LockstepError | None = None) -> None:
        self._error = error
        self.kept = list[object]()

    def keep(self, rejected: Any, resolved: Any, **_: object) -> OpenRejections:
        if self._error is not None:
            raise self._error
        self.kept.append((rejected, resolved))
        return {}


class Hearing:
    """What hears of the tasks of a view, which is in two shards unless somebody says otherwise."""

    def __init__(
        self,
        keeper: ProgressKeeper,
        *,
        shards: int = 2,
        letters: Letters | None = None,
        check_topics: Callable[[], None] = lambda: None,
    ) -> None:
        own = task_of(shards=shards)
        lease = GenerationLease(open_memory(prepared_store(1), 1), 1, clock=Time().clock())
        lease.claim(lambda: 0)
        self.state, self.reports = QueryState(), list[Report]()
        self.progress = WholeProgress(own, keeper)
        self.applied = Applied(
            own,
            self.progress,
            Rejections("cache", letters or Letters(), {}, lease, tables=None, max_open=1),
            cast("Any", None),
            TopicWatch("cache", {}),
            check_topics,
            self.state,
            self.reports.append,
        )
        self.hear = self.applied.hear

    @property
    def shards(self) -> ViewShards:
        assert self.progress.shards is not None
        return self.progress.shards


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.query.threads.LOOK_FIRST_S", 0.0)  # nobody looks for progress records here


def generations_of(store: MemoryStore) -> Generations:
    opened = open_memory(store)
    opened.sink.prepare([table()])
    opened.sink.claim()
    return opened.generations


def test_a_task_that_is_behind_and_reports_no_progress_is_overdue() -> None:
    keeper = keeper_of(generations_of(MemoryStore()), log_of("a"))
    keeper.learn([ProgressRecord(200, 200, {"a": (5,)})])
    hearing = Hearing(keeper, shards=0)
    hearing.state.under_way = (1, 0.0)
    hearing.hear(TaskReport())
    assert hearing.state.heard_at == 0
    assert hearing.state.is_overdue(1_000, reported_at_s=0)
    hearing.hear(TaskReport(has_got_on=True))
    assert hearing.state.heard_at > 0, "a step may be of very much"
    hearing.state.heard_at = 0
    keeper.batch_applied({P0: 5}, rejected=0)
    hearing.hear(TaskReport())
    assert hearing.state.heard_at > 0


def test_a_batch_that_raises_the_watermark_reports_its_commit_time() -> None:
    keeper = keeper_of(generations_of(MemoryStore()), log_of("a"))
    keeper.learn([ProgressRecord(200, 300, {"a": (5,)})])
    hearing = Hearing(keeper, shards=0)
    hearing.hear(TaskReport(rows=1, next_offsets={P0: 5}))
    (report,) = hearing.reports
    assert isinstance(report, BatchApplied)
    assert (report.watermark_lsn, report.commit_time_ms) == (200, 300)


@pytest.mark.parametrize("is_consistent", [True, False])
def test_only_offsets_of_whole_transactions_are_stored_with_the_rows(is_consistent: bool) -> None:
    stored: list[Any] = []

    def store(ends: object, *, rejected: int, written: object) -> None:
        stored.append((ends, rejected, written))

    keeper: Any = SimpleNamespace(batch_applied=store)
    reached = {P0: 5}
    WholeProgress(task_of(is_consistent=is_consistent), keeper).store(reached)
    assert stored == [(reached, 0, reached if is_consistent else {})]


def test_a_view_is_as_far_as_its_last_shard_and_all_shards_are_stored_at_once() -> None:
    """A shard's state that was put back to where the view is must not seem to be good."""
    done: list[Any] = []
    is_down = True

    def store(ends: object, *, rejected: int, shards: Any) -> Any:
        if is_down:
            raise Unavailable("it is down")
        done.append((ends, shards))
        return SimpleNamespace(rejected=0, watermark_lsn=0, commit_time_ms=0)

    keeper: Any = SimpleNamespace(is_behind=False, batch_applied=store, shards=[{P0: 1}, {P0: 1}])
    hearing = Hearing(keeper)
    known = hearing.shards
    assert not hearing.hear(TaskReport(next_offsets={P0: 5}, shard=0))
    assert (known.stored(0), done) == ({P0: 1}, [])
    is_down = False
    assert hearing.hear(TaskReport(next_offsets={P0: 4}, shard=1))
    assert done == [({P0: 4}, [{P0: 5}, {P0: 4}])]
    assert (known.stored(0), known.stored(1)) == ({P0: 5}, {P0: 4})
    # A batch of which one shard couldn't begin says nothing new of the view.
    result = Result(reached={0: {P0: 9}})
    hearing.progress.reach(result)
    assert (result.next_offsets, known.stored(0)) == ({}, {P0: 5})
    result = Result(reached={0: {P0: 9}, 1: {P0: 7}})
    hearing.progress.reach(result)
    assert result.next_offsets == {P0: 7}


def no_such_topic() -> None:
    raise PositionMismatch("the topic was recreated")


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (Unavailable("it is down", retry_after_s=4.0), None),
        (DataLost("it was put back"), "it was put back"),
        (LockstepError("it is full"), "it is full"),
        (PositionMismatch("offset 5 isn't there"), "the topic was recreated"),
    ],
)
def test_the_failure_of_one_shard_is_reported_at_once(error: LockstepError, ending: str | None) -> None:
    """Its batch may go on for an hour: another shard is being built."""
    hearing = Hearing(keeper_of(generations_of(MemoryStore()), log_of("a")), check_topics=no_such_topic)
    assert hearing.hear(TaskReport(failure=Failure.of(error), shard=1))
    failure = hearing.state.failure
    if ending is None:
        assert (failure, hearing.reports) == (None, [SinkWaiting("cache", "it is down", 4.0)])
    else:
        assert (type(failure), str(failure), hearing.reports) == (type(error), ending, [])


@pytest.mark.parametrize("error", [None, Unavailable("no brokers"), DataLost("put back"), LockstepError("too many")])
def test_rejections_of_a_shard_are_stored_before_the_shard_gets_the_answer(error: LockstepError | None) -> None:
    """Its batch may go on for an hour: another shard is being built."""
    event = RejectedEvent(Position("shop.views.v", 0, 0), b'{"id":1}', b"{}", "0" * 28, "too large")
    void = ("shop.views.v", b'{"id":2}')
    generations, letters = generations_of(MemoryStore()), Letters(error)
    hearing = Hearing(keeper_of(generations, log_of("a")), letters=letters)
    assert hearing.hear(TaskReport(rejected=[event], resolved=[void], shard=1)) is (error is None)
    if error is not None:
        ends = not isinstance(error, Unavailable) or isinstance(error, DataLost)
        assert (hearing.state.failure, letters.kept) == (error if ends else None, [])
        return
    assert letters.kept == [([event], [void])]
    for _ in range(2):
        assert hearing.hear(TaskReport(next_offsets={P0: 5}, shard=1))
    stored = generations.load_progress()
    assert stored is not None
    counts = [report.rejected for report in hearing.reports if isinstance(report, BatchApplied)]
    assert (counts, stored.rejected) == ([1, 0], 1)


def test_a_restored_store_gets_no_later_progress_of_its_shards() -> None:
    """Redis fails over, and has rows and progress as of 8; the shards have forgotten what they wrote up to 10.

    Whoever begins then must find both at 8: a state that has forgotten what the store lacks is built again.
    """
    store = MemoryStore()
    generations = generations_of(store)
    hearing = Hearing(keeper_of(generations, log_of("a")))
    for shard in (0, 1):
        assert hearing.hear(TaskReport(next_offsets={P0: 8}, shard=shard))
    as_of_8 = generations.load_progress()
    for shard in (0, 1):
        assert hearing.hear(TaskReport(next_offsets={P0: 10}, shard=shard))
    store.generation(1).progress = as_of_8
    assert not hearing.hear(TaskReport(next_offsets={P0: 20}, shard=0))
    assert isinstance(hearing.state.failure, DataLost)
    assert store.records == {}
    stored = generations.load_progress()
    assert stored == as_of_8
    assert stored is not None
    again = ViewShards.of_progress(stored.shards, count=2, reached=stored.next_offsets)
    assert (again.stored(0), again.stored(1), again.least) == ({P0: 8},) * 3
