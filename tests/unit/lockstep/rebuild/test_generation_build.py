"""lockstep.rebuild.generation_build: what a build waits for."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.driver import Source
from jobs.offsets import Offsets
from jobs.query.captured_tables import Captured
from lockstep import generations
from lockstep.config import Config
from lockstep.generations import config_now, require_captured, sink_tables_now
from lockstep.rebuild import generation_build
from lockstep.rebuild.generation_build import Build, RebuildContext, without_those_that_left
from lockstep.rebuild.outcome import Interrupted
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory
from tests.configurations import CACHE, configured
from tests.generations import prepared_store

ORDERS, ITEMS, LOG = (TableName("public", name) for name in ("orders", "items", "log"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path, CACHE, tables=["public.orders", "public.*"])


def _capturing(config: Config, *tables: TableName) -> Config:
    return config.capturing(config.source.resolved(tables))


@pytest.fixture
def naming(tmp_path: Path) -> Config:
    """Its tables are named, and it has a view of one of them."""
    return configured(
        tmp_path,
        CACHE,
        '[sinks.items]\ntype = "redis"\nurl = "redis://cache"\nprefix = "items"\ntables = ["public.items"]\n'
        '[views.joined]\nsink = "cache"\nkey = ["id"]\n'
        'sql = "select o.id from public.orders o join public.items i on i.id = o.id"\n',
        tables=["public.orders", "public.items"],
    )


def test_a_named_table_that_capture_was_started_without_is_left_out_and_a_view_can_not_do_without(
    naming: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "captured_now", lambda _: Captured([ORDERS, LOG]))
    now = config_now(naming)
    assert (now.source.table_names, now.sink_tables(now.sinks["cache"])) == ((ORDERS,), (ORDERS,))
    assert without_those_that_left(naming, now).source.table_names == (ORDERS,)
    assert sink_tables_now(naming, naming.sinks["cache"]) == [ORDERS, LOG]
    require_captured(now, "cache", now.sinks["cache"])
    with pytest.raises(LockstepError, match=r"reads public\.items, which isn't captured") as refused:
        require_captured(now, "joined", now.sinks["joined"])
    assert "lockstep rebuild joined" in (refused.value.hint or "")
    with pytest.raises(LockstepError, match=r"no table that is captured: it names public\.items"):
        require_captured(now, "items", now.sinks["items"])


def test_a_build_that_goes_on_reads_what_it_was_begun_with_and_no_table_that_joined_since(config: Config) -> None:
    now = _capturing(config, ITEMS, LOG)
    source = Source("shop", now.kafka, [ORDERS, ITEMS], now.spark, [LOG])
    unused, settings = cast("Any", None), now.sinks["cache"]
    context = RebuildContext(now, source, "cache", settings, unused, unused, unused, trimmed=False, loads=True)
    assert context.tables == [ORDERS, ITEMS]
    begun = context.of_tables([ORDERS])
    assert (begun.tables, begun.config.source.table_names) == ([ORDERS], (ORDERS,))
    assert list(begun.source.append_only) == []


class _Job:
    """A job that goes on. Whoever waits for it for too long is told to stop."""

    is_alive, failure = True, None

    def __init__(self, context: RebuildContext) -> None:
        self._context = context
        self._waits = 0

    def wait(self, _seconds: float) -> None:
        self._waits += 1
        if self._waits > 5:
            self._context.stop.set()


def _build(config: Config, store: MemoryStore) -> tuple[Build, _Job]:
    observer = SimpleNamespace(say=print, progress=lambda _: None, report=print)
    context = cast(
        "RebuildContext",
        SimpleNamespace(
            name="cache", config=config, settings=config.sinks["cache"], stop=threading.Event(), observer=observer
        ),
    )
    watch = cast("Any", SimpleNamespace(look_if_due=lambda: None))
    return Build(context, 1, open_memory(store, 1), watch), _Job(context)


def test_without_a_load_the_job_that_goes_on_reads_it_all_and_a_load_that_was_interrupted_is_ended() -> None:
    ended: list[str] = []
    opened = cast("Any", SimpleNamespace(bulk=SimpleNamespace(end_bulk=lambda: ended.append("bulk"))))
    context = cast("RebuildContext", SimpleNamespace(loads=False))  # nothing to start a job with
    assert Build(context, 1, opened, cast("Any", None)).load() is None
    assert ended == ["bulk"]


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("leaves_at_look", [1, 3])
def test_a_build_does_not_wait_for_events_of_a_table_that_has_left_capture(
    config: Config, naming: Config, monkeypatch: pytest.MonkeyPatch, leaves_at_look: int, *, is_named: bool
) -> None:
    begun, left = _capturing(config, ITEMS), _capturing(config)
    if is_named:
        begun, left = naming, naming.capturing(naming.source.only([ORDERS]))
    looks = 0

    def config_now(_: Config) -> Config:
        nonlocal looks
        looks += 1
        return begun if looks < leaves_at_look else left

    def log_ends(config: Config, tables: Any) -> Offsets:
        return {(topic, 0): 7 for topic in config.topics_of(tables)}

    monkeypatch.setattr(generation_build, "config_now", config_now)
    monkeypatch.setattr(generation_build, "log_ends", log_ends)
    monkeypatch.setattr(generation_build, "CAPTURED_S", 0.0)
    orders, items = begun.topics()[ORDERS], begun.topics()[ITEMS]
    store = prepared_store(1)
    opened = open_memory(store, 1)
    opened.sink.claim()
    opened.generations.save_progress(
        Progress({(orders, 0): 7, (items, 0): 5}, 1, 1, 1, {orders: "o", items: "i"}, rejected=0)
    )
    build, job = _build(begun, store)
    assert build.catch_up(cast("Any", job)) is None


def test_a_build_waits_for_its_job_where_all_topics_are_empty_and_not_for_one_that_has_ended(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = _capturing(config)
    monkeypatch.setattr(generation_build, "config_now", lambda _: now)
    monkeypatch.setattr(generation_build, "log_ends", lambda *_: {(now.topics()[ORDERS], 0): 0})
    build, job = _build(now, prepared_store(1))
    with pytest.raises(Interrupted):
        build.catch_up(cast("Any", job))
    build, job = _build(now, prepared_store(1))
    job.is_alive = False
    with pytest.raises(LockstepError, match="job of generation 1 has ended") as ended:
        build.catch_up(cast("Any", job))
    assert "lockstep rebuild cache" in (ended.value.hint or "")
