"""lockstep.rebuild.beside: what it may drop by itself, and what it begins again."""

from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.driver import Source
from jobs.generations.record import Phase, Record, begin_generation, load_record
from lockstep.config import Config
from lockstep.rebuild import beside
from lockstep.rebuild.beside import build_beside, drop_half_built
from lockstep.rebuild.build_inputs import BuildInputs
from lockstep.rebuild.generation_build import RebuildContext
from lockstep.rebuild.outcome import Rebuilt
from lockstep.verify.report import VerifyReport
from sinks.contract import Progress
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import column, table
from tests.configurations import CACHE, configured

ORDERS = table(column("id", "int8"), column("note"))
ITEMS = TableName("public", "items")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        Record("shop", {}, Phase.READY),
        Record("shop", {}, Phase.BUILDING, exposed=True),
        Record("another", {}, Phase.BUILDING),
    ],
)
def test_a_generation_that_readers_may_have_seen_or_another_pipelines_is_not_dropped(
    config: Config, record: Record
) -> None:
    store = MemoryStore()
    MemorySink(store, 1).prepare([ORDERS])
    number = begin_generation(open_memory(store, 1), record)
    MemorySink(store, number).prepare([ORDERS])
    with pytest.raises(LockstepError, match="readers may have seen it"):
        drop_half_built(config, "cache", open_memory(store, number), number)
    assert (store.generations.keys(), load_record(MemorySink(store), number)) == ({1, number}, record)


def test_a_live_generation_is_not_dropped_whatever_its_record_says(config: Config) -> None:
    store = MemoryStore()
    record = Record("shop", {}, Phase.BUILDING)
    assert begin_generation(open_memory(store, 1), record) == 1
    MemorySink(store, 1).prepare([ORDERS])
    with pytest.raises(LockstepError, match="readers may have seen it"):
        drop_half_built(config, "cache", open_memory(store, 1), 1)
    assert load_record(MemorySink(store), 1) == record


class _Build:
    """A build of all tables that it is to read, without Spark. ``meanwhile`` is what happens while it catches up."""

    def __init__(self, context: RebuildContext, number: int, store: MemoryStore, meanwhile: dict[str, Any]) -> None:
        self._context, self._number, self._store, self._meanwhile = context, number, store, meanwhile

    def load(self) -> None:
        if not self._context.loads:  # nothing is stored of what its job reads meanwhile
            return
        context, opened = self._context, open_memory(self._store, self._number)
        opened.sink.claim()
        topics = context.config.topics_of(context.tables)
        offsets = {(topic, 0): 5 for topic in topics}
        opened.generations.save_progress(Progress(offsets, 0, 0, 0, dict.fromkeys(topics, "id")))

    def start(self) -> Any:
        return SimpleNamespace(stop=lambda: None)

    def catch_up(self, _: object) -> None:
        for do in self._meanwhile.pop("catching up", ()):
            do()

    def compare(self, _: object) -> VerifyReport:
        for do in self._meanwhile.pop("comparing", ()):
            do()
        return VerifyReport("cache", self._number, "source", None, ())

    def result(self, report: VerifyReport, **outcome: Any) -> Rebuilt:
        return Rebuilt(
            self._number, report, outcome.get("switched_from"), outcome["is_live"], (), loaded=0, load_s=0, compare_s=0
        )


@pytest.mark.parametrize("moment", ["catching up", "comparing"])
@pytest.mark.parametrize("switch_over", [False, True])
@pytest.mark.parametrize("loads", [False, True])
def test_a_build_that_has_read_a_table_which_left_capture_is_begun_again_without_it(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, switch_over: bool, loads: bool
) -> None:
    """The live generation may have gone further with that table: readers would see older rows of it."""
    config, store = configured(tmp_path, CACHE, tables=["public.orders", "public.items"]), MemoryStore()
    MemorySink(store, 1).prepare([ORDERS])
    record = Record("shop", {}, Phase.BUILDING, loaded=False)
    captured: list[TableName] = [ORDERS.name, ITEMS]
    read: list[Collection[TableName]] = []
    said: list[str] = []

    def build(context: RebuildContext, number: int, *_: object) -> _Build:
        read.append(context.tables)
        return _Build(context, number, store, {moment: [lambda: captured.remove(ITEMS)]} if len(read) == 1 else {})

    def begin(*_: object) -> tuple[int, Record]:
        number = begin_generation(open_memory(store, 1), record)
        MemorySink(store, number).prepare([ORDERS], go_live=False)
        return number, record

    monkeypatch.setattr(beside, "Build", build)
    monkeypatch.setattr(beside, "begin_beside", begin)
    monkeypatch.setattr(beside, "sink_tables_now", lambda *_: list(captured))
    monkeypatch.setattr(beside, "open_generation", lambda *args: nullcontext(open_memory(store, args[2])))
    monkeypatch.setattr(beside, "drop_half_built", lambda *args: open_memory(store, args[3]).generations.drop())
    monkeypatch.setattr(beside, "switch", lambda *_, **__: 1)
    monkeypatch.setattr(beside, "read_inputs", lambda *_: BuildInputs({ORDERS.name: "a", ITEMS: "b"}, {}))
    monkeypatch.setattr(beside, "check_complete", lambda *_: None)
    monkeypatch.setattr(beside, "topic_ids_read", lambda *_: {})
    monkeypatch.setattr(
        beside, "InputsWatch", lambda *_, **__: SimpleNamespace(look=lambda: None, check=lambda _: None)
    )
    monkeypatch.setattr(beside, "check_not_trimmed", lambda *_, **__: None)
    unused = cast("Any", None)
    source = Source("shop", config.kafka, [ORDERS.name, ITEMS], config.spark)
    observer = cast("Any", SimpleNamespace(say=said.append))
    settings = config.sinks["cache"]
    context = RebuildContext(config, source, "cache", settings, unused, unused, observer, trimmed=False, loads=loads)
    begun, _ = begin()
    built = build_beside(context, begun, record, switch_over=switch_over)
    assert (read, built.generation, built.is_live) == ([[ORDERS.name, ITEMS], [ORDERS.name]], begun + 1, switch_over)
    assert f"generation {begun} can't become right any more: public.items left capture meanwhile" in said[0]
