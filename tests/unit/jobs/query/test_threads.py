"""What a job shows of itself while no query runs."""

import json
import threading
from dataclasses import replace
from typing import Any, cast

from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import leased
from sinks.memory import MemoryRecords, MemoryStore, open_memory
from tests.builders import table
from tests.databases import until


def test_a_job_without_a_query_shows_itself_stands_still_on_demand_and_ends_when_it_is_asked() -> None:
    store = MemoryStore()
    opened = open_memory(store, 1)
    opened.sink.prepare([table()])
    nothing = cast("Any", None)
    plan = SinkPlan("s", nothing, 1, "p", nothing, (), nothing, once=False, open=lambda *_: open_memory(store, 1))
    stop = threading.Event()

    def heartbeat() -> dict[str, Any]:
        return dict(json.loads(opened.records.load("g1.heartbeat") or "{}"))

    with leased(plan, stop) as gate:
        assert gate.enter()
        until(lambda: heartbeat().get("beats"))
        gate.leave()
        opened.records.save("g1.pause_request", "a switch")
        until(lambda: heartbeat()["paused_for"] == "a switch")
        threading.Timer(0.1, stop.set).start()
        assert not gate.enter(), "it waits, and is told to end"


class _BrokenRecords(MemoryRecords):
    """Fails as only a bug of ours does, once a job has looked."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._looks = 0

    def load(self, name: str) -> str | None:
        self._looks += 1
        if self._looks > 1:
            raise RuntimeError("a bug")
        return "a switch"


def test_a_job_without_a_query_fails_when_nobody_could_end_its_pause() -> None:
    store = MemoryStore()
    nothing = cast("Any", None)
    opened = replace(open_memory(store, 1), records=_BrokenRecords(store))
    plan = SinkPlan("s", nothing, 1, "p", nothing, (), nothing, once=False, open=lambda *_: opened)
    ends: list[object] = []

    def work() -> None:
        try:
            with leased(plan, threading.Event()) as gate:
                ends.append(gate.enter())
        except RuntimeError as error:
            ends.append(str(error))

    threading.Thread(target=work, daemon=True).start()
    until(lambda: ends == [False, "a bug"])
