"""Kill processes and servers in the middle of a copy beside the stream: it goes on, and ends equal to the source."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.model.table import TableName
from cdc.postgres.repair_messages import request_repair
from cdc.protocol.control_records import TableCopy
from tests.pipeline import Pipeline, Process, wait_until

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.soak]

ROWS = 6000
_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    """With a table that takes some seconds to copy again."""
    name = f"chunkcrash{os.getpid()}_{next(_numbers)}"
    made = Pipeline(stack.endpoints(), tmp_path, name, more={"snapshot": "rows_per_s = 1500"})
    with made.sql() as connection:
        connection.execute(
            f"insert into {name}.account (id, owner) select {10**9} + i, repeat('x', 100)"
            f" from generate_series(1, {ROWS}) i".encode()
        )
    yield made
    made.close()


def _copy(pipeline: Pipeline) -> TableCopy | None:
    state = pipeline.state()
    return None if state is None else state.copying.get(TableName(pipeline.name, "account"))


def _ask(pipeline: Pipeline, capture: Process) -> None:
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    with pipeline.sql() as connection:
        request_repair(connection, TableName(pipeline.name, "account"), None, slot=pipeline.config.slot)


def _wait_for_rows(pipeline: Pipeline, capture: Process, rows: int) -> int:
    """Wait until this many are copied, in the middle of the copy; returns how many there are."""
    seen = 0

    def copied() -> bool:
        nonlocal seen
        assert capture.poll() is None, capture.output()
        copy = _copy(pipeline)
        seen = 0 if copy is None else copy.rows
        return seen >= rows

    wait_until(copied, what="rows are copied")
    assert seen < ROWS
    return seen


def _finish(pipeline: Pipeline, capture: Process) -> None:
    """Let it end: the topic has the source's rows."""
    pipeline.wait_streaming(capture)
    wait_until(lambda: _copy(pipeline) is None, what="the copy ends")
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.output()
    assert pipeline.newest_rows() == pipeline.source_rows()


def test_kill_9_of_capture(pipeline: Pipeline) -> None:
    capture = pipeline.start_capture()
    _ask(pipeline, capture)
    done = 0
    for turn in range(2):
        done = _wait_for_rows(pipeline, capture, done + 300)
        os.kill(capture.pid, signal.SIGKILL)
        capture.wait()
        copy = _copy(pipeline)
        assert copy is not None
        assert copy.rows >= done
        pipeline.change_accounts(f"turn {turn}")
        capture = pipeline.start_capture()
    _finish(pipeline, capture)


@pytest.mark.alone
@pytest.mark.parametrize("server", ["kafka", "postgres"])
def test_kill_9_of_a_server(pipeline: Pipeline, stack: Any, server: str) -> None:
    capture = pipeline.start_capture()
    _ask(pipeline, capture)
    done = _wait_for_rows(pipeline, capture, 300)
    stack.kill(server)
    stack.start(server)
    pipeline.change_accounts("meanwhile")
    if (copy := _copy(pipeline)) is not None:
        assert copy.rows >= done
    _finish(pipeline, capture)
