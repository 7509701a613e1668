"""What the stores of stream queries say, and what is told of one that says nothing."""

import threading
from collections.abc import Callable

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError
from extensions.streams import status as status_module
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import figures_name, waiting_name
from extensions.streams.jobs.resume import Figures
from extensions.streams.settings import StreamQuerySettings
from extensions.streams.status import StreamQueryCollector
from jobs.generations.record import Record, begin_generation
from jobs.generations.status import save_stop
from jobs.settings import SparkSettings
from sinks.contract import OpenedSink
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.databases import until


class Query:
    """A stream query whose result is in memory. ``before`` is called whenever its store is opened."""

    def __init__(self, name: str = "recent") -> None:
        self.store = MemoryStore()
        self.before: Callable[[], object] = lambda: None
        self.plan = StreamQueryPlan(
            name,
            StreamQuerySettings(sql="select 1", key=("id",)),
            RedisSettings(),
            {},
            "shop",
            KafkaSettings(bootstrap_servers="x:1"),
            SparkSettings(),
            once=False,
            open=self.open,
        )

    def open(self, _name: str, _settings: object, number: int) -> OpenedSink:
        self.before()
        return open_memory(self.store, number)

    def begin(self) -> OpenedSink:
        opened = open_memory(self.store, 1)
        begin_generation(opened, Record("shop", {}, created_at_ms=0))
        return opened


@pytest.fixture
def query() -> Query:
    return Query()


def test_what_another_pipeline_runs_is_not_said_to_run(query: Query) -> None:
    """Two pipelines have a query of one name, and one warehouse. The job of the second one refuses to begin."""
    begin_generation(open_memory(query.store, 1), Record("other", {}))
    with StreamQueryCollector([query.plan]) as collector:
        (status,) = collector.look()
    assert (status.state, status.needs_somebody) == ("unknown", True)
    assert status.reason == "generation 1 of stream query 'recent' is written by pipeline 'other', not by 'shop'"
    assert "another name" in status.hint


def test_each_build_is_told_with_what_its_job_has_left(query: Query) -> None:
    with StreamQueryCollector([query.plan]) as collector:
        (nothing,) = collector.look()
        assert (nothing.generation, nothing.state, nothing.label) == (None, "absent", "recent")
        opened = query.begin()
        opened.records.save(figures_name(1), Figures(batch=0, results=3).text())
        opened.records.save(waiting_name(1), "there is no topic")
        save_stop(opened.records, 1, LockstepError("its checkpoint is gone", hint="build it again"), now_ms=7)
        (stopped,) = collector.look()
    assert (stopped.label, stopped.state, stopped.figures.results) == ("recent", "stopped", 3)
    assert (stopped.reason, stopped.hint, stopped.since_ms) == ("its checkpoint is gone", "build it again", 7)


def test_a_store_that_meets_a_bug_is_told_without_its_words_and_holds_up_no_other_one(query: Query) -> None:
    query.begin()
    other = Query("other")
    other.begin()

    def stumble() -> None:
        raise KeyError("tell-nobody")

    query.before = stumble
    with StreamQueryCollector([query.plan, other.plan]) as collector:
        for _ in range(2):
            stumbling, well = collector.look()
            assert (stumbling.state, well.state) == ("unknown", "absent")
            assert stumbling.reason.startswith("KeyError in ")
            assert "tell-nobody" not in stumbling.reason
        query.before = lambda: None
        assert [status.problem for status in collector.look()] == [None, None]


def test_a_store_that_hangs_holds_up_no_other_one(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "ANSWER_TIMEOUT_S", 0.5)
    other, answers = Query("other"), threading.Event()
    query.before = answers.wait
    other.begin()
    with StreamQueryCollector([query.plan, other.plan]) as collector:
        hanging, well = collector.look()
        assert hanging.reason.startswith("its store hasn't answered for")
        assert (well.name, well.generation, well.problem) == ("other", 1, None)
        answers.set()
        until(lambda: collector.look()[0].problem is None)
