"""Who is let go when: never before the store has it, the source's line holds, and readers can find it."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from jobs.generations.held_tables import HeldState, HeldTable, dump_held_tables, held_tables_name
from jobs.generations.status import JobState, JobStatus
from monitor.comparable_lsns import Captures
from monitor.waits import CLOSE_S, Waits, why_not_taken_up
from sinks.contract import OpenedSink, Progress
from sinks.memory import MemorySink, MemoryStore
from tests.databases import until


@dataclass
class _Line:
    """A source whose WAL ends at 1000."""

    epoch: int = 1
    selection: str = ""
    error: LockstepError | None = None
    heartbeats: int = 0

    def heartbeat(self) -> int:
        self.check()
        self.heartbeats += 1
        return 1000

    def check(self) -> Captures:
        if self.error is not None:
            raise self.error
        return Captures(self.epoch, self.selection)

    def close(self) -> None: ...


@dataclass
class _Store:
    """The generations of a sink, all in one; ``done`` says in which order it was asked."""

    number: int = 1
    live_now: int | None = 1
    watermark: int = 0
    epoch: int = 1
    selection: str = ""
    joining: tuple[str, ...] = ()
    error: LockstepError | None = None
    looks: int = 0
    refreshed_at: list[int] = field(default_factory=list)
    released: threading.Event | None = None
    records: MemoryStore = field(default_factory=MemoryStore)

    def live(self) -> int | None:
        return self.live_now

    def load_progress(self) -> Progress | None:
        self.looks += 1
        if self.released is not None:
            self.released.wait(300)
        if self.error is not None:
            raise self.error
        return Progress({}, self.watermark, 0, 0, {}, epoch=self.epoch, joining=self.joining, selection=self.selection)

    def refresh(self) -> None:
        self.refreshed_at.append(self.watermark)


@dataclass
class _World:
    line: _Line
    stores: dict[str, _Store]
    waits: Waits
    opened: list[int]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[_World]:
    line, stores, opened = _Line(), {"cache": _Store(), "search": _Store()}, list[int]()

    class Sink:
        def close(self) -> None: ...

    def open_sink(name: str, _: object, number: int) -> OpenedSink:
        opened.append(number)
        return OpenedSink(Sink(), stores[name], MemorySink(stores[name].records), refreshing=stores[name])

    monkeypatch.setattr("monitor.waits.open_sink", open_sink)
    waits = Waits(None, dict.fromkeys(stores), line=lambda: line)
    with waits:
        yield _World(line, stores, waits, opened)


def _waiting(world: _World, lsn: int, *sinks: str) -> tuple[threading.Thread, list[Any]]:
    """Somebody who waits in a thread, and what came of it."""
    results: list[Any] = []

    def wait() -> None:
        try:
            results.append(world.waits.wait(lsn, sinks, timeout_s=30))
        except LockstepError as error:
            results.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, results


def _looked_again(store: _Store) -> None:
    """Whatever the next two whole looks find has been decided."""
    looks = store.looks
    until(lambda: store.looks >= looks + 3)


def test_nobody_is_let_go_before_the_store_has_it_and_readers_find_it(world: _World) -> None:
    store = world.stores["cache"]
    store.watermark = 9
    thread, results = _waiting(world, 10, "cache")
    _looked_again(store)
    assert results == []
    assert store.refreshed_at == []
    store.watermark = 10
    thread.join(300)
    assert results[0].is_reached
    assert store.refreshed_at == [10]


def test_all_sinks_are_waited_for_where_none_is_named(world: _World) -> None:
    world.stores["cache"].watermark = 10
    thread, results = _waiting(world, 10)
    _looked_again(world.stores["search"])
    assert results == []
    world.stores["search"].watermark = 11
    thread.join(300)
    assert results[0].to_json() == {"reached": True, "lsn": "0/A", "late": {}}


def test_a_watermark_of_another_epoch_lets_nobody_go(world: _World) -> None:
    store = world.stores["cache"]
    store.watermark, world.line.epoch = 500, 2
    thread, results = _waiting(world, 10, "cache")
    _looked_again(store)
    assert results == []
    store.watermark, store.epoch = 10, 2
    thread.join(300)
    assert results[0].is_reached


def test_a_watermark_of_before_other_tables_were_captured_lets_nobody_go(world: _World) -> None:
    """The sink may have a table that came since: its job may not even know of it."""
    store = world.stores["cache"]
    store.watermark, store.selection, world.line.selection = 500, "before", "after"
    thread, results = _waiting(world, 10, "cache")
    _looked_again(store)
    assert results == []
    until(lambda: "no job has begun to apply" in world.waits.wait(10, ["cache"], timeout_s=0.2).late["cache"])
    store.selection = "after"
    thread.join(300)
    assert results[0].is_reached


def test_who_leaves_while_it_is_asked_whether_a_job_runs_is_told_why_nobody_is_let_go(
    world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see that a job has died takes seconds."""
    asked, seen = threading.Event(), threading.Event()

    def statuses(*_: object, **__: object) -> Any:
        asked.set()
        assert seen.wait(300)
        return {1: JobStatus(JobState.ABSENT)}

    monkeypatch.setattr("monitor.waits.job_statuses", statuses)
    store = world.stores["cache"]
    store.watermark, store.selection, world.line.selection = 500, "before", "after"
    until(lambda: "other tables are captured since" in world.waits.wait(10, ["cache"], timeout_s=0.2).late["cache"])
    assert asked.is_set()
    assert not seen.is_set()
    seen.set()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.RUNNING, "hasn't taken that up yet"),
        (JobState.ABSENT, "its job doesn't run: cache: no job has begun to apply to it: `lockstep run`"),
    ],
)
def test_who_waits_for_a_job_that_does_not_know_the_tables_is_told_which_process_to_start(
    state: JobState, expected: str
) -> None:
    assert expected in why_not_taken_up("cache", JobStatus(state))


def test_a_watermark_that_is_not_true_of_a_table_that_joined_lets_nobody_go(world: _World) -> None:
    store = world.stores["cache"]
    store.watermark, store.joining = 500, ("shop.public.late",)
    thread, results = _waiting(world, 10, "cache")
    _looked_again(store)
    assert results == []
    until(lambda: "shop.public.late" in world.waits.wait(10, ["cache"], timeout_s=0.2).late["cache"])
    store.joining = ()
    thread.join(300)
    assert results[0].is_reached


def test_a_source_that_was_put_back_lets_nobody_go(world: _World) -> None:
    world.stores["cache"].watermark = 500
    world.line.error = LockstepError("it was put back")
    thread, results = _waiting(world, 10, "cache")
    thread.join(300)
    assert str(results[0]) == "it was put back"


def test_a_switch_in_between_is_waited_for_on_the_new_generation(world: _World) -> None:
    store = world.stores["cache"]
    thread, results = _waiting(world, 10, "cache")
    _looked_again(store)
    store.live_now, store.watermark = 2, 10
    thread.join(300)
    assert results[0].is_reached
    assert world.opened[-1] == 2


def test_an_lsn_of_another_server_is_refused(world: _World) -> None:
    thread, results = _waiting(world, 1001, "cache")
    thread.join(300)
    assert "beyond the end of the source's WAL" in str(results[0])


def test_a_store_that_is_down_is_waited_for_and_named_when_time_is_up(world: _World) -> None:
    store = world.stores["cache"]
    store.error = Unavailable("no route")
    assert world.waits.wait(10, ["cache"], timeout_s=0.05).late == {"cache": "it can't be asked: no route"}
    thread, results = _waiting(world, 10, "cache")
    _looked_again(store)
    store.error, store.watermark = None, 10
    thread.join(300)
    assert results[0].is_reached


def test_a_store_that_refuses_ends_the_wait_for_it_and_no_other(world: _World) -> None:
    world.stores["cache"].error = LockstepError("no permission")
    world.stores["search"].watermark = 10
    refused, of_cache = _waiting(world, 10, "cache")
    fine, of_search = _waiting(world, 10, "search")
    refused.join(300)
    fine.join(300)
    assert "no permission" in str(of_cache[0])
    assert of_search[0].is_reached


def test_a_source_that_is_down_lets_nobody_go_and_is_named(world: _World) -> None:
    world.stores["cache"].watermark = 10
    world.line.error = Unavailable("the source doesn't answer")
    assert world.waits.wait(10, ["cache"], timeout_s=0.2).late == {"cache": "the source doesn't answer"}


def test_who_is_late_says_what_was_found_since_the_wait_began(world: _World) -> None:
    """Not what an earlier wait was told, nor that nobody has asked where the store just hasn't answered."""
    store = world.stores["cache"]
    world.line.error = Unavailable("the source doesn't answer")
    assert "the source doesn't answer" in world.waits.wait(10, ["cache"], timeout_s=1).late["cache"]
    world.line.error = None
    store.released = threading.Event()
    try:
        assert world.waits.wait(10, ["cache"], timeout_s=0.1).late == {"cache": "it hasn't answered yet"}
    finally:
        store.released.set()


def test_a_sink_that_is_behind_is_told_apart_from_a_source_that_is_silent(world: _World) -> None:
    world.stores["cache"].watermark, world.stores["search"].watermark = 9, 10
    world.line.error = Unavailable("the source doesn't answer")
    assert world.waits.wait(10, timeout_s=1).late == {
        "cache": "it has applied everything up to 0/9; the source doesn't answer",
        "search": "the source doesn't answer",
    }


def test_who_waits_for_a_table_that_is_paused_is_told_so_and_what_ends_that(world: _World) -> None:
    store, table = world.stores["cache"], TableName("public", "items")
    store.watermark = 9
    paused = HeldTable(HeldState.PAUSED, 1, 1, awaited=True)
    store.records.records[held_tables_name(1)] = dump_held_tables({table: paused}) or ""
    late = world.waits.wait(10, ["cache"], timeout_s=3).late["cache"]
    assert late.startswith("it has applied everything up to 0/9: public.items is paused")
    assert "`lockstep resume cache public.items`" in late


def test_a_sink_without_a_generation_is_not_said_to_be_down(world: _World) -> None:
    world.stores["cache"].live_now = None
    late = world.waits.wait(10, ["cache"], timeout_s=1).late
    assert late == {"cache": "readers see no generation of it yet"}


def test_a_sink_that_has_got_there_can_not_fail_the_wait_for_another(world: _World) -> None:
    cache, search = world.stores["cache"], world.stores["search"]
    cache.watermark = 10
    thread, results = _waiting(world, 10)
    until(lambda: cache.refreshed_at)
    cache.error = LockstepError("no permission")
    other, refused = _waiting(world, 11, "cache")
    other.join(300)
    assert str(refused[0]) == "sink cache can't be asked: no permission"
    search.watermark = 10
    thread.join(300)
    assert results[0].is_reached


def test_two_hundred_tasks_are_let_go_by_the_looks_of_one(world: _World) -> None:
    store = world.stores["cache"]
    store.watermark = 9

    async def wait_all() -> list[bool]:
        tasks = [asyncio.create_task(world.waits.wait_async(10, ["cache"], timeout_s=30)) for _ in range(200)]
        await asyncio.sleep(0)
        store.watermark = 10
        return [(await task).is_reached for task in tasks]

    assert asyncio.run(wait_all()) == [True] * 200
    assert len(store.refreshed_at) < 20
    assert world.line.heartbeats < 20


def test_servers_that_hang_are_waited_for_together_at_the_end(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    for store in world.stores.values():
        store.released = threading.Event()
    assert not world.waits.wait(500, timeout_s=0.01).is_reached
    now, waited = [1000.0], list[float]()

    def join(_: threading.Thread, seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    with monkeypatch.context() as patched:
        patched.setattr("monitor.waits.time.monotonic", lambda: now[0])
        patched.setattr("monitor.waits.threading.Thread.join", join)
        world.waits.close()
    assert waited
    assert sum(waited) <= CLOSE_S
    for store in world.stores.values():
        assert store.released is not None
        store.released.set()
