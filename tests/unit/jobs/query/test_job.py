"""What a failed query's message means, and what a job shows of itself while no query runs."""

import json
import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable
from jobs.query.failures import spark_error
from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import leased
from sinks.memory import MemoryRecords, MemoryStore, open_memory
from tests.builders import table
from tests.databases import until


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", Unavailable),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", PositionMismatch),
        (
            "Job aborted due to stage failure\n at x\nCaused by: Python worker exited unexpectedly (crashed)",
            Unavailable,
        ),
        ("Job aborted due to stage failure\nCaused by: java.io.IOException: Broken pipe", Unavailable),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", Fenced),
        ("[INTERNAL_ERROR] something else\n at org.apache.spark.Whatever", LockstepError),
        ("", LockstepError),
    ],
)
def test_a_query_that_failed_says_what_to_do(text: str, expected: type[LockstepError]) -> None:
    error = spark_error("search", text)
    assert type(error) is expected
    assert "search" in error.message
    assert "at org.apache" not in str(error)


def test_a_job_without_a_query_shows_itself_stands_still_on_demand_and_ends_when_it_is_asked() -> None:
    store = MemoryStore()
    opened = open_memory(store, 1)
    opened.sink.prepare([table()])
    nothing = cast("Any", None)
    plan = SinkPlan("s", nothing, 1, "p", nothing, (), nothing, once=False, open=lambda *_: open_memory(store, 1))
    stop = threading.Event()

    def runner() -> dict[str, Any]:
        return dict(json.loads(opened.records.load("g1.heartbeat") or "{}"))

    with leased(plan, stop) as gate:
        assert gate.enter()
        until(lambda: runner().get("beats"))
        gate.leave()
        opened.records.save("g1.pause_request", "a switch")
        until(lambda: runner()["paused_for"] == "a switch")
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
