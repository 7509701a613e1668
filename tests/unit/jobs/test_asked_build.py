"""A build's job that the command asks a driver for: both sides, at a destination in memory."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable
from jobs.asked_build import AskedBuild
from jobs.driver import Source
from jobs.generations.build_request import (
    BuildRequest,
    has_driver,
    load_answer,
    load_request,
    request_name,
    save_request,
)
from jobs.generations.record import Phase, Record, save_record
from jobs.generations.starting import STARTING_NAME, starting_record
from jobs.query.sink_plan import SinkPlan
from jobs.report import BatchApplied, Report, Reporter, SinkFailed, SinkStarted, SinkWaiting
from jobs.settings import SparkSettings
from lockstep.rebuild.driver_job import DriverJob
from lockstep.rebuild.outcome import NoDriver
from sinks.access import Login
from sinks.contract import OpenedSink
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from sinks.registry import definition
from tests.generations import ORDERS, Time, prepared_store
from tests.job_process import run_sinks

_KAFKA = KafkaSettings(bootstrap_servers="nowhere:1")
_SPARK = cast("SparkSession", object())
_BUILT = 2
PATIENCE_S = 60.0


class _Job:
    """What a driver runs: it goes on until it is told to stop, or as a test says."""

    made: ClassVar[list["_Job"]] = []

    def __init__(self, plan: SinkPlan, _: SparkSession, *, report: Reporter) -> None:
        self.plan = plan
        self.report = report
        self.failure: LockstepError | None = None
        self.newer = None
        self.ended = threading.Event()
        self.was_asked_to_stop = False
        self.made.append(self)

    @property
    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def wait(self, seconds: float) -> None:
        self.ended.wait(seconds)

    def ask_to_stop(self) -> None:
        self.was_asked_to_stop = True
        self.ended.set()

    def stop(self) -> None:
        self.ask_to_stop()

    def forget_takeover(self) -> None: ...


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A destination with a live generation, and one that is being built."""
    _Job.made = []
    monkeypatch.setattr("jobs.asked_build.JobThread", _Job)
    monkeypatch.setattr("jobs.driver.JobThread", _Job)
    for module in ("jobs.asked_build", "lockstep.rebuild.driver_job"):
        monkeypatch.setattr(f"{module}.BEAT_S", 0.01)
    store = prepared_store(1, _BUILT)
    building = Record("shop", definition(RedisSettings()), Phase.BUILDING, loaded=False)
    save_record(open_memory(store).records, _BUILT, building)
    return store


def _plan(store: MemoryStore, *, failures: Iterable[LockstepError] = ()) -> SinkPlan:
    """``failures`` are raised before the destination can be opened, one each time."""
    left = iter(failures)

    def opened(_name: str, _settings: Any, number: int) -> OpenedSink:
        for failure in left:
            raise failure
        return open_memory(store, number)

    source = Source("shop", _KAFKA, [ORDERS.name], SparkSettings())
    return source.plan("cache", RedisSettings(), _BUILT, open_sink=opened)


def _until(holds: Callable[[], object]) -> None:
    waiting = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError("not in time")


def _asked(store: MemoryStore, *, since: int = 0) -> tuple[BuildRequest, AskedBuild, _Job]:
    """What a driver does when it finds a request."""
    _until(lambda: load_request(open_memory(store).records, _BUILT))
    request = load_request(open_memory(store).records, _BUILT)
    assert request is not None
    build = AskedBuild(_plan(store), _SPARK, request, report=lambda _: None)
    return request, build, _Job.made[since]


def _ended(job: DriverJob) -> Exception | None:
    job.wait(PATIENCE_S)
    assert not job.is_alive
    return job.failure


def test_what_the_job_reports_reaches_who_asked_for_it_and_its_end_does(store: MemoryStore) -> None:
    reports: list[Report] = []
    asking = DriverJob(_plan(store), report=reports.append)
    request, build, job = _asked(store)
    assert (request.tables, request.trimmed) == ((ORDERS.name,), False)
    job.report(SinkStarted("cache", _BUILT))
    job.report(SinkWaiting("cache", "Kafka is silent", 1.0))
    _until(lambda: SinkWaiting("cache", "Kafka is silent", 0.01) in reports)
    for number, rows in enumerate((30, 12)):
        job.report(BatchApplied("cache", _BUILT, number, rows, rows, 0, 0, 5, 7, 0))
    _until(lambda: sum(report.rows for report in reports if isinstance(report, BatchApplied)) == 42)
    job.ended.set()
    assert _ended(asking) is None
    build.stop()
    assert reports[0] == SinkStarted("cache", _BUILT)
    records = open_memory(store).records
    assert (load_request(records, _BUILT), load_answer(records, _BUILT)) == (None, None)


def test_what_the_job_fails_with_is_raised_where_it_was_asked_for_alone(store: MemoryStore) -> None:
    asking = DriverJob(_plan(store), report=lambda _: None)
    _until(lambda: load_request(open_memory(store).records, _BUILT))
    request, seen = load_request(open_memory(store).records, _BUILT), list[Report]()
    assert request is not None
    AskedBuild(_plan(store), _SPARK, request, report=seen.append)
    [job] = _Job.made
    job.failure = PositionMismatch("the topic was trimmed", hint="copy it again")
    job.report(SinkFailed("cache", _BUILT, job.failure))
    job.ended.set()
    failure = _ended(asking)
    assert isinstance(failure, PositionMismatch)
    assert str(failure) == "the topic was trimmed\ncopy it again"
    assert seen == []


def _begun(store: MemoryStore, failures: Iterable[LockstepError], *, report: Reporter) -> tuple[DriverJob, AskedBuild]:
    asking = DriverJob(_plan(store), report=lambda _: None)
    _until(lambda: load_request(open_memory(store).records, _BUILT))
    request = load_request(open_memory(store).records, _BUILT)
    assert request is not None
    return asking, AskedBuild(_plan(store, failures=failures), _SPARK, request, report=report)


def test_a_destination_that_is_away_when_a_build_begins_gets_the_answer_once_it_is_back(store: MemoryStore) -> None:
    away = Unavailable("the store is silent")
    asking, build = _begun(store, [away, away, away], report=lambda _: None)
    _until(lambda: load_answer(open_memory(store).records, _BUILT))
    _Job.made[0].ended.set()
    assert _ended(asking) is None
    build.stop()


def test_a_driver_ends_though_the_destination_of_a_build_is_away(store: MemoryStore) -> None:
    seen = list[Report]()
    asking, build = _begun(store, itertools.repeat(Unavailable("the store is silent")), report=seen.append)
    build.stop()
    assert (_Job.made[0].is_alive, seen) == (False, [])
    asking.stop()


def test_a_build_that_can_not_be_answered_ends_with_its_reason(store: MemoryStore) -> None:
    seen = list[Report]()
    refusal = LockstepError("the store refuses")
    asking, build = _begun(store, [refusal], report=seen.append)
    _until(lambda: not build.is_alive)
    assert (_Job.made[0].is_alive, seen) == (False, [SinkFailed("cache", _BUILT, refusal)])
    asking.stop()


def test_who_needs_no_job_any_more_waits_for_its_end(store: MemoryStore) -> None:
    asking = DriverJob(_plan(store), report=lambda _: None)
    _, build, job = _asked(store)
    _until(lambda: load_answer(open_memory(store).records, _BUILT))
    asking.stop()
    assert (job.was_asked_to_stop, job.is_alive, asking.failure) == (True, False, None)
    build.stop()


def test_a_job_ends_when_the_command_that_asked_for_it_was_killed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = open_memory(store).records
    monkeypatch.setattr("jobs.asked_build.BUILD_SILENT_S", 0.0)
    request = BuildRequest((ORDERS.name,), trimmed=False, settings="", run="r")
    save_request(records, _BUILT, request)
    _, build, job = _asked(store)
    _until(lambda: not build.is_alive)
    assert job.was_asked_to_stop
    assert load_request(records, _BUILT) is None


@pytest.mark.parametrize("failure", [Fenced("another job has begun"), LockstepError("the batch hasn't ended yet")])
def test_a_driver_that_ends_or_was_replaced_leaves_the_build_to_the_next(
    store: MemoryStore, failure: LockstepError
) -> None:
    """What it failed with as it ended says nothing of the build."""
    asking = DriverJob(_plan(store), report=lambda _: None)
    _, first, job = _asked(store)
    job.failure = failure
    if isinstance(failure, Fenced):
        job.ended.set()
    first.stop()
    assert asking.is_alive
    _, second, job = _asked(store, since=1)
    job.ended.set()
    assert _ended(asking) is None
    second.stop()


@pytest.fixture
def driver(store: MemoryStore) -> Iterator[threading.Thread]:
    stop = threading.Event()
    run = {
        "pipeline": "shop",
        "kafka": _KAFKA,
        "tables": [ORDERS.name],
        "sinks": {"cache": RedisSettings()},
        "spark": SparkSettings(),
        "stop": stop,
        "report": lambda _: None,
        "open_sink": lambda _name, _settings, number: open_memory(store, number),
        "opened": _SPARK,
    }
    thread = threading.Thread(target=lambda: run_sinks(**cast("Any", run)))
    thread.start()
    yield thread
    stop.set()
    thread.join()


def test_a_driver_begins_each_job_once_and_its_own_after_it(store: MemoryStore, driver: threading.Thread) -> None:
    _until(lambda: [job.plan.generation for job in _Job.made] == [1])
    asking = DriverJob(_plan(store), report=lambda _: None)
    _until(lambda: [job.plan.generation for job in _Job.made] == [1, _BUILT])
    assert not _Job.made[1].plan.go_live
    _Job.made[1].ended.set()
    assert _ended(asking) is None
    save_record(open_memory(store).records, _BUILT, Record("shop", definition(RedisSettings()), Phase.READY))
    _until(lambda: [job.plan.generation for job in _Job.made] == [1, _BUILT, _BUILT])
    assert _Job.made[2].plan.go_live
    assert driver.is_alive()


def test_a_driver_refuses_what_its_configuration_does_not_fit(store: MemoryStore, driver: threading.Thread) -> None:
    save_record(open_memory(store).records, _BUILT, Record("shop", {"analyzer": "english"}, Phase.BUILDING))
    assert isinstance(_ended(DriverJob(_plan(store), report=lambda _: None)), NoDriver)
    assert [job.plan.generation for job in _Job.made] in ([], [1])
    assert driver.is_alive()


@pytest.mark.parametrize(
    "changed", [RedisSettings(max_open_rejections=9), RedisSettings(login=Login(password=SecretStr("new")))]
)
def test_a_driver_of_before_the_settings_changed_builds_nothing(
    store: MemoryStore, driver: threading.Thread, changed: RedisSettings
) -> None:
    """What a message has asked for, as more rejections, would have no effect."""
    assert isinstance(_ended(DriverJob(replace(_plan(store), settings=changed), report=lambda _: None)), NoDriver)
    assert [job.plan.generation for job in _Job.made] in ([], [1])
    assert driver.is_alive()


def test_a_request_of_another_version_is_none(store: MemoryStore) -> None:
    records = open_memory(store).records
    records.save(request_name(_BUILT), '{"tables": [], "speed": 3}')
    assert load_request(records, _BUILT) is None


@pytest.mark.parametrize("moves", [False, True])
def test_a_driver_that_starts_is_one(store: MemoryStore, moves: bool) -> None:
    records, beats = open_memory(store).records, itertools.count(1)
    records.save(STARTING_NAME, starting_record("a", 0, since_ms=0, at_ms=0))

    def starts() -> None:
        if moves:
            records.save(STARTING_NAME, starting_record("a", next(beats), since_ms=0, at_ms=0))

    assert has_driver(records, [1], Time(starts).clock()) is moves
