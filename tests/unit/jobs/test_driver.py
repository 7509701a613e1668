"""Which tables a sink gets, and which of its generations are applied to."""

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pydantic import SecretStr

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import Fenced, LockstepError
from cdc.model.table import TableName
from jobs.driver import TAKEN_OVER, Group, Source, look_every_s, more_tasks, session
from jobs.generations.lease import Clock, GenerationLease, NewerJob
from jobs.generations.record import Phase, Record, begin_generation, list_generations, save_record
from jobs.generations.status import JobState, job_status, save_stop
from jobs.query.job import SinkJob
from jobs.report import Report, SinkWaiting
from jobs.settings import SparkSettings
from jobs.spark.session import SparkEnded
from sinks.contract import OpenedSink, Progress
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings, definition
from sinks.view_settings import ViewSettings
from sinks.warehouse.settings import WarehouseSettings
from tests.generations import prepared_store

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_asks_the_jobs_to_stop(number: signal.Signals) -> None:
    source = Source("shop", KafkaSettings(bootstrap_servers="nowhere:1"), [ORDERS], SparkSettings())
    stop = threading.Event()
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored here
    try:
        with session(source, stop, [], opened=cast(Any, object())):
            os.kill(os.getpid(), number)
            assert stop.wait(300)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_task_is_counted_for_each_sink_whose_batches_may_go_on() -> None:
    view = ViewSettings(name="v", sql="select 1", key=("id",), tasks=3)
    sinks = [
        RedisSettings(),
        WarehouseSettings(url=SecretStr("duckdb:////nowhere/w.duckdb")),
        RedisSettings(view=view),
    ]
    assert more_tasks(SparkSettings(), [ORDERS, ITEMS], sinks) == 1 + 3, "each shard of a view is one"
    assert more_tasks(SparkSettings(master="yarn"), [ORDERS, ITEMS], sinks) == 0


class _Late(MemorySink):
    """Lets another process act at the last moment before it creates a record."""

    def __init__(self, store: MemoryStore, act: Callable[[], object]) -> None:
        super().__init__(store)
        self._act = act

    def create(self, name: str, text: str) -> bool:
        self._act()
        return super().create(name, text)


def _wanted(opened: OpenedSink, settings: RedisSettings | None = None) -> list[int]:
    """The generations that ``apply`` would apply to now."""
    return list(_wanted_settings(opened, settings))


def _wanted_settings(
    opened: OpenedSink,
    settings: RedisSettings | None = None,
    opened_with: Callable[[SinkSettings, int], object] = lambda *_: None,
) -> Mapping[int, SinkSettings]:
    """The same, each with the settings that its job would have. ``opened_with`` is told how the sink is opened."""

    def open_sink(_: str, settings: SinkSettings, generation: int) -> OpenedSink:
        opened_with(settings, generation)
        return opened

    source = Source("shop", KafkaSettings(bootstrap_servers="nowhere:1"), [ORDERS], SparkSettings())
    group = Group(
        source,
        {"cache": settings or RedisSettings()},
        cast(Any, None),
        once=False,
        stop=threading.Event(),
        report=lambda _: None,
        open_sink=open_sink,
    )
    return group.wanted(group.members[0])


def _record(phase: Phase) -> Record:
    return Record("shop", definition(RedisSettings()), phase)


def test_two_that_apply_to_a_new_sink_at_once_go_on_with_one_generation() -> None:
    store = MemoryStore()
    late = replace(open_memory(store), records=_Late(store, lambda: _wanted(open_memory(store))))
    assert _wanted(late) == [1]
    assert [generation.number for generation in list_generations(late)] == [1]


def test_a_rebuild_that_comes_later_has_the_next_number() -> None:
    store = MemoryStore()
    assert _wanted(open_memory(store, 1)) == [1]
    assert begin_generation(open_memory(store, 1), _record(Phase.BUILDING)) == 2
    assert _wanted(open_memory(store, 1)) == [1]  # of which nothing is there yet, and goes on all the same


_TYPO, _MENDED = RedisSettings(exclude=("public.orders.emial",)), RedisSettings(exclude=("public.orders.email",))


@pytest.mark.parametrize("is_prepared", [False, True])
def test_settings_that_nothing_was_applied_with_are_forgotten(is_prepared: bool) -> None:
    store = MemoryStore()
    assert _wanted(open_memory(store), _TYPO) == [1]
    if is_prepared:  # in part: it was refused in the middle
        MemorySink(store, 1).prepare([], go_live=False)
    wanted = _wanted_settings(open_memory(store, 1), _MENDED)
    assert list(wanted.values()) == [_MENDED]
    assert [generation.number for generation in list_generations(open_memory(store))] == list(wanted)
    assert _wanted(open_memory(store), _MENDED) == list(wanted)


def test_what_was_prepared_with_other_settings_is_removed_with_these() -> None:
    """A key's layout is among them: with today's, its keys would be looked for elsewhere."""
    store = MemoryStore()
    assert _wanted(open_memory(store), _TYPO) == [1]
    seen: list[tuple[SinkSettings, int]] = []
    _wanted_settings(open_memory(store, 1), _MENDED, lambda *how: seen.append(how))
    assert seen == [(_MENDED, 1), (_TYPO, 1)]


def test_settings_that_something_was_applied_with_stay() -> None:
    store = MemoryStore()
    assert _wanted(open_memory(store), _TYPO) == [1]
    MemorySink(store, 1).prepare([], go_live=False)
    opened = open_memory(store, 1)
    opened.sink.claim()
    opened.generations.save_progress(Progress({}, 1, 0, 0, {}))
    assert list(_wanted_settings(open_memory(store, 1), _MENDED).values()) == [_TYPO]


def test_settings_that_another_job_is_at_work_with_stay() -> None:
    store = MemoryStore()
    assert _wanted(open_memory(store), _TYPO) == [1]
    ended = threading.Event()
    lease = GenerationLease(open_memory(store, 1), 1, clock=Clock(lambda: next(ticks)))
    ticks = itertools.count(0.0, 10.0)  # each look of the lease is a beat
    thread = threading.Thread(target=lambda: [lease.heartbeat() for _ in iter(lambda: ended.wait(0.01), True)])
    thread.start()
    try:
        assert list(_wanted_settings(open_memory(store, 1), _MENDED).values()) == [_TYPO]
    finally:
        ended.set()
        thread.join()


class _Taken:
    """A job that a newer one has ended at once."""

    made: ClassVar[list["_Taken"]]
    now: ClassVar[float]

    def __init__(self, *_: object, **__: object) -> None:
        self.failure = Fenced("another job has begun")
        self.newer = NewerJob(lambda: self.now)
        self.is_alive = self.was_asked_to_stop = self.is_forgotten = False
        self.made.append(self)

    def ask_to_stop(self) -> None: ...

    def stop(self) -> None: ...

    def forget_takeover(self) -> None:
        self.is_forgotten = True


def _older(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, reports: list[Report], stop: threading.Event | None = None
) -> Group:
    """A driver whose job a newer one has ended."""
    _Taken.made, _Taken.now = [], 0.0
    monkeypatch.setattr("jobs.driver.JobThread", _Taken)
    group = Group(
        Source("shop", KafkaSettings(bootstrap_servers="nowhere:1"), [ORDERS], SparkSettings()),
        {"cache": RedisSettings()},
        cast(Any, None),
        once=False,
        stop=stop or threading.Event(),
        report=reports.append,
        open_sink=lambda *_: open_memory(store),
    )
    group.look(group.members[0])
    assert not group.is_over(group.members[0])  # before it knows what has ended it
    return group


def test_a_job_that_apply_once_had_ended_goes_on_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    store, reports = prepared_store(1), list[Report]()
    ticks = itertools.count(0.0, 10.0)  # each look of the lease is a beat
    once = GenerationLease(open_memory(store), 1, once=True, clock=Clock(lambda: next(ticks)))
    once.claim(lambda: 0)
    group = _older(store, monkeypatch, reports)
    [member] = group.members
    for _ in range(5):  # that one gives signs of life
        _Taken.now += 4.0
        once.heartbeat()
        group.look(member)
        assert not group.is_over(member)
    assert len(_Taken.made) == 1
    assert [type(report) for report in reports] == [SinkWaiting]
    once.end()
    group.look(member)
    assert len(_Taken.made) == 1
    _Taken.now += 10.0
    save_stop(open_memory(store).records, 1, LockstepError("refused"), now_ms=0)  # its own error doesn't matter
    group.look(member)
    assert len(_Taken.made) == 2


@pytest.mark.parametrize("ends", ["not", "in order", "by an error"])
def test_a_job_that_another_one_had_ended_goes_on_when_that_one_is_told_to_stop(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the driver still has other sinks: else it is over at once, and two drivers don't take turns."""
    store = prepared_store(1)
    newer = GenerationLease(open_memory(store), 1)
    newer.claim(lambda: 0)
    group = _older(store, monkeypatch, [])
    [member] = group.members
    group.look(member)
    assert group.is_over(member)
    if ends != "not":
        newer.end()
    if ends == "by an error":
        save_stop(open_memory(store).records, 1, LockstepError("refused"), now_ms=0)
    for _ in range(2):
        _Taken.now += 10.0
        group.look(member)
    assert len(_Taken.made) == (2 if ends == "in order" else 1)


def test_who_is_told_to_stop_while_a_newer_job_has_its_place_needs_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_told in (True, False):
        store = prepared_store(1)
        GenerationLease(open_memory(store), 1).claim(lambda: 0)
        stop = threading.Event()
        group = _older(store, monkeypatch, [], stop)
        if is_told:
            stop.set()
        assert group.run() == TAKEN_OVER
        assert [job.is_forgotten for job in _Taken.made] == [is_told]


def test_a_job_that_was_ended_is_forgotten_with_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepared_store(1)
    group = _older(store, monkeypatch, [])
    [member] = group.members
    save_record(open_memory(store).records, 1, _record(Phase.RETIRED))
    group.look(member)
    assert not member.jobs


@pytest.mark.parametrize(
    ("tables", "seconds", "settled_s"), [(1, 2, 5), (400, 2, 5), (1_000, 5, 5), (1_400, 7, 7), (5_000, 10, 10)]
)
def test_sinks_of_many_tables_are_asked_for_their_generations_less_often(
    tables: int, seconds: float, settled_s: float
) -> None:
    assert look_every_s(tables) == seconds
    assert look_every_s(tables, is_settled=True) == settled_s


class _AtWork(_Taken):
    """A job that applies."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()
        self.failure, self.newer, self.is_alive = None, None, True


def test_a_sink_is_settled_while_nothing_but_its_only_job_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild's generation, from its beginning to its end, and a job that has ended are looked after more often."""
    monkeypatch.setattr("jobs.driver.JobThread", _AtWork)
    _Taken.made, _Taken.now = [], 0.0
    store = prepared_store(1)
    group = Group(
        Source("shop", KafkaSettings(bootstrap_servers="nowhere:1"), [ORDERS], SparkSettings()),
        {"cache": RedisSettings()},
        cast(Any, None),
        once=False,
        stop=threading.Event(),
        report=lambda _: None,
        open_sink=lambda *_: open_memory(store),
    )
    [member] = group.members
    assert not member.is_settled
    group.look(member)
    assert member.is_settled
    for phase in (Phase.BUILDING, Phase.READY):
        save_record(open_memory(store).records, 2, _record(phase))
        group.look(member)
        assert not member.is_settled
    save_record(open_memory(store).records, 2, _record(Phase.RETIRED))
    member.jobs[2].is_alive = False
    group.look(member)
    assert member.is_settled
    member.jobs[1].is_alive = False
    assert not member.is_settled


def test_a_group_whose_jvm_has_ended_ends_with_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each sink's job the error is the same, and what it raises is of PySpark's own kinds."""
    process = subprocess.Popen(["sleep", "600"])
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
    reports: list[Report] = []

    def work(_: SinkJob) -> None:
        process.kill()
        raise ConnectionResetError

    monkeypatch.setattr(SinkJob, "run", work)
    stores = {name: MemoryStore() for name in ("search", "cache")}
    group = Group(
        Source("shop", KafkaSettings(bootstrap_servers="nowhere:1"), [ORDERS], SparkSettings()),
        dict.fromkeys(stores, RedisSettings()),
        cast(Any, spark),
        once=False,
        stop=threading.Event(),
        report=reports.append,
        open_sink=lambda name, _settings, _generation: open_memory(stores[name]),
    )
    try:
        with pytest.raises(SparkEnded, match="nothing was skipped"):
            group.run()
    finally:
        process.kill()
        process.wait()
    assert reports == []
    # Whoever looks at a sink is told why nobody applies to it.
    for store in stores.values():
        status = job_status(MemorySink(store), 1, now_ms=0)
        assert status.state is JobState.STOPPED
        assert status.reason is not None
        assert status.reason.startswith("Spark's JVM has ended")
