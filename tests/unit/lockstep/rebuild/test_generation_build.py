"""lockstep.rebuild.generation_build: what a build waits for."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.table import TableName
from jobs.driver import Source
from jobs.offsets import Offsets
from lockstep.config import Config, read
from lockstep.rebuild import generation_build
from lockstep.rebuild.generation_build import Build, RebuildContext, without_those_that_left
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory
from tests.generations import prepared_store

ORDERS, ITEMS, LOG = (TableName("public", name) for name in ("orders", "items", "log"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "lockstep.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\n'
        '[source]\ndsn = "dbname=shop user=lockstep"\ntables = ["public.orders", "public.*"]\n'
        '[kafka]\nbootstrap_servers = "kafka:9092"\n'
        '[sinks.cache]\ntype = "redis"\nurl = "redis://cache"\n'
    )
    return read(path)


def _capturing(config: Config, *tables: TableName) -> Config:
    return config.capturing(config.source.resolved(tables))


def test_a_build_is_compared_in_those_of_its_tables_that_are_captured_still(config: Config) -> None:
    begun, now = _capturing(config, ITEMS), _capturing(config, LOG)
    assert without_those_that_left(begun, now).source.table_names == (ORDERS,)
    assert without_those_that_left(begun, _capturing(config, ITEMS, LOG)).source.table_names == (ORDERS, ITEMS)


def test_a_build_that_goes_on_reads_what_it_was_begun_with_and_no_table_that_joined_since(config: Config) -> None:
    now = _capturing(config, ITEMS, LOG)
    source = Source("shop", now.kafka, [ORDERS, ITEMS], now.spark, [LOG])
    unused = cast("Any", None)
    context = RebuildContext(now, source, "cache", now.sinks["cache"], unused, unused, unused, trimmed=False)
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
        SimpleNamespace(config=config, settings=config.sinks["cache"], stop=threading.Event(), observer=observer),
    )
    watch = cast("Any", SimpleNamespace(look_if_due=lambda: None))
    return Build(context, 1, open_memory(store, 1), watch), _Job(context)


@pytest.mark.parametrize("leaves_at_look", [1, 3])
def test_a_build_does_not_wait_for_events_of_a_table_that_has_left_capture(
    config: Config, monkeypatch: pytest.MonkeyPatch, leaves_at_look: int
) -> None:
    begun, left = _capturing(config, ITEMS), _capturing(config)
    looks = 0

    def config_now(_: Config) -> Config:
        nonlocal looks
        looks += 1
        return begun if looks < leaves_at_look else left

    def log_ends(config: Config, tables: Any) -> Offsets:
        return {(topic, 0): 7 for topic in config.topics_of(tables)}

    monkeypatch.setattr(generation_build, "config_now", config_now)
    monkeypatch.setattr(generation_build, "log_ends", log_ends)
    monkeypatch.setattr(generation_build, "_CAPTURED_S", 0.0)
    orders, items = begun.topics()[ORDERS], begun.topics()[ITEMS]
    store = prepared_store(1)
    opened = open_memory(store, 1)
    opened.sink.claim()
    opened.generations.save_progress(
        Progress({(orders, 0): 7, (items, 0): 5}, 1, 1, 1, {orders: "o", items: "i"}, rejected=0)
    )
    build, job = _build(begun, store)
    assert build.catch_up(cast("Any", job)) is None
