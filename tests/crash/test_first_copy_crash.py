"""Kill processes and servers in the middle of a first copy: it goes on, and ends equal to the source."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from cdc.kafka.control_topics import read_copied_ranges
from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.protocol.control_records import SnapshotPhase
from cdc.protocol.copy_ledger import CopiedRange
from lockstep.console import EXIT_TAKEN_OVER
from tests.pipeline import Pipeline, Process, wait_until
from tests.topics import read_committed

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.soak]

ROWS = 6000
_numbers = itertools.count(1)
_SLOWLY = "rows_per_s = 1500\nworkers = {}"


@pytest.fixture(params=[0, 2], ids="workers={}".format)
def pipeline(stack: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """With a table that takes some seconds to copy, in many ranges."""
    name = f"firstcopy{os.getpid()}_{next(_numbers)}"
    made = Pipeline(stack.endpoints(), tmp_path, name, more={"snapshot": _SLOWLY.format(request.param)})
    with made.sql() as connection:
        connection.execute(
            f"insert into {name}.account (id, owner) select {10**9} + i, repeat('x', 100)"
            f" from generate_series(1, {ROWS}) i".encode()
        )
    yield made
    made.close()


def _ranges(pipeline: Pipeline) -> list[CopiedRange]:
    try:
        return read_copied_ranges(pipeline.client, pipeline.name, pipeline.config.slot)
    except LockstepError:  # capture hasn't made the topic yet, or Kafka isn't up again
        return []


def _wait_for_ranges(pipeline: Pipeline, process: Process, count: int) -> int:
    """Wait until this many ranges are copied, in the middle of the copy; returns how many there are."""

    def copied() -> bool:
        assert process.poll() is None, process.output()
        return len(_ranges(pipeline)) >= count

    wait_until(copied, what="ranges are copied")
    state = pipeline.state()
    assert state is not None
    assert state.phase is SnapshotPhase.COPYING
    return len(_ranges(pipeline))


def _finish(pipeline: Pipeline, capture: Process) -> None:
    """Let it end: the topic has the source's rows, and most of them were copied once."""
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.output()
    assert _ranges(pipeline) == []
    state = pipeline.state()
    assert state is not None
    assert state.phase is SnapshotPhase.DONE
    topic = table_topic(pipeline.name, TableName(pipeline.name, "account"))
    copies = 0
    rows: dict[int, str] = {}
    for events in read_committed(pipeline.client, [topic]).values():
        for _, key, value, _ in events:
            number, event = orjson.loads(key)["id"], None if value is None else orjson.loads(value)
            copies += event is not None and event["op"] == "r"
            if event is None or event["op"] == "d":
                rows.pop(number, None)
            else:
                rows[number] = event["after"]["owner"]
    with pipeline.sql() as connection:
        found = connection.execute(f"select id, owner from {pipeline.name}.account".encode()).fetchall()
    assert rows == dict(found)
    assert copies < 1.6 * ROWS


def test_kill_9_of_capture(pipeline: Pipeline) -> None:
    """Its workers are killed as well: they end with it."""
    done = 0
    for turn in range(2):
        capture = pipeline.start_capture()
        done = _wait_for_ranges(pipeline, capture, done + 2)
        workers = psutil.Process(capture.pid).children()
        os.kill(capture.pid, signal.SIGKILL)
        capture.wait()
        psutil.wait_procs(workers, timeout=300)
        assert len(_ranges(pipeline)) >= done
        pipeline.change_accounts(f"turn {turn}")
    _finish(pipeline, pipeline.start_capture())


def test_a_frozen_capture_that_wakes_up_publishes_nothing(pipeline: Pipeline) -> None:
    old = pipeline.start_capture()
    _wait_for_ranges(pipeline, old, 2)
    frozen = [psutil.Process(old.pid), *psutil.Process(old.pid).children()]
    for process in frozen:
        process.suspend()
    pipeline.change_accounts("meanwhile")
    new = pipeline.start_capture()
    try:
        _wait_for_ranges(pipeline, new, len(_ranges(pipeline)) + 1)
    finally:
        for process in frozen:
            process.resume()
    assert pipeline.wait_ended(old) == EXIT_TAKEN_OVER, old.output()
    _finish(pipeline, new)


@pytest.mark.alone
def test_kill_9_of_kafka_and_of_postgresql(stack: Any, pipeline: Pipeline) -> None:
    """Rows are written before, while Kafka is away, and after both are back."""
    capture = pipeline.start_capture()
    _wait_for_ranges(pipeline, capture, 2)
    pipeline.change_accounts("before")
    stack.kill("kafka")
    pipeline.change_accounts("without Kafka")
    stack.kill("postgres")
    stack.start("kafka")
    stack.start("postgres")
    pipeline.change_accounts("after")
    _finish(pipeline, capture)
