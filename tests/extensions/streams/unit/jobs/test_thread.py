"""When the job of a stream query starts again that a newer one had ended."""

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from cdc.model.errors import Fenced, LockstepError
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.thread import StreamQueryJob
from jobs.extension_jobs import RunningJob
from jobs.generations.lease import Clock, GenerationLease, NewerJob
from jobs.generations.record import Record, list_generations, save_record
from jobs.generations.status import has_error, job_status, save_stop
from jobs.report import Report, SinkFailed, SinkWaiting
from sinks.contract import OpenedSink
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.generations import prepared_store


class _Query:
    """The job of a stream query at its first build. A newer one has ended the first that is made."""

    made: ClassVar[list["_Query"]]
    now: ClassVar[float]

    def __init__(self, *_: object, **__: object) -> None:
        self.generation = 1
        self.made.append(self)

    def run(self) -> None:
        if len(self.made) == 1:
            raise Fenced("another job has begun")


_CLOCK = Clock(monotonic_s=lambda: _Query.now)


class _Reports:
    """What the driver is told."""

    def __init__(self) -> None:
        self.all: list[Report] = []
        self.has_failed = threading.Event()

    def __call__(self, report: Report) -> None:
        self.all.append(report)
        if isinstance(report, SinkFailed):
            self.has_failed.set()


def _plan(store: MemoryStore, *, once: bool) -> StreamQueryPlan:
    def opened(number: int) -> OpenedSink:
        return open_memory(store, number)

    plan = SimpleNamespace(name="sessions", pipeline="shop", once=once, opened=opened, builds=list_generations)
    return cast(Any, plan)


def _ended(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, once: bool = False
) -> tuple[RunningJob, list[Report]]:
    """A stream query whose job a newer one has ended at build 1."""
    monkeypatch.setattr("extensions.streams.jobs.thread.StreamJob", _Query)
    monkeypatch.setattr("extensions.streams.jobs.thread.NewerJob", partial(NewerJob, lambda: _Query.now))
    reports = _Reports()
    job = StreamQueryJob(_plan(store, once=once)).begin(cast(Any, None), reports)
    assert reports.has_failed.wait(300)
    return job, reports.all


def _stopped_for(store: MemoryStore) -> str | None:
    return job_status(open_memory(store).records, 1, now_ms=0).reason


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    _Query.made, _Query.now = [], 0.0


@pytest.mark.parametrize("ends", ["once", "in order", "by an error"])
def test_it_goes_on_once_the_job_that_had_taken_it_is_done(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sink does. Until then whoever looks at it is told, also where its process is gone."""
    store = prepared_store(1)
    newer = GenerationLease(open_memory(store), 1, once=ends == "once", clock=_CLOCK)
    newer.claim(lambda: 0)
    job, reports = _ended(store, monkeypatch)
    assert not job.is_over  # before it knows what has ended it
    for _ in range(3):  # that one gives signs of life
        _Query.now += 4.0
        newer.heartbeat()
        job.look()
        assert len(_Query.made) == 1
        assert job.is_over == (ends != "once")
    assert [type(report) for report in reports] == [SinkFailed, SinkWaiting]
    newer.end()
    assert "newer job had taken its place" in (_stopped_for(store) or "")
    if ends == "by an error":
        save_stop(open_memory(store).records, 1, LockstepError("refused"), now_ms=0)
    job.look()
    assert len(_Query.made) == 1
    _Query.now += 10.0
    job.look()
    assert len(_Query.made) == (1 if ends == "by an error" else 2)
    job.stop(for_good=False)
    assert _stopped_for(store) == ("refused" if ends == "by an error" else None)


def test_it_is_not_taken_back_while_the_newer_job_works_on_a_newer_build(monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepared_store(1)
    newer = GenerationLease(open_memory(store), 1)
    newer.claim(lambda: 0)
    job, _ = _ended(store, monkeypatch)
    newer.end()
    for number in (1, 2):
        save_record(open_memory(store).records, number, Record("shop", {}))
    MemorySink(store, 2).prepare([])
    building = GenerationLease(open_memory(store, 2), 2, clock=_CLOCK)
    building.claim(lambda: 0)
    for _ in range(3):
        _Query.now += 4.0
        building.heartbeat()
        job.look()
        assert len(_Query.made) == 1
    building.end()
    job.look()
    assert len(_Query.made) == 1
    _Query.now += 10.0
    job.look()
    assert len(_Query.made) == 2
    job.stop(for_good=False)


@pytest.mark.parametrize("once", [True, False])
def test_it_need_not_be_started_where_it_is_told_to_stop_or_ends_by_itself(
    once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = prepared_store(1)
    GenerationLease(open_memory(store), 1).claim(lambda: 0)
    job, _ = _ended(store, monkeypatch, once=once)
    job.stop(for_good=not once)
    assert isinstance(job.failure, Fenced)
    assert job.is_over == once
    assert has_error(open_memory(store).records, 1) is False
    assert open_memory(store).records.load("g1.stopped") is None
